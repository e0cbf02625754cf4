"""The replay: it agrees with its oracle, and it is monotonic."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.replay import run
from nvprobe.analysis.replay.model import NOTHING, Model
from nvprobe.analysis.replay.run import completion, replay, step_times
from tests.conftest import examples
from tests.oracle_replay import replay_oracle
from tests.unit.replay.models import models

ALWAYS_SCAN, NEVER_SCAN = 0, 1 << 40


def times(model: Model, threshold: int) -> tuple[list[int], list[int]]:
    with patch.object(run, "_WORTH_A_SCAN", threshold):
        found = replay(model)
    return found.event.tolist(), found.op.tolist()


@examples(150)
@given(models())
def test_loop_and_scan_are_the_oracle(model: Model) -> None:
    wanted = replay_oracle(model)
    assert times(model, NEVER_SCAN) == wanted
    assert times(model, ALWAYS_SCAN) == wanted


def end(model: Model) -> int:
    found = replay(model)
    return max(int(found.event.max()), int(found.op.max(initial=0)))


@examples(60)
@given(models(), st.data())
def test_adding_time_never_ends_sooner(model: Model, data: st.DataObject) -> None:
    longer = model.edit()
    event = data.draw(st.integers(0, len(model.events) - 1))
    longer.events.gap[event] += data.draw(st.integers(0, 20))
    longer.events.dur[event] += data.draw(st.integers(0, 20))
    if len(model.ops):
        longer.ops.dur[data.draw(st.integers(0, len(model.ops) - 1))] += 5
    assert end(longer) >= end(model)


@examples(60)
@given(models(), st.data())
def test_dropping_a_wait_never_ends_later(model: Model, data: st.DataObject) -> None:
    free = model.edit()
    free.events.awaits[data.draw(st.integers(0, len(model.events) - 1))] = NOTHING
    assert end(free) <= end(model)


@examples(50)
@given(models())
def test_steps_add_up_to_the_window(model: Model) -> None:
    found = replay(model)
    done = completion(model, found)
    if len(done):
        assert step_times(model, found).sum() == done[-1] - done[0]


@examples(50)
@given(models(least=6))
def test_a_section_without_a_past_is_a_model_of_its_own(model: Model) -> None:
    borders = model.borders
    if len(borders) < 2:
        return
    section = model.section(0, len(borders) - 1, replay(model).event)
    assert len(section.borders) == len(borders)
    assert times(section, ALWAYS_SCAN) == replay_oracle(section)
    assert np.all(section.ops.dep < len(section.ops))
