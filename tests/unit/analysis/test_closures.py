"""Closures given to an optimizer's step: their work is beside the step. Values by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.selection import Selection, select
from nvprobe.attribution import attribute
from nvprobe.report.document import to_dict
from nvprobe.trace import Trace
from tests.random_traces import NAMES, build

STEP, FORWARD, BACKWARD = (NAMES.index(name) for name in ("step 1", "forward", "backward"))
OPTIMIZER, OWN = NAMES.index("optimizer"), NAMES.index("Optimizer.step#SGD.step")
MODULE, ENGINE = NAMES.index("fwd:net"), NAMES.index("AddmmBackward0, seq = 4")
KERNEL = 0


def rows(trace: Trace) -> dict[str, dict[str, Any]]:
    """The rows of ranges, by path."""
    return {row["path"]: row for row in to_dict(analyze(attribute(trace)))["ranges"]}


def op(correlation: int, start: int, end: int) -> tuple[int, ...]:
    """A kernel of process 0, on a GPU that is not known."""
    return (KERNEL, 0, -1, correlation, start, end, 0, -1)


def lightning() -> Trace:
    """A step whose closure runs forward and backward, with a kernel in each part."""
    ranges = [
        (0, 1, 39, STEP),
        (0, 3, 35, OPTIMIZER),
        (0, 5, 15, FORWARD),
        (0, 6, 14, MODULE),
        (0, 16, 28, BACKWARD),
    ]
    calls = [(0, 1, 7, 8, 0), (0, 2, 17, 18, 0), (0, 3, 30, 31, 0), (1, 4, 20, 21, 0)]
    ops = [op(1, 8, 10), op(2, 19, 22), op(3, 32, 33), op(4, 22, 26)]
    return build([0, 0], [100, 101], [100], ranges, calls, ops, [])


def test_lightning_runs_forward_and_backward_beside_the_optimizer() -> None:
    found = rows(lightning())
    assert set(found) == {
        *("step", "step/optimizer", "step/forward", "step/forward/fwd:net", "step/backward"),
    }
    optimizer = found["step/optimizer"]
    # 32 long, of which the closure took 10 and 12; its own kernel is the one launched at 30.
    assert (optimizer["wall_ns"], optimizer["self_wall_ns"]) == (32 - 10 - 12, 10)
    assert (optimizer["gpu_ns"], optimizer["gpu_span_ns"], optimizer["ops"]) == (1, 1, 1)
    # The autograd thread (1) has no ranges: what it launches inherits the backward pass.
    assert (found["step/backward"]["gpu_ns"], found["step/backward"]["wall_ns"]) == (3 + 4, 12)
    assert found["step"]["wall_ns"] == 38


def test_a_selection_counts_the_same_time_of_the_optimizer() -> None:
    found = to_dict(analyze(select(lightning(), Selection(ranges=("step/optimizer",)))))
    (row,) = [row for row in found["ranges"] if row["path"] == "step/optimizer"]
    assert (row["wall_ns"], row["gpu_ns"]) == (10, 1)


def test_lbfgs_calls_its_closure_several_times_in_one_step() -> None:
    """Torch's own range of the step is inside nvprobe's: the closure leaves both."""
    ranges = [
        (0, 1, 39, OPTIMIZER),
        (0, 2, 38, OWN),
        (0, 3, 8, FORWARD),
        (0, 8, 12, BACKWARD),
        (0, 20, 26, FORWARD),
        (0, 26, 30, BACKWARD),
    ]
    calls = [(0, 1, 4, 5, 0), (0, 2, 14, 15, 0), (0, 3, 21, 22, 0), (0, 4, 34, 35, 0)]
    ops = [op(1, 5, 7), op(2, 15, 18), op(3, 22, 25), op(4, 35, 36)]
    found = rows(build([0], [100], [100], ranges, calls, ops, []))
    assert set(found) == {"optimizer", "optimizer/Optimizer.step#SGD.step", "forward", "backward"}
    own = found["optimizer/Optimizer.step#SGD.step"]
    assert (found["optimizer"]["wall_ns"], own["wall_ns"]) == (38 - 19, 36 - 19)
    assert (own["gpu_ns"], own["gpu_span_ns"]) == (3 + 1, 36 - 15)
    assert (found["forward"]["calls"], found["forward"]["gpu_ns"]) == (2, 2 + 3)


def test_autograd_threads_work_for_no_optimizer() -> None:
    """A torch trace of Lightning: no range says that the backward pass runs inside the step."""
    ranges = [(0, 1, 39, STEP), (0, 3, 35, OWN), (1, 10, 20, ENGINE)]
    calls = [(1, 1, 12, 13, 0), (0, 2, 30, 31, 0)]
    found = rows(
        build([0, 0], [100, 101], [100], ranges, calls, [op(1, 14, 19), op(2, 32, 34)], [])
    )
    assert found["step/AddmmBackward0"]["gpu_ns"] == 5
    assert found["step/Optimizer.step#SGD.step"]["gpu_ns"] == 2
    assert "step/Optimizer.step#SGD.step/AddmmBackward0" not in found


@pytest.mark.parametrize("inner", [NAMES.index("a/b"), NAMES.index("layer 3")])
def test_other_ranges_stay_the_optimizers(inner: int) -> None:
    ranges = [(0, 1, 39, OPTIMIZER), (0, 5, 15, inner)]
    found = rows(build([0], [100], [100], ranges, [], [], []))
    assert found["optimizer"]["wall_ns"] == 38
    assert len([path for path in found if path.startswith("optimizer/")]) == 1
