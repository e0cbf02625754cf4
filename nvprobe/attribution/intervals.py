"""Interval algebra on int64 columns: sorted sweeps, no loop over events.

All intervals are half-open, ``[start, end)``. A *group* is any int code (a thread, a device, a
stream, a device and path pair): intervals of different groups never meet. A `Coverage` holds the
union of some intervals and the length covered before each: any length covered between two instants
is the difference of two binary searches. `Instants` are points in time by group.
Oracles: tests/unit/attribution/test_intervals.py, tests/unit/analysis/test_coverage.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.trace import Column


def sorted_by(group: Column, start: Column) -> Column:
    """Row order by group, then start; equal keys keep their order (stable)."""
    order = np.argsort(start, kind="stable")
    codes = group[order]
    if len(codes) and int(codes.min()) >= 0 and int(codes.max()) < 1 << 16:
        codes = codes.astype(np.uint16)  # numpy sorts 16-bit integers by radix: linear
    return order[np.argsort(codes, kind="stable")]


def runs(codes: Column) -> Column:
    """First position of each run of equal values in a sorted (or grouped) column."""
    if not len(codes):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))


def slices(codes: Column) -> zip[tuple[int, int]]:
    """(first, last + 1) of each run of equal values in a sorted (or grouped) column."""
    firsts = runs(codes)
    bounds = np.append(firsts, len(codes))
    return zip(firsts.tolist(), bounds[1:].tolist(), strict=False)


def running_max(group: Column, values: Column) -> Column:
    """Greatest value so far within each run of equal ``group``."""
    if not len(values):
        return values
    firsts = runs(group)
    low, high = int(values.min()), int(values.max())
    if (high - low + 1) * len(firsts) < 1 << 62:
        # Lift each run above the one before: one accumulate then respects the borders.
        lift = np.zeros(len(values), np.int64)
        lift[firsts[1:]] = high - low + 1
        lift = np.cumsum(lift)
        return np.maximum.accumulate(values - low + lift) - lift + low
    out = values.copy()
    for first, last in slices(group):
        np.maximum.accumulate(values[first:last], out=out[first:last])
    return out


def merged(group: Column, start: Column, end: Column) -> tuple[Column, Column, Column]:
    """The union of the intervals of each group as disjoint intervals that do not touch.

    Returns (group, start, end), sorted by group and start. Empty and reversed intervals add
    nothing.
    """
    keep = end > start
    if not keep.all():
        group, start, end = group[keep], start[keep], end[keep]
    order = sorted_by(group, start)
    group, start, end = group[order], start[order], end[order]
    if not len(group):
        return group, start, end
    reach = running_max(group, end)
    opens = np.empty(len(group), bool)
    opens[0] = True
    opens[1:] = (group[1:] != group[:-1]) | (start[1:] > reach[:-1])
    firsts = np.flatnonzero(opens)
    lasts = np.append(firsts[1:], len(group)) - 1
    return group[firsts], start[firsts], reach[lasts]


def union_length(group: Column, start: Column, end: Column, groups: int) -> Column:
    """Length of the union per group, int64 of shape ``(groups,)``."""
    code, first, last = merged(group, start, end)
    out = np.zeros(groups, np.int64)
    np.add.at(out, code, last - first)
    return out


def gaps(group: Column, start: Column, end: Column) -> tuple[Column, Column, Column]:
    """The maximal intervals between a group's first start and last end that nothing covers.

    Returns (group, start, end), sorted by group and start.
    """
    code, first, last = merged(group, start, end)
    inner = code[1:] == code[:-1]
    return code[1:][inner], last[:-1][inner], first[1:][inner]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The union of intervals per group: disjoint, sorted, with the length covered so far."""

    first: Column
    """int64 of shape (groups + 1,): intervals of group g are ``first[g] … first[g + 1]``."""
    start: Column
    end: Column
    before: Column
    """int64: length covered by the group's earlier intervals."""

    @classmethod
    def of(cls, group: Column, start: Column, end: Column, groups: int) -> Coverage:
        """Cover ``[start, end)`` of each group ``0 … groups - 1``."""
        return cls.of_disjoint(*merged(group, start, end), groups)

    @classmethod
    def of_disjoint(cls, group: Column, start: Column, end: Column, groups: int) -> Coverage:
        """The same for disjoint intervals sorted by group and start."""
        first = np.searchsorted(group, np.arange(groups + 1))
        total = np.concatenate(([0], np.cumsum(end - start)))
        return cls(first, start, end, total[:-1] - total[first[group]])

    @property
    def empty(self) -> bool:
        """Whether nothing is covered in any group."""
        return not len(self.start)

    def length(self, group: int) -> int:
        """Length covered in one group."""
        low, last = self.first[group], self.first[group + 1] - 1
        if last < low:
            return 0
        return int(self.before[last] + self.end[last] - self.start[last])

    def until(self, group: Column, time: Column) -> Column:
        """Length covered before each instant."""
        out = np.zeros(len(time), np.int64)
        if self.empty:
            return out
        for code, queries in by_group(group):
            out[queries] = self.of_one(code, time[queries])
        return out

    def of_one(self, group: int, time: Column) -> Column:
        """``until`` for instants of one group."""
        low, high = self.first[group], self.first[group + 1]
        if low == high:
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self.start[low:high], time) - 1
        inside = np.maximum(at, 0) + low
        length = self.before[inside] + np.minimum(time, self.end[inside]) - self.start[inside]
        return np.where(at >= 0, length, 0)

    def between(self, group: Column, start: Column, end: Column) -> Column:
        """Length covered between two instants, ``start <= end``."""
        return self.until(group, end) - self.until(group, start)

    def contains(self, group: Column, time: Column) -> Column:
        """bool: the instant is covered."""
        return self.until(group, time + 1) > self.until(group, time)

    def after_uncovered(self, group: Column, start: Column, length: Column) -> Column:
        """The first instant at which ``length`` ns since ``start`` were *not* covered."""
        out = start + length
        if self.empty:
            return out
        passed = start - self.until(group, start) + length
        for code, queries in by_group(group):
            low, high = self.first[code], self.first[code + 1]
            # Uncovered time before each interval: it stands still inside one.
            free = self.start[low:high] - self.before[low:high]
            covering = np.searchsorted(free, passed[queries])
            total = (
                self.before[high - 1] + self.end[high - 1] - self.start[high - 1]
                if high > low
                else 0
            )
            covered = np.append(self.before[low:high], total)[covering]
            out[queries] = passed[queries] + covered
        return out


def by_group(group: Column) -> Iterator[tuple[int, Column | slice]]:
    """(code, rows) of each distinct group code; rows keep their order."""
    if not len(group):
        return
    if int(group.min()) == int(group.max()):
        yield int(group[0]), slice(None)
        return
    order = sorted_by(group, np.zeros(len(group), np.int8))
    heads = runs(group[order])
    for head, tail in zip(heads, np.append(heads[1:], len(order)), strict=True):
        yield int(group[order[head]]), order[head:tail]


@dataclass(frozen=True, slots=True)
class Instants:
    """Instants by group and time."""

    first: Column
    """int64 of shape (groups + 1,): those of group G are ``first[G] … first[G + 1]``."""
    time: Column

    @classmethod
    def of(cls, group: Column, time: Column, groups: int) -> Instants:
        """Sort instants into ``groups`` groups; those of group -1 are left out."""
        known = group >= 0
        group, time = group[known], time[known]
        order = sorted_by(group, time)
        return cls(np.searchsorted(group[order], np.arange(groups + 1)), time[order])

    def count_before(self, group: Column, time: Column, side: str = "left") -> Column:
        """Position behind the group's instants before ``time`` (``right``: up to ``time``)."""
        out = np.zeros(len(group), np.int64)
        for code, rows in by_group(group):
            low, high = self.first[code], self.first[code + 1]
            out[rows] = low + np.searchsorted(self.time[low:high], time[rows], side)  # type: ignore[call-overload]
        return out


def expand(low: Column, high: Column) -> tuple[Column, Column]:
    """(row, position) of every position in ``low … high - 1`` of each row."""
    count = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(count)), count)
    begin = np.cumsum(count) - count
    return row, np.arange(len(row)) - begin[row] + low[row]


def firsts(lane: Column, other: Column) -> Column:
    """Where each lane's rows begin in a column sorted by lane, for all lanes of both columns."""
    lanes = int(max(lane.max(initial=0), other.max(initial=0))) + 1
    return np.searchsorted(lane, np.arange(lanes + 1))
