"""From an Attribution to the model of its leading process's steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import numbered
from nvprobe.analysis.model import Steps
from nvprobe.analysis.replay.calls import (
    HOST_TO_DEVICE,
    PAGEABLE,
    Recorded,
    leading_thread,
    recorded_events,
)
from nvprobe.analysis.replay.crossing import stream_waits
from nvprobe.analysis.replay.edges import Edges, Placed, edges, position
from nvprobe.analysis.replay.model import EventKind, HostEvents, Model, QueuedOps
from nvprobe.analysis.replay.run import done_before
from nvprobe.analysis.replay.waiting import awaited, full_queue, without_waiting
from nvprobe.analysis.waiting.host_causes import Stretches
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

LEAST_STEPS = 3
"""The first step is left out, and one alone shows no loop."""
PAUSE_NS = 50_000


@dataclass(frozen=True, slots=True)
class Captured:
    """A model of whole steps, and where its rows come from."""

    model: Model
    uncut: Model
    """The same with the pauses that one step alone made, as recorded."""
    events: Recorded
    op: Column
    """Row of ``trace.ops`` per op of the model."""
    op_start: Column
    op_end: Column
    staged: Column
    """Bool per op: a copy from pageable memory."""
    process: int
    step_index: Column
    """Per step: the number in its name, else its position."""
    edges: Edges
    inputs: Stretches
    """The ranges that wait for data."""
    lost_ops: int
    """Ops of the process that no call is known for: the model is without them."""

    def completion(self) -> Column:
        """Recorded: per border, when the host was there and every op launched before had ended."""
        rows = self.model.borders
        return np.maximum(self.events.begin[rows], done_before(self.model, self.op_end)[rows])


def build(
    attribution: Attribution, steps: Steps, waits: Waits, process: int | None = None
) -> Captured | None:
    """The model of a process, by default the one with most steps.

    ``None`` without steps, calls or ops.
    """
    trace = attribution.trace
    if not len(trace.ops) or not len(trace.calls):
        return None
    process, borders, index = _borders(steps, process)
    if len(borders) <= LEAST_STEPS or leading_thread(attribution, process) < 0:
        return None
    if not (attribution.call[trace.ops.process == process] >= 0).any():
        return None
    events, event_of = recorded_events(attribution, process, borders, waits.syncs.calls)
    op, event, lost = _launched(attribution, process, event_of)
    if not len(op):
        return None
    return _model(attribution, waits, events, op, event, process, lost, index)


def _borders(steps: Steps, process: int | None) -> tuple[int, Column, Column]:
    """(process, begins of its steps and the end of the last that launched, their indices)."""
    steps, nothing = steps.shown, np.empty(0, np.int64)
    if not len(steps):
        return 0, nothing, nothing
    process = int(np.bincount(steps.process).argmax()) if process is None else process
    rows = np.flatnonzero(steps.process == process)
    rows = rows[np.argsort(steps.start[rows], kind="stable")]
    launching = np.flatnonzero(steps.ops[rows] > 0)
    if not len(launching):
        return process, nothing, nothing
    rows = rows[: launching[-1] + 1]
    return process, np.append(steps.start[rows], steps.end[rows[-1]]), steps.index[rows]


def _launched(
    attribution: Attribution, process: int, event_of: Column
) -> tuple[Column, Column, int]:
    """(ops of events in order of their launch, event of each, ops of unknown calls)."""
    ops = attribution.trace.ops
    mine = np.flatnonzero((ops.process == process) & attribution.valid)
    known = mine[attribution.call[mine] >= 0]
    event = event_of[attribution.call[known]]
    op, event = known[event >= 0], event[event >= 0]
    order = np.lexsort((ops.end[op], ops.start[op], event))
    return op[order], event[order], len(mine) - len(known)


def _model(
    attribution: Attribution, waits: Waits, events: Recorded, op: Column, event: Column,
    process: int, lost: int, index: Column,
) -> Captured:  # fmt: skip
    trace, streams = attribution.trace, waits.streams
    ops, calls, syncs = trace.ops, trace.calls, waits.syncs.calls
    used, stream = numbered(streams.of_op[op])
    sync_stream = streams.find(calls.process[syncs.call], syncs.device, syncs.stream)
    sync_stream = position(used, sync_stream)
    start, end = ops.start[op], ops.end[op]
    first = np.searchsorted(event, np.arange(len(events)))
    awaits = awaited(trace, events, syncs, first, stream, end, sync_stream)
    dur, ret = without_waiting(events, calls, awaits, first, end)
    dur, queue = full_queue(events, calls, dur, first, end)
    begin = events.begin[event]
    depends = stream_waits(
        trace, waits.streams, process, used, events.begin, first, stream, start, end
    )
    staged = (ops.copy_kind[op] == HOST_TO_DEVICE) & (ops.source_memory[op] == PAGEABLE)
    placed = Placed(event, stream, start, end, begin, begin + dur[event], depends, staged)
    found = edges(placed, len(used))
    zero = int(events.begin[0])
    tails = np.where(found.tails > 0, found.tails - zero, found.tails)
    uncut = Model(
        HostEvents(events.lane, events.gap, dur, events.kind, awaits, ret, first),
        QueuedOps(event, stream, end - start, found.gap, found.lat, found.dep, found.dep_lat),
        int(events.lane.max()) + 1, tails, queue,
    )  # fmt: skip
    gap, dur = _evened(events, calls.name, first, events.gap, dur)
    evened = dataclasses.replace(uncut.events, gap=gap, dur=dur)
    model = dataclasses.replace(uncut, events=evened)
    return Captured(
        model, uncut, events, op, start, end, staged, process, index, found, waits.inputs, lost
    )


def _evened(
    events: Recorded, name: Column, first_op: Column, gap: Column, dur: Column
) -> tuple[Column, Column]:
    """(gap, dur) without what one step alone paused for, where steps make the same calls."""
    gap, dur = gap.copy(), dur.copy()
    border = np.flatnonzero(events.kind == EventKind.STEP)
    low, high = border[:-1], border[1:]
    called = np.where(events.call >= 0, name[events.call], -1)
    counts = np.diff(np.append(first_op, len(called)))
    same: dict[bytes, list[int]] = {}
    for step, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        shape = np.stack((called[begin:end], counts[begin:end], events.lane[begin:end]))
        same.setdefault(shape.astype(np.int32).tobytes(), []).append(step)
    for steps in same.values():
        if len(steps) >= LEAST_STEPS:
            rows = low[steps][:, None] + np.arange(high[steps[0]] - low[steps[0]])
            for values in (gap, dur):
                usual = np.median(values[rows], axis=0)
                values[rows] = np.minimum(values[rows], (3 * usual + PAUSE_NS).astype(np.int64))
    return gap, dur
