"""Where each step's time goes, in parts that add up to it exactly: what two runs are compared by.

With GPU work a step lasts from the end of the step before to its own end, on the GPU's time line:
the GPU time of each path, the idle time of each path and cause, and the time in which several ops
ran at once, which counts negative. Over several GPUs it is the mean. Without GPU work a step is
host time: the time inside each path, and the time before the step since the one before.

Parts of less than a thousandth of the steps are counted with the path above. Definition:
docs/compare.md. Oracle: tests/unit/analysis/test_step_parts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.model import Steps
from nvprobe.analysis.path_quantities import innermost_time
from nvprobe.analysis.steps import step_at, step_or_next
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.intervals import union_length
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, OpKind, Table, column
from nvprobe.trace.cuda_calls import LAUNCHES, SYNCS, CallRole, calls_with

GPU, OVERLAP, HOST_TIME = len(Cause), len(Cause) + 1, len(Cause) + 2
"""What a part is, beside the causes of idle time."""
_LEAST_SHARE = 0.001
_MOST_STEPS = 1_000_000
"""With more than a thousand steps the least share grows, so that the parts stay this many."""


@dataclass(frozen=True, slots=True)
class StepCounts(Table):
    """What the program does in each step; columns by row of the steps."""

    launches: Column = column("i8")
    syncs: Column = column("i8")
    graph_launches: Column = column("i8")
    graph_nodes: Column = column("i8")
    copied_bytes: Column = column("i8")


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of each step."""

    basis: Literal["gpu", "host"]
    path: Column
    """Row of the paths, -1 for none."""
    what: Column
    """A cause of idle time, or ``GPU``, ``OVERLAP``, ``HOST_TIME``."""
    ns: Column
    """int64 of shape (parts, steps)."""
    counts: StepCounts


def step_parts(attribution: Attribution, steps: Steps, waits: Waits) -> StepParts | None:
    """Split the steps of a capture; ``None`` without steps."""
    if not len(steps):
        return None
    on_gpu = bool(attribution.valid.any())
    op_step = _steps_of_ops(attribution, steps)
    if on_gpu:
        path, what, step, ns = _gpu_parts(attribution, steps, waits, op_step)
    else:
        path, what, step, ns = _host_parts(attribution, steps)
    path, what, step, ns = _folded(attribution, len(steps), path, what, step, ns)
    key, row = distinct((path.astype(np.int64) + 1) << 8 | what)
    table = np.zeros((len(key), len(steps)), np.int64)
    np.add.at(table, (row, step), ns)
    if on_gpu:
        table = _mean_of_devices(attribution, steps, op_step, table)
    return StepParts(
        basis="gpu" if on_gpu else "host",
        path=(key >> 8) - 1,
        what=key & 0xFF,
        ns=table,
        counts=_counts(attribution, steps, waits, op_step),
    )


def _steps_of_ops(attribution: Attribution, steps: Steps) -> Column:
    """Row of the step of each op: open when it was called for, or coming next; -1 for none."""
    ops, calls = attribution.trace.ops, attribution.trace.calls
    out = np.full(len(ops), NO_ROW, np.int64)
    called = np.flatnonzero(attribution.call != NO_ROW)
    time = calls.start[attribution.call[called]]
    out[called] = step_or_next(steps, ops.process[called], time)
    return out


_Parts = tuple[Column, Column, Column, Column]
"""(path, what, step, ns) of each part."""


def _gpu_parts(attribution: Attribution, steps: Steps, waits: Waits, op_step: Column) -> _Parts:
    """GPU time by path, idle time by path and cause, and overlap."""
    ops, size = attribution.trace.ops, len(steps)
    own = np.flatnonzero(attribution.valid & (op_step != NO_ROW))
    step, length = op_step[own], ops.end[own] - ops.start[own]
    key, code = distinct((attribution.owner[own].astype(np.int64) + 1) << 32 | step)
    spent = sums(code, length, len(key))
    devices = len(attribution.trace.devices) + 1
    busy = union_length(
        step * devices + ops.device[own] + 1, ops.start[own], ops.end[own], size * devices
    )
    twice = busy.reshape(size, devices).sum(axis=1) - sums(step, length, size)
    idle_path, cause, idle_step, idle = by(waits.idle, "path", "cause", "next_step")
    inside = idle_step != NO_ROW
    return (
        np.concatenate(((key >> 32) - 1, idle_path[inside], np.full(size, NO_ROW))),
        np.concatenate((np.full(len(key), GPU), cause[inside], np.full(size, OVERLAP))),
        np.concatenate((key & 0xFFFFFFFF, idle_step[inside], np.arange(size))),
        np.concatenate((spent, idle[inside], twice)),
    )


def _host_parts(attribution: Attribution, steps: Steps) -> _Parts:
    """Host time by path on the thread of the steps, and the time between two steps."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    own = innermost_time(attribution)
    step = step_at(steps, ranges.process, ranges.start)
    inside = np.flatnonzero(step != NO_ROW)
    inside = inside[ranges.thread[inside] == ranges.thread[steps.range[step[inside]]]]
    before = np.zeros(len(steps), np.int64)
    before[1:] = np.where(
        steps.process[1:] == steps.process[:-1], steps.start[1:] - steps.end[:-1], 0
    )
    paths = np.concatenate((tree.path[inside], np.full(len(steps), NO_ROW)))
    return (
        paths,
        np.full(len(paths), HOST_TIME),
        np.concatenate((step[inside], np.arange(len(steps)))),
        np.concatenate((own[inside], np.maximum(before, 0))),
    )


def _folded(
    attribution: Attribution, steps: int, path: Column, what: Column, step: Column, ns: Column
) -> _Parts:
    """Small parts with the path above, from the deepest paths upwards."""
    paths = attribution.paths
    share = max(_LEAST_SHARE, _LEAST_SHARE * steps * 1000 / _MOST_STEPS)
    least = int(ns.sum() * share)
    path = path.astype(np.int64).copy()
    for level in range(len(paths.levels()) - 1, 0, -1):
        _, code = distinct((path + 1) << 8 | what)
        small = sums(code, ns, int(code.max(initial=-1)) + 1)[code] < least
        here = (path >= 0) & (paths.depth[path] == level) & small
        path[here] = paths.parent[path[here]]
    return path, what, step, ns


def _mean_of_devices(
    attribution: Attribution, steps: Steps, op_step: Column, table: Column
) -> Column:
    """Parts over the number of GPUs of each process; rounded so that they still add up."""
    ops = attribution.trace.ops
    used = np.ones(len(steps), np.int64)
    for process in np.unique(steps.process).tolist():
        own = attribution.valid & (ops.process == process) & (op_step != NO_ROW)
        used[steps.process == process] = max(len(np.unique(ops.device[own])), 1)
    if (used == 1).all():
        return table
    return np.diff(np.cumsum(table, axis=0) // used, axis=0, prepend=0)


def _counts(attribution: Attribution, steps: Steps, waits: Waits, op_step: Column) -> StepCounts:
    """What the program calls for in each step, exactly.

    Synchronizing calls by their name alone: whether a copy or an allocation waits is chance.
    """
    trace, size = attribution.trace, len(steps)
    calls, ops = trace.calls, trace.ops

    def of_calls(rows: Column) -> Column:
        """Number of these calls in each step."""
        step = step_or_next(steps, calls.process[rows], calls.start[rows])
        return sums(step, np.ones(len(rows), np.int64), size)

    nodes = np.flatnonzero(ops.graph_node != 0)
    copies = np.flatnonzero((ops.kind == OpKind.MEMCPY) & (ops.bytes > 0))
    waited = waits.syncs.calls.call
    return StepCounts(
        launches=of_calls(np.flatnonzero(calls_with(trace, LAUNCHES))),
        syncs=of_calls(waited[calls_with(trace, SYNCS)[waited]]),
        graph_launches=of_calls(np.flatnonzero(calls_with(trace, (CallRole.GRAPH_LAUNCH,)))),
        graph_nodes=sums(op_step[nodes], np.ones(len(nodes), np.int64), size),
        copied_bytes=sums(op_step[copies], ops.bytes[copies], size),
    )
