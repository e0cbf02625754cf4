"""Which op each waiting event waited for, how long it is without waiting, when it returns."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.calls import Recorded
from nvprobe.analysis.replay.edges import last_before
from nvprobe.analysis.replay.model import ALL, NOTHING, QUEUE, EventKind
from nvprobe.analysis.waiting.blocking import SyncCalls
from nvprobe.attribution.intervals import runs
from nvprobe.trace import NO_ROW, Calls, Column, Trace
from nvprobe.trace.cuda_calls import CallRole, call_roles

CALL_NS = 5_000
"""A call that waits takes at most this long by itself."""
MANY = 200
"""Launches outstanding when a queue may be full."""
SLOW = 20
SLOW_NS = 200_000


def awaited(
    trace: Trace, events: Recorded, syncs: SyncCalls, first_op: Column, stream: Column,
    end: Column, stream_of_sync: Column,
) -> Column:  # fmt: skip
    """Per event: the op it waits for, ``ALL`` or ``NOTHING``. ``stream``, ``end``: per op."""
    until = np.append(first_op[1:], len(stream))
    out = np.full(len(events), NOTHING)
    waits = np.flatnonzero(events.waits >= 0)
    of = stream_of_sync[events.waits[waits]]
    known = of >= 0
    out[waits[known]] = last_before(stream, of[known], until[waits[known]])
    whole = ~known & (syncs.stream[events.waits[waits]] < 0)
    out[waits[whole]] = ALL
    copies = np.flatnonzero((events.kind == EventKind.BLOCKING_COPY) & (until > first_op))
    out[copies] = until[copies] - 1
    by_event = call_roles(trace) == CallRole.EVENT_SYNC
    single = waits[by_event[syncs.call[events.waits[waits]]] & (out[waits] >= 0)]
    out[single] = _ended(stream, end, out[single], events.end[single])
    return out


def _ended(stream: Column, end: Column, op: Column, time: Column) -> Column:
    """The last op up to ``op`` on its stream that had ended: a later one was not waited for."""
    out = np.full(len(op), NOTHING)
    for code in np.unique(stream[op]).tolist():
        mine = np.flatnonzero(stream == code)
        asked = np.flatnonzero(stream[op] == code)
        reach = np.maximum.accumulate(end[mine])
        at = np.searchsorted(reach, time[asked], "right") - 1
        at = np.minimum(at, np.searchsorted(mine, op[asked]))
        out[asked] = np.where(at >= 0, mine[np.maximum(at, 0)], NOTHING)
    return out


def without_waiting(
    events: Recorded, calls: Calls, awaits: Column, first_op: Column, end: Column
) -> tuple[Column, Column]:
    """(dur, ret) per event."""
    length = events.end - events.begin
    dur, ret = length.copy(), np.zeros(len(events), np.int64)
    done = np.append(np.maximum.accumulate(end), np.iinfo(np.int64).min // 4)
    until = np.append(first_op[1:], len(end)) - 1
    op_end = np.append(end, np.iinfo(np.int64).min // 4)
    free_at = np.where(awaits == ALL, done[until], op_end[np.maximum(awaits, NOTHING)])
    waits = np.flatnonzero(awaits != NOTHING)
    waited = free_at[waits] > events.begin[waits]
    name = np.where(events.call == NO_ROW, -1, calls.name[events.call])
    ret[waits] = events.end[waits] - free_at[waits]
    for code in np.unique(name[waits]).tolist():
        mine = name[waits] == code
        held, not_held = waits[mine & waited], waits[mine & ~waited]
        usual = int(np.median(length[not_held])) if len(not_held) else CALL_NS
        dur[held] = np.minimum(length[held], min(usual, CALL_NS) if len(held) else usual)
        after = ret[held][ret[held] >= 0]
        usual_ret = int(np.median(after)) if len(after) else CALL_NS
        ret[not_held] = np.minimum(ret[not_held], usual_ret)
    return dur, ret


def full_queue(
    events: Recorded, calls: Calls, dur: Column, first_op: Column, end: Column
) -> tuple[Column, int]:
    """(dur without waiting for a free place in the queue, how many launches the queue takes)."""
    until = np.append(first_op[1:], len(end))
    launching = np.flatnonzero((events.kind == EventKind.LAUNCH) & (until > first_op))
    dur = dur.copy()
    blocked = []
    name = calls.name[events.call[launching]]
    last = np.maximum.accumulate(end)[until[launching] - 1] if len(launching) else end
    outstanding = np.arange(len(launching)) - np.searchsorted(last, events.begin[launching])
    order = np.argsort(name, kind="stable")
    bounds = np.append(runs(name[order]), len(order))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[low:high]
        usual = int(np.median(dur[launching[rows]]))
        slow = dur[launching[rows]] > max(SLOW * usual, SLOW_NS)
        held = rows[slow & (outstanding[rows] > MANY)]
        dur[launching[held]] = usual
        blocked.append(outstanding[held])
    counts = np.concatenate(blocked) if blocked else np.empty(0, np.int64)
    return dur, int(np.median(counts)) if len(counts) else QUEUE
