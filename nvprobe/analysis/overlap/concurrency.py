"""Which streams, and which paths, ran at the same time, and for how long.

Each stream (path) of a device is reduced to its union first; two of them share the time in which
their intervals meet. Pairs are met in sorted order: an interval meets those that start before it
ends, so the work is as large as the answer.

Definition: docs/attribution.md, "Overlap". Oracle: tests/oracle_overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.waiting.lanes import expand
from nvprobe.attribution.intervals import merged, slices, sorted_by
from nvprobe.trace import Column, Table, column

__all__ = ["Pairs", "alone_time", "shared_time"]

_AT_ONCE = 2_000_000
"""So many meetings are held in memory at a time."""


@dataclass(frozen=True, slots=True)
class Pairs(Table):
    """Time that two members of a device shared; ``first < second``."""

    device: Column = column("i8")
    """Row of the device + 1 (0: unknown)."""
    first: Column = column("i8")
    second: Column = column("i8")
    ns: Column = column("i8")


def shared_time(device: Column, member: Column, start: Column, end: Column) -> Pairs:
    """Per device and pair of members: the time in which both ran. Members are codes >= 0."""
    size = int(member.max(initial=-1)) + 1
    code, start, end = merged(device.astype(np.int64) * size + member, start, end)
    device, member = code // max(size, 1), code % max(size, 1)
    order = sorted_by(device, start)
    device, member, start, end = device[order], member[order], start[order], end[order]
    keys, total = np.empty(0, np.int64), np.empty(0, np.int64)
    for one, other in _meetings(device, start, end):
        ns = np.minimum(end[one], end[other]) - start[other]
        low = np.minimum(member[one], member[other])
        high = np.maximum(member[one], member[other])
        pair = (device[one] * size + low) * size + high
        keys, row = distinct(np.concatenate((keys, pair)))
        total = sums(row, np.concatenate((total, ns)), len(keys))
    order = np.argsort(keys, kind="stable")
    keys, total = keys[order], total[order]
    size = max(size, 1)
    return Pairs(keys // size // size, keys // size % size, keys % size, total)


def _meetings(device: Column, start: Column, end: Column) -> Iterator[tuple[Column, Column]]:
    """Positions (one, other) of intervals that meet, ``other`` starting no sooner; in chunks."""
    position = np.arange(len(start))
    high = np.empty(len(start), np.int64)
    for low, last in slices(device):
        high[low:last] = low + np.searchsorted(start[low:last], end[low:last], "left")
    count = np.cumsum(np.maximum(high - position - 1, 0))
    first = 0
    while first < len(start):
        done = count[first - 1] if first else 0
        last = max(int(np.searchsorted(count, done + _AT_ONCE, "right")), first + 1)
        row, other = expand(position[first:last] + 1, high[first:last])
        yield row + first, other
        first = last


def alone_time(device: Column, member: Column, start: Column, end: Column) -> Column:
    """Per member code: the time in which it ran and no other member of its device did."""
    size = int(member.max(initial=-1)) + 1
    code, start, end = merged(device.astype(np.int64) * max(size, 1) + member, start, end)
    device, member = np.tile(code // max(size, 1), 2), np.tile(code % max(size, 1), 2)
    time = np.concatenate((start, end))
    step = np.repeat([1, -1], len(start))
    order = sorted_by(device, time)
    device, time, step, member = device[order], time[order], step[order], member[order]
    running, which = np.cumsum(step), np.cumsum(step * member)
    single = np.flatnonzero(running[:-1] == 1)  # then the sum of those running is the one itself
    return sums(which[single], time[single + 1] - time[single], size)
