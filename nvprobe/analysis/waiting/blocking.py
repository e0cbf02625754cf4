"""Which calls made the host wait, for which GPU work, and how long.

A call synchronizes by its name (stream, device, context and event synchronize, blocking copies and
sets) or by evidence: an asynchronous copy whose call ended at or after the copy itself, an
allocation or free that outlasted work it found running. Wait-event and event-query do not.
Definition: docs/attribution.md, "Synchronizing call".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.timelines import Streams
from nvprobe.attribution.intervals import Coverage, by_group, running_max, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_DEVICE, NO_ROW, Calls, Column, Ops, Table, Trace, column
from nvprobe.trace.cuda_calls import ALLOCATIONS, SYNCS, CallRole, call_roles

OWN_SYNCHRONIZATION = "nvprobe synchronizes"
"""The range in which nvprobe itself waits for the GPU."""
_DIRECT = (2, 3, 4)
"""CUPTI memory kinds that copies reach without staging: pinned, device, array."""


@dataclass(frozen=True, slots=True)
class SyncCalls(Table):
    """Synchronizing calls by thread and start; one inside another is part of the outer one."""

    call: Column = column("i8")
    """Row of ``trace.calls``."""
    thread: Column = column("i4")
    start: Column = column("i8")
    """Start, or the end of the call before on this thread if they overlap (broken times)."""
    end: Column = column("i8")
    copy: Column = column("i1")
    """1 for an asynchronous copy that waited."""
    wait_ns: Column = column("i8")
    """Length of the call."""
    busy_ns: Column = column("i8")
    """Of it, the time in which the awaited device worked."""
    device: Column = column("i4")
    """Row of the device it waited for, -1 where unknown."""
    stream: Column = column("i8")
    """The awaited stream, -1 for a whole device or where unknown."""
    op: Column = column("i8")
    """Row of the awaited op: the last one there to end inside the call; -1 for none."""


def synchronizing_calls(
    attribution: Attribution, roles: Column, busy: Coverage, lanes: Streams
) -> SyncCalls:
    """Find the calls that waited. ``roles`` are those of ``cuda_calls.call_roles``."""
    trace = attribution.trace
    if not len(trace.calls):
        return SyncCalls.empty()
    calls = trace.calls
    by_name = np.flatnonzero(np.isin(roles, SYNCS))
    by_name = by_name[~_own(attribution, by_name)]
    memory = np.flatnonzero(np.isin(roles, ALLOCATIONS))
    rows = np.concatenate((by_name, _blocking_copies(attribution, roles), memory))
    device, stream = _awaited(attribution, rows)
    waited = np.ones(len(rows), bool)
    late = slice(len(rows) - len(memory), None)
    waited[late] = _outlasted_work(calls, memory, device[late], busy)
    rows, device, stream = rows[waited], device[waited], stream[waited]
    kept, start = outermost_calls(calls, rows)
    rows, device, stream = rows[kept], device[kept], stream[kept]
    begin, end = calls.start[rows], calls.end[rows]
    waits = SyncCalls(
        call=rows,
        thread=calls.thread[rows],
        start=start,
        end=end,
        copy=roles[rows] == CallRole.COPY,
        wait_ns=end - begin,
        busy_ns=busy.between(device + 1, begin, end),
        device=device,
        stream=stream,
        op=np.full(len(rows), NO_ROW),
    )
    return dataclasses.replace(waits, op=_awaited_ops(attribution, lanes, waits))


def _own(attribution: Attribution, rows: Column) -> Column:
    """Bool per call: nvprobe itself waits for the GPU, at a border of the window."""
    calls, paths = attribution.trace.calls, attribution.paths
    ours = pc.equal(paths.names, OWN_SYNCHRONIZATION).to_numpy(zero_copy_only=False)
    if not ours.any():
        return np.zeros(len(rows), bool)
    path = attribution.open.at(calls.thread[rows], calls.start[rows])
    return (path >= 0) & ours[paths.name[path]]


def _blocking_copies(attribution: Attribution, roles: Column) -> Column:
    """Asynchronous copies whose call ended at or after the end of (all of) its copies.

    Between pinned and device memory a copy never makes the host wait: such a call was only slow.
    """
    ops, calls = attribution.trace.ops, attribution.trace.calls
    direct = np.isin(ops.source_memory, _DIRECT) & np.isin(ops.target_memory, _DIRECT)
    op = np.flatnonzero((attribution.call != NO_ROW) & attribution.valid & ~direct)
    op = op[roles[attribution.call[op]] == CallRole.COPY]
    call = attribution.call[op]
    last = np.full(len(calls), np.iinfo(np.int64).min)
    np.maximum.at(last, call, ops.end[op])
    copies = np.flatnonzero(last != np.iinfo(np.int64).min)
    return copies[calls.end[copies] >= last[copies]]


def _outlasted_work(calls: Calls, rows: Column, device: Column, busy: Coverage) -> Column:
    """bool: the device worked for at least half of the call and was done when it returned.

    An allocation takes time of its own; that some op happened to end meanwhile says nothing.
    """
    lane, start, end = device + 1, calls.start[rows], calls.end[rows]
    done = ~busy.contains(lane, end)
    return (end > start) & done & (2 * busy.between(lane, start, end) >= end - start)


def outermost_calls(calls: Calls, rows: Column) -> tuple[Column, Column]:
    """(positions in ``rows`` by thread and start, where each begins to count); none in another."""
    order = np.lexsort((rows, -calls.end[rows], calls.start[rows], calls.thread[rows]))
    thread = calls.thread[rows[order]]
    start, end = calls.start[rows[order]], calls.end[rows[order]]
    begin = start.copy()
    if len(order):
        reach = running_max(thread, end)
        again = thread[1:] == thread[:-1]
        begin[1:][again] = np.maximum(start[1:], reach[:-1])[again]
    kept = (end > begin) | ((start == begin) & (end == start))
    return order[kept], begin[kept]


def _awaited(attribution: Attribution, rows: Column) -> tuple[Column, Column]:
    """(device, stream) that each call waits for, from the best evidence there is.

    Its own copy, else the synchronization record, else the device that its thread launched on
    before, else the process's first device.
    """
    device = np.full(len(rows), NO_DEVICE, np.int32)
    stream = np.full(len(rows), -1, np.int64)
    known = np.zeros(len(rows), bool)
    _take_records(attribution.trace, rows, device, stream, known)
    _take_own_ops(attribution, rows, device, stream, known)
    unknown = np.flatnonzero(~known)
    if len(unknown):
        device[unknown] = _launched_on_before(attribution, rows[unknown])
    return device, stream


def _take_own_ops(
    attribution: Attribution, rows: Column, device: Column, stream: Column, known: Column
) -> None:
    """In place: where a call started an op, it waits for that."""
    ops, calls = attribution.trace.ops, attribution.trace.calls
    op_of = np.full(len(calls) + 1, NO_ROW, np.int64)
    op_of[attribution.call] = np.arange(len(ops))
    op_of[-1] = NO_ROW  # where the ops without a call were written
    own = np.flatnonzero(op_of[rows] != NO_ROW)
    device[own] = ops.device[op_of[rows[own]]]
    stream[own] = ops.stream[op_of[rows[own]]]
    known[own] = True


def _take_records(
    trace: Trace, rows: Column, device: Column, stream: Column, known: Column
) -> None:
    """In place: what the GPU-side synchronization records name."""
    syncs, calls = trace.syncs, trace.calls
    if not len(syncs) or not len(rows):
        return
    _, identity = np.unique(
        np.concatenate((syncs.correlation, calls.correlation[rows])), return_inverse=True
    )
    process = np.concatenate((syncs.process, calls.process[rows])).astype(np.int64)
    key = process * (int(identity.max()) + 1) + identity
    recorded, order = np.unique(key[: len(syncs)], return_index=True)
    asked = key[len(syncs) :]
    at = np.minimum(np.searchsorted(recorded, asked), len(recorded) - 1)
    hit = np.flatnonzero((recorded[at] == asked) & (calls.correlation[rows] > 0))
    record = order[at[hit]]
    device[hit] = syncs.device[record]
    whole = call_roles(trace)[rows[hit]] == CallRole.DEVICE_SYNC
    stream[hit] = np.where(whole, -1, syncs.stream[record])
    known[hit] = syncs.device[record] >= 0


def _launched_on_before(attribution: Attribution, rows: Column) -> Column:
    """The device of the last op that the calling thread started before, int32 row."""
    ops, calls = attribution.trace.ops, attribution.trace.calls
    if not len(ops):
        return np.full(len(rows), NO_DEVICE, np.int32)
    device, several = _devices_used(ops, len(attribution.trace.processes))
    device, several = device[calls.process[rows]], several[calls.process[rows]]
    if not several.any():
        return device
    op = np.flatnonzero(attribution.call != NO_ROW)
    op = op[sorted_by(calls.thread[attribution.call[op]], calls.start[attribution.call[op]])]
    thread, time = calls.thread[attribution.call[op]], calls.start[attribution.call[op]]
    for code, asked in by_group(calls.thread[rows]):
        low, high = np.searchsorted(thread, [code, code + 1])
        before = np.searchsorted(time[low:high], calls.start[rows][asked], "right")
        some = before > 0
        device[np.arange(len(rows))[asked][some]] = ops.device[op[low + before[some] - 1]]
    return device


def _devices_used(ops: Ops, processes: int) -> tuple[Column, Column]:
    """(lowest device row on which each process ran anything, -1 for none; it ran on several)."""
    first = np.full(processes, np.iinfo(np.int32).max, np.int32)
    last = np.full(processes, NO_DEVICE, np.int32)
    np.minimum.at(first, ops.process, ops.device)
    np.maximum.at(last, ops.process, ops.device)
    nothing = first == np.iinfo(np.int32).max
    return np.where(nothing, NO_DEVICE, first).astype(np.int32), ~nothing & (last > first)


def _awaited_ops(attribution: Attribution, lanes: Streams, waits: SyncCalls) -> Column:
    """The last op on the awaited stream, or device, that ends inside each call; -1 for none."""
    out = np.full(len(waits), NO_ROW, np.int64)
    ops, calls = attribution.trace.ops, attribution.trace.calls
    if not len(waits):
        return out
    rows = np.flatnonzero(attribution.valid)
    begin = calls.start[waits.call]
    stream = lanes.find(calls.process[waits.call], waits.device, waits.stream)
    for which, lane, of_op in (
        (waits.stream >= 0, stream, lanes.of_op[rows]),
        (waits.stream < 0, waits.device + 1, ops.device[rows] + 1),
    ):
        asked = np.flatnonzero(which & (lane >= 0))
        if len(asked) and len(rows):
            last = _last_ended(of_op, ops.end[rows], lane[asked], waits.end[asked])
            inside = (last >= 0) & (ops.end[rows[last]] >= begin[asked])
            out[asked[inside]] = rows[last[inside]]
    return out


def _last_ended(lane_of_op: Column, op_end: Column, lane: Column, time: Column) -> Column:
    """Position of the op with the greatest end <= time in each lane, -1 for none."""
    order = sorted_by(lane_of_op, op_end)
    lanes, ends = lane_of_op[order], op_end[order]
    out = np.full(len(time), NO_ROW, np.int64)
    for code, asked in by_group(lane):
        low, high = np.searchsorted(lanes, [code, code + 1])
        at = np.searchsorted(ends[low:high], time[asked], "right")
        out[asked] = np.where(at > 0, order[np.maximum(low + at - 1, 0)], NO_ROW)
    return out
