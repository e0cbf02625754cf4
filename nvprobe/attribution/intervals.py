"""Interval algebra on int64 columns: sorted sweeps, no loop over events.

All intervals are half-open, ``[start, end)``. A *group* is any int code (a device, a stream, a
device and path pair): intervals of different groups never meet. The slow oracle of every function
here is in tests/oracle_intervals.py.
"""

from __future__ import annotations

import numpy as np

from nvprobe.trace import Column

__all__ = ["gaps", "merged", "runs", "slices", "sorted_by", "union_length"]


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
