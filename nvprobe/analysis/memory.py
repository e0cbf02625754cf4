"""Device memory over time, from allocation events: peak and growth by device, step and path.

Events come from nsys (driver allocations, ``--cuda-memory-usage=true``) or torch.profiler
(``profile_memory=True``: the caching allocator's own). Where the source tells the bytes in use
after each event, those are taken; else they are summed up. nsys lists what was allocated before the
window as events at time 0: the level that it begins with. Without such a list ``from_zero`` is
False, and a peak is what came *on top* of a level that is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, levels, push_up
from nvprobe.analysis.model import Steps
from nvprobe.attribution.model import Attribution, PathTable
from nvprobe.trace import NO_ROW, Column, MemoryEvents, Table, column

__all__ = ["DeviceMemory", "Memory", "PathMemory", "StepMemory", "memory"]


@dataclass(frozen=True, slots=True)
class DeviceMemory(Table):
    """One row a process and device that allocated."""

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
    """One row a step and device of its process; ``step`` is the row of the steps."""

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
    told = bool((events.allocated >= 0).all())
    before = np.zeros(len(events), bool) if told else events.time <= 0
    begun, events = events.take(before), events.take(~before)
    series = _series(events, begun)
    path = attribution.open.at(events.thread, events.time)
    in_use = np.zeros(len(events), np.int64)
    for one in series:
        in_use[one.rows] = one.in_use
    return Memory(
        from_zero=told or len(begun) > 0,
        of_driver=not told,
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
        told = events.allocated[rows]
        in_use = baseline + np.cumsum(events.bytes[rows])
        if len(rows) and (told >= 0).all():
            in_use, baseline = told, int(told[0] - events.bytes[rows[0]])
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
    for child in reversed(levels(paths)[1:]):
        np.maximum.at(peak, paths.parent[child], peak[child])
        np.logical_or.at(seen, paths.parent[child], seen[child])
    rows = np.flatnonzero(seen)
    allocations, allocated, growth = (push_up(paths, row)[rows] for row in sums)
    return PathMemory(rows, allocations, allocated, growth, peak[rows])
