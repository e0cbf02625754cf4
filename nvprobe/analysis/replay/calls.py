"""The calls of a process as host events: which ones count, when they begin, what came between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import numbered
from nvprobe.analysis.replay.model import EventKind
from nvprobe.analysis.waiting.blocking import SyncCalls
from nvprobe.analysis.waiting.host_time import launching_calls, thread_lanes
from nvprobe.attribution.intervals import running_max, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Calls, Column, Table, column
from nvprobe.trace.cuda_calls import ALLOCATIONS, SYNCS, CallRole, call_roles

PAGEABLE, HOST_TO_DEVICE = 1, 1
STAGED_NS = 50_000
"""A call on pageable memory that lasts longer may stand for the copy itself."""
_KINDS = (
    ((CallRole.COMPILATION,), EventKind.OTHER),
    (ALLOCATIONS, EventKind.ALLOCATION),
    (SYNCS, EventKind.SYNC),
)


@dataclass(frozen=True, slots=True)
class Recorded(Table):
    """Events as they were recorded, in order of their begin."""

    call: Column = column("i8")
    """Row of ``trace.calls``; ``NO_ROW`` for the border of a step."""
    thread: Column = column("i4")
    lane: Column = column("i4")
    kind: Column = column("i1")
    begin: Column = column("i8")
    end: Column = column("i8")
    gap: Column = column("i8")
    """Since the event before in its lane; of a lane's first event, since the first border."""
    waits: Column = column("i8")
    """Row of ``SyncCalls``, -1 where it is none."""
    inside: Column = column("i4")
    """Calls recorded in the event, itself included."""
    between: Column = column("i4")
    """Calls recorded in the gap."""


def leading_thread(attribution: Attribution, process: int) -> int:
    """The thread whose steps are replayed; -1 where no call is known.

    The initiating one, or without ranges the one that calls for most ops.
    """
    found = int(attribution.initiating[process])
    call = attribution.call[(attribution.trace.ops.process == process) & (attribution.call >= 0)]
    if found >= 0 or not len(call):
        return found
    return int(np.bincount(attribution.trace.calls.thread[call]).argmax())


def recorded_events(
    attribution: Attribution, process: int, borders: Column, syncs: SyncCalls
) -> tuple[Recorded, Column]:
    """(events of the lanes that launch, row of its event per call; -1 for those of no event).

    ``borders`` are instants on the initiating thread; what begins before the first one, or after
    the last, is left out.
    """
    calls = attribution.trace.calls
    lane_of = thread_lanes(attribution)
    lanes = np.unique(lane_of[calls.thread[_of(calls, process, launching_calls(attribution))]])
    rows = _of(calls, process, np.arange(len(calls)))
    rows = rows[np.isin(lane_of[calls.thread[rows]], lanes)]
    kept = (calls.start[rows] >= borders[0]) & (calls.start[rows] < borders[-1])
    rows = rows[kept]
    main = leading_thread(attribution, process)
    # Borders stand first, so that a stable sort leaves them before a call that begins with them.
    row = np.concatenate((np.full(len(borders), NO_ROW), rows))
    thread = np.concatenate((np.full(len(borders), main), calls.thread[rows]))
    start = np.concatenate((borders, calls.start[rows]))
    end = np.concatenate((borders, calls.end[rows]))
    order = _outer_first(row, lane_of[thread], start, end)
    row, thread, start, end = (c[order] for c in (row, thread, start, end))
    lane = lane_of[thread]
    return _outermost(attribution, syncs, row, thread, start, end, lane, int(borders[0]))


def _outer_first(row: Column, lane: Column, start: Column, end: Column) -> Column:
    """Order by lane and start; of calls that begin together the longest first."""
    order = sorted_by(lane, start)
    same = (lane[order][1:] == lane[order][:-1]) & (start[order][1:] == start[order][:-1])
    nested = same & (end[order][1:] > end[order][:-1]) & (row[order][:-1] != NO_ROW)
    return np.lexsort((-end, row != NO_ROW, start, lane)) if nested.any() else order


def _of(calls: Calls, process: int, rows: Column) -> Column:
    return rows[calls.process[rows] == process]


def _outermost(
    attribution: Attribution, syncs: SyncCalls, row: Column, thread: Column, start: Column,
    end: Column, lane: Column, zero: int,
) -> tuple[Recorded, Column]:  # fmt: skip
    """Join calls with what they contain; all but events melt into the gaps. Sorted by lane."""
    calls = attribution.trace.calls
    reach = running_max(lane, end)
    before = np.roll(reach, 1)
    head = np.append(True, lane[1:] != lane[:-1])
    before[head] = zero
    outer = head | (end > before) | (row == NO_ROW)
    nest = np.cumsum(outer) - 1
    at = np.flatnonzero(outer)
    kind, wait = _kinds(attribution, syncs)
    kind_of = np.where(row == NO_ROW, np.int8(EventKind.STEP), kind[row])
    nest_kind = np.maximum.reduceat(kind_of, at)
    nest_wait = np.maximum.reduceat(np.where(row == NO_ROW, -1, wait[row]), at)
    event = np.flatnonzero(nest_kind >= 0)
    place, size = at[event], np.diff(np.append(at, len(row)))[event]
    begin = np.maximum(start[place], before[place])
    finish = reach[np.append(at[1:], len(row))[event] - 1]
    last = np.append(zero, finish[:-1])
    new = np.append(True, lane[place][1:] != lane[place][:-1])
    last[new] = zero
    since = np.append(0, place[:-1] + size[:-1])
    since[new] = np.flatnonzero(head)
    order = np.lexsort((nest_kind[event] != EventKind.STEP, begin))
    number = np.full(len(at), -1)
    number[event[order]] = np.arange(len(event))
    event_of = np.full(len(calls), -1)
    known = row != NO_ROW
    event_of[row[known]] = number[nest[known]]
    first_call = row[place]
    table = Recorded(
        call=first_call, thread=thread[place], lane=numbered(lane[place])[1],
        kind=nest_kind[event], begin=begin, end=finish, gap=np.maximum(begin - last, 0),
        waits=nest_wait[event], inside=np.where(first_call == NO_ROW, 0, size),
        between=place - since,
    )  # fmt: skip
    return table.take(order), event_of


def _kinds(attribution: Attribution, syncs: SyncCalls) -> tuple[Column, Column]:
    """Per call: (kind, -1 for one that is not an event; row of ``syncs``, -1)."""
    trace, ops = attribution.trace, attribution.trace.ops
    calls = trace.calls
    roles = call_roles(trace)
    kind = np.full(len(calls), -1, np.int8)
    starting = launching_calls(attribution)
    for some, what in _KINDS:
        kind[np.isin(roles, some)] = what
    kind[starting] = np.maximum(kind[starting], EventKind.LAUNCH)
    wait = np.full(len(calls), -1)
    wait[syncs.call] = np.arange(len(syncs))
    kind[syncs.call[syncs.copy == 1]] = EventKind.BLOCKING_COPY
    own = np.flatnonzero(attribution.call != NO_ROW)
    blocking = np.isin(
        roles[attribution.call[own]], (CallRole.BLOCKING_COPY, CallRole.BLOCKING_SET)
    )
    kind[attribution.call[own[blocking]]] = EventKind.BLOCKING_COPY
    copies = own[roles[attribution.call[own]] == CallRole.COPY]
    call = attribution.call[copies]
    length = calls.end[call] - calls.start[call]
    pageable = (ops.source_memory[copies] == PAGEABLE) | (ops.target_memory[copies] == PAGEABLE)
    held = pageable & (length > STAGED_NS) & (2 * length >= attribution.duration[copies])
    kind[call[held]] = EventKind.BLOCKING_COPY
    return kind, wait
