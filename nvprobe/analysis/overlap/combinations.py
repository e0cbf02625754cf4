"""Which classes of work and which paths run at once, and for how long.

Classes of work that share a device's time: compute, communication, copies, sets.

Most ops overlap nothing; they count with their class, alone. Only the others (the *crowd*) are
swept: each class of a device, path or step is first reduced to its union, so that the rest is
toggling bits at the borders of disjoint intervals.

Definition: docs/attribution.md, "Overlap". Oracle: tests/oracle_overlap.py.

Which streams, and which paths, ran at the same time, and for how long.

Each stream (path) of a device is reduced to its union first; two of them share the time in which
their intervals meet. Pairs are met in sorted order: an interval meets those that start before it
ends, so the work is as large as the answer.

Definition: docs/attribution.md, "Overlap". Oracle: tests/oracle_overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from nvprobe.analysis.grouping import distinct, push_up, sums
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.timelines import DeviceOrder
from nvprobe.attribution.intervals import expand, merged, slices, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, OpKind, Ops, Table, column


class Work(IntEnum):
    """The classes that overlap is measured in; the value is the bit of a combination."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY_H2D = 2
    COPY_D2H = 3
    COPY_D2D = 4
    COPY_P2P = 5
    COPY_H2H = 6
    MEMSET = 7

    @property
    def label(self) -> str:
        """The class's name in reports and in the JSON."""
        return self.name.lower()


COMPUTE, COMMUNICATION = 1 << Work.COMPUTE, 1 << Work.COMMUNICATION
_DIRECTIONS = {
    Work.COPY_H2D: (1, 3, 11),
    Work.COPY_D2H: (2, 4, 12),
    Work.COPY_P2P: (10,),
    Work.COPY_H2H: (9,),
}
"""CUPTI copy kinds; every other kind stays on the device."""


@dataclass(frozen=True, slots=True)
class Combinations(Table):
    """Time in which exactly the classes of a combination ran, by group."""

    group: Column = column("i8")
    """A device, path or step row, as the maker says."""
    mask: Column = column("i8")
    """Bits of :class:`Work`."""
    ns: Column = column("i8")


def combination_name(mask: int) -> str:
    """``compute`` for a class alone, ``compute+copy_h2d`` for two together."""
    return "+".join(work.label for work in Work if mask >> work & 1)


def work_classes(ops: Ops, activity: Column) -> Column:
    """int64 :class:`Work` per op; ``activity`` is that of ``attributed.classify``."""
    work = np.full(len(ops), Work.COMPUTE, np.int64)
    work[activity == Activity.COMMUNICATION] = Work.COMMUNICATION
    work[activity == Activity.COPY] = Work.COPY_D2D
    for direction, kinds in _DIRECTIONS.items():
        work[np.isin(ops.copy_kind, kinds) & (ops.kind == OpKind.MEMCPY)] = direction
    work[activity == Activity.MEMSET] = Work.MEMSET
    return work


@dataclass(frozen=True, slots=True)
class Crowd:
    """The ops that overlap others, and those that do not."""

    alone: Column
    """Rows of ``trace.ops`` that overlap no other op of their device."""
    row: Column
    """Rows of the others, by device and start."""

    @classmethod
    def of(cls, order: DeviceOrder) -> Crowd:
        """Separate the crowd from those that ran alone."""
        alone = order.alone
        return cls(order.row[alone], order.row[~alone])


def by_device(attribution: Attribution, crowd: Crowd, work: Column) -> Combinations:
    """Combinations per device; group is the row of the device + 1 (0: unknown)."""
    ops = attribution.trace.ops
    group = ops.device.astype(np.int64) + 1
    return _combined(attribution, crowd, work, group, group)


def by_step(attribution: Attribution, crowd: Crowd, work: Column, step: Column) -> Combinations:
    """Combinations of the ops of each step (-1: none), per device, summed over devices."""
    ops = attribution.trace.ops
    if not len(step):
        return Combinations.empty()
    devices = len(attribution.trace.devices) + 1
    lane = np.where(step >= 0, step * devices + ops.device + 1, -1)
    return _combined(attribution, crowd, work, lane, step)


def _combined(
    attribution: Attribution, crowd: Crowd, work: Column, lane: Column, group: Column
) -> Combinations:
    """Sweep each lane; sum its combinations into the group that its ops have in common."""
    ops = attribution.trace.ops
    alone, rows = crowd.alone[group[crowd.alone] >= 0], crowd.row[group[crowd.row] >= 0]
    at, mask, ns = _sweep(*_unions(lane[rows], work[rows], ops.start[rows], ops.end[rows]))
    group_of = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    group_of[lane[rows]] = group[rows]
    return _summed(
        np.concatenate((group[alone], group_of[at])),
        np.concatenate((1 << work[alone], mask)),
        np.concatenate((attribution.duration[alone], ns)),
    )


def by_path(attribution: Attribution, crowd: Crowd, work: Column) -> Combinations:
    """Combinations of each path's ops (inclusive), per device, summed over devices."""
    ops, paths = attribution.trace.ops, attribution.paths
    if not len(paths.parent):
        return Combinations.empty()
    alone = crowd.alone[attribution.owner[crowd.alone] >= 0]
    parts = []
    for kind in Work:
        rows = alone[work[alone] == kind]
        own = sums(attribution.owner[rows], attribution.duration[rows], len(paths.parent))
        total = push_up(paths, own)
        here = np.flatnonzero(total)
        parts.append((here, np.full(len(here), 1 << kind), total[here]))
    rows = crowd.row[attribution.owner[crowd.row] >= 0]
    devices = len(attribution.trace.devices) + 1
    for union in inclusive_unions(attribution, ops, work, rows):
        at, mask, ns = _sweep(*union)
        parts.append((at // devices, mask, ns))
    return _summed(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


Intervals = tuple[Column, Column, Column, Column]
"""(lane, class, start, end): disjoint for each lane and class."""


def inclusive_unions(
    attribution: Attribution, ops: Ops, work: Column, rows: Column
) -> list[Intervals]:
    """Unions of some owned ops per path, device and class, by level of the trie from the leaves up.

    Lane: path * (devices + 1) + device + 1, as a device may be unknown.
    """
    paths, devices = attribution.paths, len(attribution.trace.devices) + 1
    owner, device, work = attribution.owner[rows], ops.device[rows] + 1, work[rows]
    start, end = ops.start[rows], ops.end[rows]
    out: list[Intervals] = []
    nothing = np.empty(0, np.int64)
    below: Intervals = (nothing, nothing, nothing, nothing)
    depth = paths.depth[owner]
    for level in range(len(paths.levels()) - 1, -1, -1):
        here = depth == level
        lane = owner[here].astype(np.int64) * devices + device[here]
        own = (lane, work[here], start[here], end[here])
        union = _unions(*(np.concatenate(pair) for pair in zip(below, own, strict=True)))
        out.append(union)
        if level:
            lane = paths.parent[union[0] // devices].astype(np.int64) * devices
            below = (lane + union[0] % devices, *union[1:])
    return out


def _unions(lane: Column, work: Column, start: Column, end: Column) -> Intervals:
    """Each class of each lane as disjoint intervals that do not touch."""
    code, start, end = merged(lane.astype(np.int64) * len(Work) + work, start, end)
    return code // len(Work), code % len(Work), start, end


def _sweep(lane: Column, work: Column, start: Column, end: Column) -> tuple[Column, ...]:
    """(lane, mask, ns) of every stretch in which the set of running classes does not change."""
    at, mask, begin, until = stretches(lane, work, start, end)
    return at, mask, until - begin


def stretches(
    lane: Column, work: Column, start: Column, end: Column
) -> tuple[Column, Column, Column, Column]:
    """(lane, mask, start, end) of every stretch with the same classes running, at least one."""
    lane, bit = np.tile(lane, 2), np.tile(1 << work, 2)
    time = np.concatenate((start, end))
    order = sorted_by(lane, time)
    lane, time = lane[order], time[order]
    # Intervals of a class are disjoint: every border toggles its bit, and a lane ends with none.
    mask = np.bitwise_xor.accumulate(bit[order]) if len(order) else bit
    here = np.flatnonzero((mask[:-1] != 0) & (time[1:] > time[:-1]))
    return lane[here], mask[here], time[here], time[here + 1]


def _summed(group: Column, mask: Column, ns: Column) -> Combinations:
    keys, code = distinct(group.astype(np.int64) << len(Work) | mask)
    total = sums(code, ns, len(keys))
    keys, total = keys[total > 0], total[total > 0]
    order = np.argsort(keys, kind="stable")
    group, mask = keys >> len(Work), keys & ((1 << len(Work)) - 1)
    return Combinations(group=group[order], mask=mask[order], ns=total[order])


def exposed_stretches(attribution: Attribution, crowd: Crowd, work: Column) -> Intervals:
    """Communication with no compute beside it: stretches by device (row + 1)."""
    ops = attribution.trace.ops
    busy = np.isin(work, (Work.COMPUTE, Work.COMMUNICATION))
    rows = crowd.row[busy[crowd.row]]
    union = _unions(ops.device[rows] + 1, work[rows], ops.start[rows], ops.end[rows])
    lane, mask, start, end = stretches(*union)
    here = (mask & COMMUNICATION != 0) & (mask & COMPUTE == 0)
    single = crowd.alone[work[crowd.alone] == Work.COMMUNICATION]
    return (
        np.concatenate((lane[here], ops.device[single].astype(np.int64) + 1)),
        np.full(int(here.sum()) + len(single), Work.COMMUNICATION),
        np.concatenate((start[here], ops.start[single])),
        np.concatenate((end[here], ops.end[single])),
    )


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
