"""Which ranges are open on a thread at an instant: the tree of ranges, and look-ups in it.

Definition (docs/attribution.md): ``path(T, t)`` are the ranges on thread T with start <= t < end,
ordered by start (ties: longer first, then row order). Ranges of one thread almost always nest; then
a range's parent is found by counting and the path at an instant by climbing. Where ranges cross
(two NVTX domains may), the *zone* from the start of the first to the end of the last range that
crosses another is answered by searching the sorted ranges for the next one still open, which needs
no nesting. Outside of zones every open range nests with all others, so counting is right there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvprobe.attribution.intervals import running_max, slices, sorted_by
from nvprobe.trace import NO_ROW, Column


def row_type(rows: int) -> type[np.signedinteger[Any]]:
    """What references to a table of so many rows are kept in: half the memory where it fits."""
    return np.int32 if rows <= np.iinfo(np.int32).max else np.int64


@dataclass(frozen=True, slots=True)
class Zones:
    """Where ranges cross: disjoint zones, sorted by the position of their first range."""

    first: Column
    """int64 position of the first range of each zone."""
    limit: Column
    """int64 first position of the next thread."""
    end: Column
    """int64 end of the last range of each zone."""

    @classmethod
    def none(cls) -> Zones:
        """No range crosses another."""
        return cls(*(np.empty(0, np.int64) for _ in range(3)))

    def hold(self, last: Column, time: Column) -> Column:
        """bool: the instant, with the position last started there, lies in a zone."""
        if not len(self.first):
            return np.zeros(len(last), bool)
        zone = np.searchsorted(self.first, last, side="right") - 1
        found = np.maximum(zone, 0)
        return (zone >= 0) & (last < self.limit[found]) & (time < self.end[found])

    def at(self, position: Column) -> Column:
        """Position of the first range of the zone that holds each position."""
        return self.first[np.searchsorted(self.first, position, side="right") - 1]


@dataclass(frozen=True, slots=True)
class Nesting:
    """The ranges that can be open (positive length), sorted by thread and :func:`nest`'s order.

    A *position* is a row of these sorted columns.
    """

    row: Column
    """Row of the range table, per position; of :func:`row_type`."""
    start: Column
    end: Column
    parent: Column
    """Position of the innermost range open at its start, -1; of :func:`row_type`.

    Where ``crossing``: the innermost one around the whole zone.
    """
    depth: Column
    """int32 number of ranges open at its start."""
    crossing: Column
    """bool: the range starts in a zone of ranges that cross."""
    zones: Zones
    first: Column
    """int64 of shape (threads + 1,): positions of thread T are ``first[T] … first[T + 1]``."""
    reach: tuple[Column, ...]
    """Sparse table over ``end`` (level k: greatest end of the 2**k positions from here)."""

    def last_started(self, thread: Column, time: Column) -> Column:
        """Position of the last range of each thread with start <= time, -1 for none."""
        if len(thread) and (thread == thread[0]).all():
            return self._last_started_on(int(thread[0]), time)
        out = np.full(len(time), NO_ROW, np.int64)
        order = np.argsort(thread, kind="stable")
        for head, tail in slices(thread[order]):
            queries = order[head:tail]
            out[queries] = self._last_started_on(int(thread[queries[0]]), time[queries])
        return out

    def _last_started_on(self, thread: int, time: Column) -> Column:
        low, high = self.first[thread], self.first[thread + 1]
        at = np.searchsorted(self.start[low:high], time, side="right")
        return np.where(at > 0, low + at - 1, NO_ROW)

    def innermost(self, last: Column, time: Column) -> Column:
        """The innermost open position at each instant, from ``last_started``; -1 for none.

        Only valid for instants outside crossing clusters.
        """
        at = last.copy()
        if not len(self.end):
            return at
        climbing = np.flatnonzero((at >= 0) & (self.end[at] <= time))
        while len(climbing):
            above = self.parent[at[climbing]]
            at[climbing] = above
            climbing = climbing[(above >= 0) & (self.end[above] <= time[climbing])]
        return at

    def innermost_open(self, last: Column, time: Column) -> Column:
        """The innermost open position at any instant: the last one in order still open; -1."""
        crossing = self.in_crossing(last, time)
        at = self.innermost(np.where(crossing, NO_ROW, last), time)
        hard = np.flatnonzero(crossing)
        if len(hard):
            at[hard] = self._last_open(last[hard], time[hard])
        return at

    def in_crossing(self, last: Column, time: Column) -> Column:
        """bool: the instant, with the position last started there, lies in a crossing zone."""
        return self.zones.hold(last, time)

    def open_chains(self, last: Column, time: Column) -> tuple[Column, Column]:
        """All open ranges of each instant, outermost first: (query, position), by query.

        Works with and without crossings.
        """
        crossing = self.in_crossing(last, time)
        parts = [
            self._chains_by_climbing(np.flatnonzero(~crossing), last, time),
            self._chains_by_search(np.flatnonzero(crossing), last, time),
        ]
        query = np.concatenate([part[0] for part in parts])
        position = np.concatenate([part[1] for part in parts])
        # Positions of one thread are sorted by start: the order of a path.
        order = np.lexsort((position, query))
        return query[order], position[order]

    def _chains_by_climbing(
        self, queries: Column, last: Column, time: Column
    ) -> tuple[Column, Column]:
        at = self.innermost(last[queries], time[queries])
        found: list[tuple[Column, Column]] = []
        while len(queries):
            inside = at >= 0
            queries, at = queries[inside], at[inside]
            found.append((queries, at))
            at = self.parent[at]
        return _concatenated(found)

    def _chains_by_search(
        self, queries: Column, last: Column, time: Column
    ) -> tuple[Column, Column]:
        """One turn a nesting level: the next position up to ``last`` whose end is after time."""
        at = self._cluster_begin(last[queries])
        found: list[tuple[Column, Column]] = []
        while len(queries):
            at = self._next_open(at, last[queries], time[queries])
            inside = at <= last[queries]
            queries, at = queries[inside], at[inside]
            found.append((queries, at))
            at = at + 1
        return _concatenated(found)

    def _last_open(self, last: Column, time: Column) -> Column:
        """Greatest position up to ``last`` with end > time; in a zone there is one."""
        low, at = self._cluster_begin(last), last.copy()
        for level in range(len(self.reach) - 1, -1, -1):
            first = at - (1 << level) + 1
            fits = first >= low
            skip = np.zeros(len(at), bool)
            skip[fits] = self.reach[level][first[fits]] <= time[fits]
            at[skip] -= 1 << level
        return at

    def _cluster_begin(self, position: Column) -> Column:
        """First position of the cluster: the last one at or before with nothing open."""
        roots = np.flatnonzero(self.depth == 0)
        return roots[np.searchsorted(roots, position, side="right") - 1]

    def _next_open(self, low: Column, high: Column, time: Column) -> Column:
        """First position in ``low … high`` with end > time, or ``high + 1``.

        The run to skip is shorter than twice the largest block, so one descent through the block
        sizes (the binary digits of its length) ends exactly behind it.
        """
        at = low.copy()
        for level in range(len(self.reach) - 1, -1, -1):
            reach = self.reach[level]
            fits = at + (1 << level) <= high + 1
            skip = np.zeros(len(at), bool)
            skip[fits] = reach[at[fits]] <= time[fits]
            at[skip] += 1 << level
        return at


def nest(thread: Column, start: Column, end: Column, threads: int) -> Nesting:
    """Sort ranges into a :class:`Nesting`; ranges without length are never open and left out."""
    keep = end > start
    rows = np.flatnonzero(keep)
    rows = rows[_order(thread[rows], start[rows], end[rows])]
    thread, start, end = thread[rows], start[rows], end[rows]
    first = np.searchsorted(thread, np.arange(threads + 1))
    depth = _depths(start, end, first)
    parent = _parents(depth)
    zones, reach = _zones(thread, start, end, parent, first)
    crossing = zones.hold(np.arange(len(rows)), start)
    parent[crossing] = parent[zones.at(np.flatnonzero(crossing))]
    return Nesting(
        row=rows.astype(row_type(len(keep))),
        start=start,
        end=end,
        parent=parent,
        depth=depth,
        crossing=crossing,
        zones=zones,
        first=first,
        reach=reach,
    )


def _order(thread: Column, start: Column, end: Column) -> Column:
    """By thread, start, longer first, row. Exports are nearly sorted: stable sorts are linear."""
    order = sorted_by(thread, start)
    same = (start[order][1:] == start[order][:-1]) & (thread[order][1:] == thread[order][:-1])
    if not same.any():
        return order
    tied = np.zeros(len(order), bool)
    tied[1:] |= same
    tied[:-1] |= same
    at = np.flatnonzero(tied)
    rows = order[at]
    order[at] = rows[np.lexsort((rows, -end[rows], start[rows], thread[rows]))]
    return order


def _depths(start: Column, end: Column, first: Column) -> Column:
    """Ranges of the same thread open at each start: those started before, less those ended."""
    depth = np.empty(len(start), np.int32)
    for low, high in zip(first[:-1], first[1:], strict=True):
        if low == high:
            continue
        ended = np.searchsorted(np.sort(end[low:high], kind="stable"), start[low:high], "right")
        depth[low:high] = np.arange(high - low) - ended
    return depth


def _parents(depth: Column) -> Column:
    """Position of the last range before with one less open; exact where ranges nest.

    Depth grows by at most one from a range to the next, so such a range exists on the thread.
    """
    parent = np.full(len(depth), NO_ROW, row_type(len(depth)))
    if not len(depth):
        return parent
    codes = depth.astype(np.uint16) if int(depth.max()) < 1 << 16 else depth
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    for level in range(1, len(bounds) - 1):
        above = order[bounds[level - 1] : bounds[level]]
        here = order[bounds[level] : bounds[level + 1]]
        parent[here] = above[np.searchsorted(above, here) - 1]
    return parent


def _zones(
    thread: Column, start: Column, end: Column, parent: Column, first: Column
) -> tuple[Zones, tuple[Column, ...]]:
    """The zones of crossing ranges, and (where there are any) the sparse table over ``end``.

    If any two ranges cross, the first end that is not the innermost one's belongs to a range whose
    child (by counting, still right up to there) ends later: that is looked for first, for nearly
    every capture has no crossing at all.
    """
    child = np.flatnonzero(parent >= 0)
    if not (end[child] > end[parent[child]]).any():
        return Zones.none(), ()
    reach = _sparse_table(end)
    inside = np.empty(len(start), np.int64)  # last position that starts before this one's end
    for low, high in zip(first[:-1], first[1:], strict=True):
        inside[low:high] = low + np.searchsorted(start[low:high], end[low:high]) - 1
    furthest = _greatest(reach, np.arange(len(start)), inside)
    crossed = np.flatnonzero(furthest > end)
    group, furthest = thread[crossed], running_max(thread[crossed], furthest[crossed])
    opens = np.ones(len(crossed), bool)
    opens[1:] = (group[1:] != group[:-1]) | (start[crossed[1:]] >= furthest[:-1])
    begin = np.flatnonzero(opens)
    last = np.append(begin[1:], len(crossed)) - 1
    return Zones(crossed[begin], first[group[begin] + 1], furthest[last]), reach


def _greatest(reach: tuple[Column, ...], low: Column, high: Column) -> Column:
    """Greatest end of positions ``low … high`` (at least one), from the sparse table."""
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1  # of the largest power of two
    out = np.empty(len(low), np.int64)
    for size in np.unique(level).tolist():
        here = np.flatnonzero(level == size)
        table = reach[size]
        out[here] = np.maximum(table[low[here]], table[high[here] - (1 << size) + 1])
    return out


def _sparse_table(end: Column) -> tuple[Column, ...]:
    """Greatest end of each run of 2**k positions."""
    levels = [end]
    width = 1
    while 2 * width <= len(end):
        below = levels[-1]
        levels.append(np.maximum(below[:-width], below[width:]))
        width *= 2
    return tuple(levels)


def _concatenated(parts: list[tuple[Column, Column]]) -> tuple[Column, Column]:
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
