"""How much of a stretch of time a set of intervals covers, for millions of stretches at once.

A :class:`Coverage` holds, per group (a thread, a device), the union of some intervals and the
length covered before each of them. Every question then is one binary search a query: the length
covered between two instants is the difference of two lengths covered *until* an instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.intervals import merged, runs, sorted_by
from nvprobe.trace import Column

__all__ = ["Coverage", "by_group"]


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
