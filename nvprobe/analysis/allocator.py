"""What torch's caching allocator counted, from readings between steps (docs/sidecar.md).

A reading belongs to the edge of a step that it lies near to: within ``NEAR_NS``, which is more than
clocks are apart, and a quarter of the step. Changes over a step are the differences of the readings
at its two edges; a step without both has none.

Peaks are counted since the program's begin, so a step's own peak is known only where the counter
rose in it. The oracle is in tests/unit/analysis/test_allocator.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.model import UNKNOWN, Steps
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, Trace, column
from nvprobe.trace.sidecar import AllocatorSamples

NEAR_NS = 250_000
_COUNTED = ("retries", "device_allocs", "device_frees", "out_of_memory")


@dataclass(frozen=True, slots=True)
class AllocatorDevices(Table):
    """One row per process and device; ``UNKNOWN`` where this torch does not count something."""

    process: Column = column("i4")
    device: Column = column("i4")
    """``NO_ROW`` where it is not known which one it is."""
    readings: Column = column("i8")
    peak_bytes: Column = column("i8")
    """Most bytes allocated, since the program's begin."""
    peak_reserved_bytes: Column = column("i8")
    capacity_bytes: Column = column("i8")
    """Memory of the device, -1 unknown."""
    steps: Column = column("i8")
    """Steps with readings at both edges; what follows is of them."""
    growth_bytes: Column = column("i8")
    """Median growth of a step, which one that warms up does not move."""
    retries: Column = column("i8")
    device_allocs: Column = column("i8")
    device_frees: Column = column("i8")
    out_of_memory: Column = column("i8")


@dataclass(frozen=True, slots=True)
class AllocatorSteps(Table):
    """One row per step and device with readings at both edges; ``step`` is the row of the steps."""

    step: Column = column("i8")
    device: Column = column("i4")
    allocated_bytes: Column = column("i8")
    """In use at its end."""
    growth_bytes: Column = column("i8")
    peak_bytes: Column = column("i8")
    """``UNKNOWN`` where the step did not raise the program's peak."""
    retries: Column = column("i8")
    device_allocs: Column = column("i8")
    device_frees: Column = column("i8")
    out_of_memory: Column = column("i8")


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """The allocator over a capture."""

    devices: AllocatorDevices
    steps: AllocatorSteps


def allocator_use(attribution: Attribution, steps: Steps) -> AllocatorUse | None:
    """Readings by device and step; None where none were taken."""
    trace = attribution.trace
    samples = trace.sidecar.allocator
    if not len(samples):
        return None
    capacity = np.append(trace.devices.memory_bytes, -1)
    keys = np.unique(np.stack([samples.process, samples.ordinal], axis=1), axis=0)
    devices, parts = [], [AllocatorSteps.empty()]
    for process, ordinal in keys.tolist():  # few: one a GPU
        rows = np.flatnonzero((samples.process == process) & (samples.ordinal == ordinal))
        series = samples.take(rows[np.argsort(samples.time[rows], kind="stable")])
        device = int(series.device[0])
        part = _steps(series, steps, np.flatnonzero(same_process(trace, process)[steps.process]))
        peaks = series.peak_allocated.max(), series.peak_reserved.max()
        devices.append((process, device, len(series), *peaks, capacity[device], *_summed(part)))
        parts.append(part)
    return AllocatorUse(AllocatorDevices(*np.array(devices, np.int64).T), _joined(parts))


def same_process(trace: Trace, process: int) -> Column:
    """Bool per row of the processes: it is that one, in whichever of several torch traces."""
    pid = trace.processes.pid
    return np.asarray(pid == pid[process])


def _steps(series: AllocatorSamples, steps: Steps, row: Column) -> AllocatorSteps:
    """Differences between the readings at both edges of these steps, all of one process."""
    near = np.minimum((steps.end[row] - steps.start[row]) // 4, NEAR_NS)
    first, last = (_nearest(series.time, edge[row], near) for edge in (steps.start, steps.end))
    both = (first >= 0) & (last >= 0) & (first < last)
    row, first, last = row[both], first[both], last[both]
    peak = series.peak_allocated
    return AllocatorSteps(
        step=row,
        device=series.device[last],
        allocated_bytes=series.allocated[last],
        growth_bytes=series.allocated[last] - series.allocated[first],
        peak_bytes=np.where(peak[last] > peak[first], peak[last], UNKNOWN),
        **{name: _difference(getattr(series, name), first, last) for name in _COUNTED},
    )


def _summed(part: AllocatorSteps) -> tuple[int, ...]:
    """The last columns of :class:`AllocatorDevices`."""
    counted = (getattr(part, name) for name in _COUNTED)
    sums = (int(c.sum()) if (c != UNKNOWN).all() else UNKNOWN for c in counted)
    return len(part), int(np.median(part.growth_bytes)) if len(part) else UNKNOWN, *sums


def _nearest(time: Column, edge: Column, near: Column) -> Column:
    """The reading nearest to each edge, ``NO_ROW`` where none is near."""
    after = np.searchsorted(time, edge).clip(0, len(time) - 1)
    before = np.maximum(after - 1, 0)
    at = np.where(np.abs(time[before] - edge) <= np.abs(time[after] - edge), before, after)
    return np.where(np.abs(time[at] - edge) <= near, at, NO_ROW)


def _difference(counter: Column, first: Column, last: Column) -> Column:
    """How far a counter went; ``UNKNOWN`` where it was not read."""
    known = (counter[first] >= 0) & (counter[last] >= 0)
    return np.where(known, counter[last] - counter[first], UNKNOWN)


def _joined(parts: list[AllocatorSteps]) -> AllocatorSteps:
    names = parts[0].columns()
    return AllocatorSteps(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
