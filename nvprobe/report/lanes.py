"""Slices that overlap on one track, spread over as few lanes as they need.

A slice takes the lowest lane that is free at its start. Slices that nest come out as a stack: each
lies one lane below what is around it. Oracle: tests/unit/report/test_lanes.py.
"""

from __future__ import annotations

import heapq

import numpy as np

from nvprobe.attribution.intervals import slices
from nvprobe.trace import Column


def track_order(track: Column, start: Column, end: Column) -> Column:
    """Row order by track and start; of those that start together the longest first."""
    return np.lexsort((-end, start, track))


def lanes(track: Column, start: Column, end: Column) -> Column:
    """int32 lane of each slice, given in :func:`track_order`; no two on a lane overlap.

    A slice without length takes up one nanosecond.
    """
    end = np.maximum(end, start + 1)
    lane = _open_before(track, start, end)
    for low, high in slices(track):
        here = slice(low, high)
        if not _fits(lane[here], start[here], end[here]):
            lane[here] = _lowest_free(start[here], end[here])
    return lane


def _open_before(track: Column, start: Column, end: Column) -> Column:
    """How many earlier slices of the track are open at each start: the lane, where slices nest."""
    out = np.empty(len(track), np.int32)
    for low, high in slices(track):
        ended = np.searchsorted(np.sort(end[low:high]), start[low:high], "right")
        out[low:high] = np.arange(high - low) - ended
    return out


def _fits(lane: Column, start: Column, end: Column) -> bool:
    """Whether no two slices of one lane overlap."""
    order = np.argsort(lane, kind="stable")
    same = lane[order][1:] == lane[order][:-1]
    return not (same & (start[order][1:] < end[order][:-1])).any()


def _lowest_free(start: Column, end: Column) -> Column:
    """The lowest lane free at each start, one slice after the other."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used, out = 0, np.empty(len(start), np.int32)
    for row, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, used)
            used += 1
        out[row] = heapq.heappop(free)
        heapq.heappush(busy, (finish, int(out[row])))
    return out
