"""What held each op back: the end of its call, the op before on its stream, another stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.replay.model import NEVER, NOTHING
from nvprobe.attribution.intervals import sorted_by
from nvprobe.trace import Column

CLEAR_NS = 3_000
"""Between two instants that decide which of them held an op back."""
LATE_NS = 50_000
"""An op that starts this long after its call, on a free stream, waited for something unknown."""
GAPS_NS = (500, 3_000)
"""Gaps between two queued ops of a stream are within these, where a capture shows none."""
DEPENDENCY_NS = 2_000


@dataclass(frozen=True, slots=True)
class Placed:
    """Ops in the order of their launch, as recorded."""

    event: Column
    stream: Column
    start: Column
    end: Column
    begin: Column
    """When the host began its call."""
    ready: Column
    """When its call would have ended without waiting."""
    waits_for: Column
    """Op of another stream that a wait-event call put before it, ``NOTHING``."""
    staged: Column
    """Bool: a copy from pageable memory, which the host first copies piece by piece."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Lengths of the edges into each op, and what they left unexplained."""

    gap: Column
    lat: Column
    dep: Column
    dep_lat: Column
    tails: Column
    late_ns: int
    """Time in which ops started late for a reason the capture does not have."""
    typical_gap: int
    typical_lat: int


def predecessors(stream: Column) -> Column:
    """The op launched before on the same stream, ``NOTHING`` for a stream's first."""
    order = np.argsort(stream, kind="stable")
    out = np.full(len(stream), NOTHING)
    same = stream[order][1:] == stream[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out


def last_before(stream: Column, asked: Column, count: Column) -> Column:
    """The last of the first ``count`` ops that is on stream ``asked``, ``NOTHING`` for none."""
    order = sorted_by(stream, np.arange(len(stream)))
    width = len(stream) + 1
    key = stream[order].astype(np.int64) * width + order
    at = np.searchsorted(key, asked.astype(np.int64) * width + count) - 1
    found = (at >= 0) & (len(order) > 0)
    out = np.full(len(asked), NOTHING)
    hit = order[at[found]]
    out[found] = np.where(stream[hit] == asked[found], hit, NOTHING)
    return out


def position(used: Column, rows: Column) -> Column:
    """Place of each row in the sorted ``used``, -1 where it is not there."""
    if not len(used):
        return np.full(len(rows), NOTHING)
    at = np.minimum(np.searchsorted(used, rows), len(used) - 1)
    return np.where(used[at] == rows, at, NOTHING)


def edges(ops: Placed, streams: int) -> Edges:
    """Part queued ops from free ones, and give each the other regime's length from the medians."""
    before = predecessors(ops.stream)
    first = np.append(True, ops.event[1:] != ops.event[:-1])
    has = before != NOTHING
    free_since = np.where(has, ops.end[before], NEVER)
    inner = ~first & has & (ops.event[before] == ops.event)
    gap, lat = ops.start - free_since, ops.start - ops.ready
    queued = has & ~inner & (free_since > ops.ready + CLEAR_NS)
    free = (free_since < ops.begin - CLEAR_NS) & (lat < LATE_NS) & ~inner
    usual_gap = _median(gap[queued & (gap >= 0) & (gap < LATE_NS)], GAPS_NS[0])
    usual_gap = min(max(usual_gap, GAPS_NS[0]), GAPS_NS[1])
    usual_lat = _median(lat[free & first & has], DEPENDENCY_NS)
    out_gap = np.where(queued | inner, gap, np.where(free, usual_gap, np.minimum(gap, usual_gap)))
    out_lat = np.where(inner, NEVER, np.where(queued, np.minimum(usual_lat, lat), lat))
    tails = np.full(streams, NEVER)
    started = ~has & first & (lat >= LATE_NS)
    tails[ops.stream[started]] = ops.start[started] - usual_gap
    out_gap[~has], out_lat[started] = usual_gap, usual_lat
    dep, dep_lat = _dependencies(ops, before, first, out_gap, out_lat, usual_gap, usual_lat)
    late = first & has & ~queued & ~free & (lat >= LATE_NS) & (dep == NOTHING) & ~ops.staged
    return Edges(out_gap, out_lat, dep, dep_lat, tails, int(lat[late].sum()), usual_gap, usual_lat)


def _dependencies(
    ops: Placed, before: Column, first: Column, gap: Column, lat: Column, usual_gap: int,
    usual_lat: int,
) -> tuple[Column, Column]:  # fmt: skip
    """Waits across streams; where they held an op back, its other edges are usual (in place)."""
    dep = ops.waits_for.copy()
    dep_lat = np.full(len(dep), DEPENDENCY_NS)
    has_op = before != NOTHING
    # Nodes of one graph on several streams: after the op of the same call that ended last before.
    side = np.flatnonzero(~first & ~(has_op & (ops.event[before] == ops.event)))
    for node in side.tolist():
        low = int(np.searchsorted(ops.event, ops.event[node]))
        earlier = np.arange(low, node)
        done = earlier[ops.end[earlier] <= ops.start[node]]
        if len(done):
            dep[node] = done[np.argmax(ops.end[done])]
            gap[node], lat[node] = usual_gap, NEVER
            dep_lat[node] = ops.start[node] - ops.end[dep[node]]
        else:
            gap[node], lat[node] = usual_gap, lat[low] + ops.start[node] - ops.start[low]
    rows = np.flatnonzero(first & (dep != NOTHING))
    held = ops.end[dep[rows]]
    other = np.maximum(np.where(has_op, ops.end[before], NEVER)[rows], ops.ready[rows])
    binding = rows[(held >= other) & (held <= ops.start[rows] + DEPENDENCY_NS)]
    dep_lat[binding] = ops.start[binding] - ops.end[dep[binding]]
    gap[binding], lat[binding] = usual_gap, usual_lat
    loose = np.setdiff1d(rows, binding)
    slack = ops.start[loose] - ops.end[dep[loose]]
    dep_lat[loose] = np.minimum(dep_lat[loose], slack)
    return dep, dep_lat


def _median(values: Column, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise
