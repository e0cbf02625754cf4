"""Waits of one stream for another: which op a wait-event call put before the next one."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.edges import (
    DEPENDENCY_NS,
    LATE_NS,
    last_before,
    position,
    predecessors,
)
from nvprobe.analysis.replay.model import NOTHING
from nvprobe.analysis.timelines import Streams
from nvprobe.trace import Column, Trace
from nvprobe.trace.cuda_calls import CallRole, calls_with

RIGHT_BEFORE_NS = 15_000
"""From the end of an op to the begin of one of another stream that waited for its event."""


def stream_waits(
    trace: Trace, streams: Streams, process: int, used: Column, begin: Column, first_op: Column,
    stream: Column, start: Column, end: Column,
) -> Column:  # fmt: skip
    """Per op: the op of another stream that a wait-event call made it wait for, ``NOTHING``.

    The awaiting stream is in the call's synchronization record. The recording one is not in most
    captures: it is taken to be that whose op, launched before the call, ended last before the next
    op of the awaiting stream began. Where more was launched on it before the call than had ended,
    the event was recorded earlier: then after the op that ended right before, of an op that
    nothing else held so long. ``begin``, ``first_op``: per event; the others per op.
    """
    out = np.full(len(stream), NOTHING)
    waiting, awaiting = _wait_calls(trace, streams, process, used)
    if not len(waiting) or len(used) < 2:
        return out
    event = np.searchsorted(begin, trace.calls.start[waiting])
    launched = np.append(first_op, len(stream))[event]
    following = _next(stream, awaiting, launched)
    kept = following != NOTHING
    launched, following = launched[kept], following[kept]
    best, latest = out[following], np.full(len(following), np.iinfo(np.int64).min)
    earlier, recorded = best.copy(), latest.copy()
    for other in range(len(used)):
        last = last_before(stream, np.full(len(launched), other), launched)
        ended = np.where(last != NOTHING, end[last], np.iinfo(np.int64).min)
        better = (stream[following] != other) & (last != NOTHING) & (ended > latest)
        better &= ended <= start[following] + DEPENDENCY_NS
        best[better], latest[better] = last[better], ended[better]
        last = _ended_by(end, stream, other, last, start[following] + DEPENDENCY_NS)
        ended = np.where(last != NOTHING, end[last], np.iinfo(np.int64).min)
        better = (stream[following] != other) & (ended > recorded)
        earlier[better], recorded[better] = last[better], ended[better]
    held = start - np.append(end, np.iinfo(np.int64).min // 4)[predecessors(stream)]
    better = (held[following] > LATE_NS) & (recorded > latest)
    better &= recorded >= start[following] - RIGHT_BEFORE_NS
    best[better], latest[better] = earlier[better], recorded[better]
    order = np.argsort(latest, kind="stable")  # of several waits the one that ended last counts
    out[following[order]] = best[order]
    return out


def _ended_by(end: Column, stream: Column, code: int, last: Column, time: Column) -> Column:
    """The last op of a stream, up to ``last``, that had ended at each time, ``NOTHING``."""
    mine = np.flatnonzero(stream == code)
    reach = np.maximum.accumulate(end[mine])
    at = np.minimum(np.searchsorted(reach, time, "right"), np.searchsorted(mine, last, "right"))
    return np.append(mine, NOTHING)[at - 1]


def _wait_calls(
    trace: Trace, streams: Streams, process: int, used: Column
) -> tuple[Column, Column]:
    """(rows of wait-event calls, position in ``used`` of the stream that waits)."""
    syncs, calls = trace.syncs, trace.calls
    nothing = np.empty(0, np.int64)
    waiting = np.flatnonzero(calls_with(trace, [CallRole.WAIT_EVENT]) & (calls.process == process))
    record = np.flatnonzero((syncs.process == process) & (syncs.stream >= 0))
    record = record[np.argsort(syncs.correlation[record], kind="stable")]
    if not len(waiting) or not len(record):
        return nothing, nothing
    at = np.searchsorted(syncs.correlation[record], calls.correlation[waiting])
    record = record[np.minimum(at, len(record) - 1)]
    hit = syncs.correlation[record] == calls.correlation[waiting]
    waiting, record = waiting[hit], record[hit]
    row = streams.find(syncs.process[record], syncs.device[record], syncs.stream[record])
    awaiting = position(used, row)
    return waiting[awaiting >= 0], awaiting[awaiting >= 0]


def _next(stream: Column, asked: Column, since: Column) -> Column:
    """The first op from ``since`` on that is on stream ``asked``, ``NOTHING`` for none."""
    out = np.full(len(asked), NOTHING)
    for code in np.unique(asked).tolist():
        mine = np.flatnonzero(stream == code)
        rows = np.flatnonzero(asked == code)
        at = np.searchsorted(mine, since[rows])
        found = at < len(mine)
        out[rows[found]] = mine[at[found]]
    return out
