"""Device memory over time: from allocation events, and from a snapshot of the allocator.

Device memory over time, from allocation events: peak and growth by device, step and path.

Events come from nsys (driver allocations, ``--cuda-memory-usage=true``) or torch.profiler
(``profile_memory=True``: the caching allocator's own). Where the source records the bytes in use
after each event, those are taken; else they are summed up. nsys lists what was allocated before the
window as events at time 0: the level that it begins with. Without such a list ``from_zero`` is
False, and a peak is what came *on top* of a level that is not known.

What was in memory at the peak, by source line, from a torch memory snapshot.

The history is replayed: an allocation lives from its event to the free of the same address. What
the snapshot still holds and no event allocated was there before the history began. Bytes are those
the allocator handed out (rounded up), so that the sum at the end is the snapshot's own.

*Passing* memory was allocated before the peak and freed after it, inside the history: activations
and buffers, which checkpointing can recompute. *Lasting* memory was still there when the snapshot
was taken: weights, optimizer state, leaks. The oracle is in tests/unit/analysis/test_snapshot.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, push_up
from nvprobe.analysis.model import Steps
from nvprobe.attribution.model import Attribution, PathTable
from nvprobe.readers.memory_snapshot import MemorySnapshot
from nvprobe.trace import NO_ROW, Column, MemoryEvents, Table, column


@dataclass(frozen=True, slots=True)
class DeviceMemory(Table):
    """One row per process and device that allocated."""

    process: Column = column("i4")
    device: Column = column("i4")
    events: Column = column("i8")
    peak_bytes: Column = column("i8")
    peak_time: Column = column("i8")
    peak_path: Column = column("i4")
    """Path open at the peak's allocation, -1 for none: also where the window begins with it."""
    growth_bytes: Column = column("i8")
    """In use at the end of the window less at its begin."""
    peak_reserved_bytes: Column = column("i8")
    """Most that the caching allocator held from the driver, -1 unknown."""
    capacity_bytes: Column = column("i8")
    """Memory of the device, -1 unknown."""


@dataclass(frozen=True, slots=True)
class StepMemory(Table):
    """One row per step and device of its process; ``step`` is the row of the steps."""

    step: Column = column("i8")
    device: Column = column("i4")
    peak_bytes: Column = column("i8")
    growth_bytes: Column = column("i8")


@dataclass(frozen=True, slots=True)
class PathMemory(Table):
    """Inclusive per path that allocated or freed, or below which something did."""

    path: Column = column("i4")
    allocations: Column = column("i8")
    allocated_bytes: Column = column("i8")
    growth_bytes: Column = column("i8")
    peak_bytes: Column = column("i8")
    """Most in use on any one device right after an event in the path."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory use of a capture."""

    from_zero: bool
    of_driver: bool
    """Events are the driver's: what is taken from it, the cache of an allocator included."""
    devices: DeviceMemory
    steps: StepMemory
    paths: PathMemory


@dataclass(frozen=True, slots=True)
class _Series:
    """Events of one process on one device, in time order."""

    process: int
    device: int
    rows: Column
    time: Column
    in_use: Column
    """Bytes in use after each event."""
    baseline: int
    """Bytes in use before the first."""


def memory(attribution: Attribution, steps: Steps) -> Memory | None:
    """Memory by device, step and path; None where no allocation on a device was recorded."""
    events = attribution.trace.memory
    if not (events.device >= 0).any():
        return None
    events = events.take(np.flatnonzero(events.device >= 0))
    counted = bool((events.allocated >= 0).all())
    before = np.zeros(len(events), bool) if counted else events.time <= 0
    begun, events = events.take(before), events.take(~before)
    series = _series(events, begun)
    path = attribution.open.at(events.thread, events.time)
    in_use = np.zeros(len(events), np.int64)
    for one in series:
        in_use[one.rows] = one.in_use
    return Memory(
        from_zero=counted or len(begun) > 0,
        of_driver=not counted,
        devices=_devices(attribution, events, series, path),
        steps=_steps(series, steps),
        paths=_by_path(attribution.paths, events, path, in_use),
    )


def _series(events: MemoryEvents, begun: MemoryEvents) -> list[_Series]:
    """Split by process and device; few, so a loop over them is cheap.

    ``begun`` is what was allocated when the window began.
    """
    out = []
    keys, _ = distinct(np.append(_key(events), _key(begun)))
    for key in np.sort(keys).tolist():
        rows = np.flatnonzero(_key(events) == key)
        rows = rows[np.argsort(events.time[rows], kind="stable")]
        baseline = int(begun.bytes[_key(begun) == key].sum())
        allocated = events.allocated[rows]
        in_use = baseline + np.cumsum(events.bytes[rows])
        if len(rows) and (allocated >= 0).all():
            in_use, baseline = allocated, int(allocated[0] - events.bytes[rows[0]])
        out.append(_Series(key >> 32, key & 0xFFFFFFFF, rows, events.time[rows], in_use, baseline))
    return out


def _key(events: MemoryEvents) -> Column:
    """Process and device in one number."""
    return events.process.astype(np.int64) << 32 | events.device.astype(np.int64)


def _devices(
    attribution: Attribution, events: MemoryEvents, series: list[_Series], path: Column
) -> DeviceMemory:
    capacity = attribution.trace.devices.memory_bytes
    rows = []
    for one in series:
        level = np.append(one.baseline, one.in_use)
        time, place = np.append(0, one.time), np.append(NO_ROW, path[one.rows])
        at = int(np.argmax(level))
        reserved = int(events.reserved[one.rows].max(initial=-1))
        rows.append(
            (
                one.process, one.device, len(one.rows), int(level[at]), time[at], place[at],
                int(level[-1]) - one.baseline, reserved, int(capacity[one.device]),
            )
        )  # fmt: skip
    columns = np.array(rows, np.int64).T
    return DeviceMemory(*columns)


def _steps(series: list[_Series], steps: Steps) -> StepMemory:
    """Level at begin and end, and the most in between; of steps that saw no event, the level."""
    parts = [np.empty((4, 0), np.int64)]
    for one in series:
        row = np.flatnonzero(steps.process == one.process)
        level = np.append(one.baseline, one.in_use)
        first = np.searchsorted(one.time, steps.start[row])
        last = np.searchsorted(one.time, steps.end[row])
        # The levels of a step are level[first] … level[last]; reduceat takes half-open pairs.
        bounds = np.stack([first, last + 1], axis=1).reshape(-1)
        most = np.maximum.reduceat(np.append(level, level[-1]), bounds)[::2] if len(row) else row
        device = np.full(len(row), one.device)
        parts.append(np.stack([row, device, most, level[last] - level[first]]))
    return StepMemory(*np.concatenate(parts, axis=1))


def _by_path(paths: PathTable, events: MemoryEvents, path: Column, in_use: Column) -> PathMemory:
    """Sum, and take the most, up the tree."""
    size = len(paths.parent)
    known = path >= 0
    taken = known & (events.bytes > 0)
    sums = np.zeros((3, size), np.int64)
    np.add.at(sums[0], path[taken], 1)
    np.add.at(sums[1], path[taken], events.bytes[taken])
    np.add.at(sums[2], path[known], events.bytes[known])
    peak = np.full(size, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(peak, path[known], in_use[known])
    seen = np.zeros(size, bool)
    seen[path[known]] = True
    for child in reversed(paths.levels()[1:]):
        np.maximum.at(peak, paths.parent[child], peak[child])
        np.logical_or.at(seen, paths.parent[child], seen[child])
    rows = np.flatnonzero(seen)
    allocations, allocated, growth = (push_up(paths, row)[rows] for row in sums)
    return PathMemory(rows, allocations, allocated, growth, peak[rows])


@dataclass(frozen=True, slots=True)
class Holders(Table):
    """Who held memory at the peak, the largest first."""

    line: Column = column("i4")
    """Row of ``snapshot.lines``."""
    path: Column = column("i4")
    """Row of ``attribution.paths`` open when it was allocated, -1 unknown."""
    bytes: Column = column("i8")
    passing_bytes: Column = column("i8")
    allocations: Column = column("i8")


@dataclass(frozen=True, slots=True)
class SnapshotPeak:
    """The fullest instant of one device."""

    device: int
    peak_bytes: int
    """Allocated at that instant."""
    end_bytes: int
    """Allocated when the snapshot was taken."""
    reserved_bytes: int
    """Held from the driver when the snapshot was taken."""
    holders: Holders


@dataclass(frozen=True, slots=True)
class _Lives:
    """One row an allocation: from event ``born`` (-1: before the history) to before ``freed``."""

    born: Column
    freed: Column
    bytes: Column
    line: Column


def snapshot_peaks(
    snapshot: MemorySnapshot, attribution: Attribution | None = None
) -> tuple[SnapshotPeak, ...]:
    """Peak of every device that the snapshot knows.

    With the attribution of a capture of the same run, on a clock with a known origin, holders are
    given by path as well; otherwise their path is -1.
    """
    devices = np.union1d(snapshot.blocks.device, snapshot.events.device)
    paths = _paths(snapshot, attribution)
    return tuple(_peak(snapshot, int(device), paths) for device in devices)


def _peak(snapshot: MemorySnapshot, device: int, paths: Column) -> SnapshotPeak:
    rows = np.flatnonzero(snapshot.events.device == device)
    events = snapshot.events.take(rows)
    here = snapshot.blocks.take(snapshot.blocks.device == device)
    lives = _lives(events.address, events.bytes, events.line, here.address, here.bytes, here.line)
    change = np.zeros(len(rows) + 1, np.int64)
    np.add.at(change, lives.born + 1, lives.bytes)
    ends = lives.freed <= len(rows) - 1
    np.subtract.at(change, lives.freed[ends] + 1, lives.bytes[ends])
    in_use = np.cumsum(change)
    at = int(np.argmax(in_use)) - 1
    alive = (lives.born <= at) & (lives.freed > at)
    path = np.full(len(alive), NO_ROW, np.int32)
    known = lives.born >= 0
    path[known] = paths[rows[lives.born[known]]]
    passing = (lives.born >= 0) & ends
    reserved = snapshot.reserved
    return SnapshotPeak(
        device=device,
        peak_bytes=int(in_use[at + 1]),
        end_bytes=int(in_use[-1]),
        reserved_bytes=int(reserved[device]) if device < len(reserved) else 0,
        holders=_holders(lives, path, passing, alive),
    )


def _lives(
    address: Column, size: Column, line: Column, held: Column, held_size: Column, held_line: Column
) -> _Lives:
    """Pair each allocation with the next free of its address; then add what was never seen born."""
    n = len(address)
    order = np.lexsort((np.arange(n), address))
    sorted_address, allocates = address[order], size[order] > 0
    same = np.append(sorted_address[1:] == sorted_address[:-1], False)
    follows = np.append(~allocates[1:], False) & same & allocates
    freed_at = np.where(follows, np.append(order[1:], n), n)
    born = order[allocates]
    known_free = np.zeros(n, bool)
    known_free[freed_at[allocates & follows]] = True
    orphans = np.flatnonzero((size < 0) & ~known_free)
    unborn = ~np.isin(held, address[born[freed_at[allocates] == n]])
    return _Lives(
        born=np.concatenate([born, np.full(len(orphans) + int(unborn.sum()), -1)]),
        freed=np.concatenate([freed_at[allocates], orphans, np.full(int(unborn.sum()), n)]),
        bytes=np.concatenate([size[born], -size[orphans], held_size[unborn]]),
        line=np.concatenate([line[born], np.zeros(len(orphans), np.int64), held_line[unborn]]),
    )


def _holders(lives: _Lives, path: Column, passing: Column, alive: Column) -> Holders:
    """Group what is alive by line and path."""
    pairs = np.stack([lives.line[alive], path[alive]], axis=1)
    groups, place = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    place = place.reshape(-1)
    size = lives.bytes[alive]
    total = np.zeros(len(groups), np.int64)
    np.add.at(total, place, size)
    passed = np.zeros(len(groups), np.int64)
    np.add.at(passed, place, np.where(passing[alive], size, 0))
    order = np.argsort(-total, kind="stable")
    return Holders(
        line=groups[order, 0],
        path=groups[order, 1],
        bytes=total[order],
        passing_bytes=passed[order],
        allocations=np.bincount(place, minlength=len(groups))[order],
    )


def _paths(snapshot: MemorySnapshot, attribution: Attribution | None) -> Column:
    """Per event: what the initiating thread had open; -1 without a common clock or outside it."""
    unknown = np.full(len(snapshot.events), NO_ROW, np.int32)
    if attribution is None or attribution.trace.origin_ns is None:
        return unknown
    trace = attribution.trace
    threads = attribution.initiating[attribution.initiating >= 0]
    if len(threads) != 1 or not len(snapshot.events):
        return unknown  # of several processes the snapshot does not say whose it is
    time = snapshot.events.time - trace.origin_ns
    inside = (time >= trace.start_ns) & (time < trace.end_ns)
    thread = np.where(inside, threads[0], NO_ROW)
    return attribution.open.at(thread, time)
