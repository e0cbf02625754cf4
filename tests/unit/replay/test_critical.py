"""The critical path adds up to the time it spans, and shortening it shortens the replay."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given

from nvprobe.analysis.replay.critical import Part, critical_path
from nvprobe.analysis.replay.model import NEVER, Model
from nvprobe.analysis.replay.run import completion, replay
from tests.conftest import examples
from tests.unit.replay.models import models
from tests.unit.replay.test_search import loop


@examples(150)
@given(models(least=4))
def test_it_adds_up(model: Model) -> None:
    model = dataclasses.replace(model, tails=np.full_like(model.tails, NEVER))
    if not len(model.borders):
        return
    times = replay(model)
    end = int(completion(model, times)[-1])
    for since in (0, end // 2):
        assert critical_path(model, times, since).ns.sum() == max(end - since, 0)


def parts(model: Model) -> dict[Part, int]:
    found = critical_path(model, replay(model), 0)
    return {Part(p): int(found.ns[found.part == p].sum()) for p in np.unique(found.part)}


def test_a_slow_host_is_the_path_and_so_is_a_slow_gpu() -> None:
    host = parts(loop(100, 30))
    assert host[Part.HOST] == 4000
    assert host.get(Part.GPU, 0) == 30  # the last kernel
    gpu = parts(loop(30, 100))
    assert gpu[Part.GPU] == 4000
    assert gpu[Part.HOST] == 30  # the first launch
