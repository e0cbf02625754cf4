"""Which op of another stream a wait-event call waits for, where the event is not recorded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.replay.model import NOTHING, Model
from nvprobe.analysis.replay.run import replay
from nvprobe.trace import Syncs, Trace
from tests.unit.analysis.scenes import ADD, BF16_GEMM, Scene, loop
from tests.unit.replay.test_fidelity import built

US = 1000
COMPUTE, COPIES = 7, 13
FIRST, SECOND, COPY = range(3)


def copies(scene: Scene, *, after_first: bool) -> None:
    """Two products, then a copy on another stream: after both, or after the first one's event."""
    first = scene.launch(BF16_GEMM, 300 * US, stream=COMPUTE)
    second = scene.launch(BF16_GEMM, 400 * US, stream=COMPUTE)
    scene.gpu_free[COPIES] = max(scene.gpu_free.get(COPIES, 0), first if after_first else second)
    scene.call("cudaStreamWaitEvent", US)
    scene.launch(ADD, 50 * US, stream=COPIES)
    scene.host(600 * US)


def with_waits(scene: Scene) -> Trace:
    """The records of wait-event calls name the stream that waits, not the one that is awaited."""
    trace = scene.trace()
    rows = [row for row, one in enumerate(scene.calls) if one[2] == "cudaStreamWaitEvent"]
    zero, at = np.zeros(len(rows), np.int64), trace.calls.start[rows]
    syncs = Syncs(zero, zero, zero, zero + COPIES, np.array(rows) + 1, at, at, zero - 1)
    return dataclasses.replace(trace, syncs=syncs)


@pytest.mark.parametrize("after_first", [True, False])
def test_a_copy_waits_for_the_op_that_ended_right_before(after_first: bool) -> None:
    captured = built(with_waits(loop(lambda s: copies(s, after_first=after_first), steps=6)))
    assert captured is not None
    ops = captured.uncut.ops
    rows = np.arange(3, len(ops), 3) + COPY
    rows = rows[rows < len(ops)]
    awaited = FIRST if after_first else SECOND
    assert (ops.dep[rows] == rows - COPY + awaited).all()
    assert ops.gap[rows].max() < 5 * US
    assert (ops.dep[rows - COPY] == NOTHING).all()


def test_a_copy_comes_as_soon_as_what_it_waits_for_is_shorter() -> None:
    captured = built(with_waits(loop(lambda s: copies(s, after_first=True), steps=6)))
    assert captured is not None
    model: Model = captured.uncut.edit()
    model.ops.dur[0::3] //= 2
    for one in (captured.uncut, model):
        end = replay(one).op
        assert (end[3 + COPY :: 3] - end[3 + FIRST :: 3]).tolist() == [50 * US + 500] * 5
