"""Memory by device, step and path: allocation events, torch's counters, a snapshot."""

from __future__ import annotations

from typing import Annotated

from nvprobe.analysis.memory import Holders
from nvprobe.analysis.memory import Memory as MemoryUse
from nvprobe.analysis.result import Analysis
from nvprobe.readers.memory_snapshot import MemorySnapshot
from nvprobe.report.schema import path_texts, rows
from nvprobe.trace import Column
from nvprobe.trace.rows import Row, is_, ns, size


class MemoryDevice(Row, frozen=True):
    """Allocation events of a process on a GPU."""

    process: Annotated[int, is_("id of the process")]
    device: Annotated[int, is_("physical number of the GPU")]
    events: Annotated[int, is_("allocations and frees")]
    peak_bytes: Annotated[int, size("most in use")]
    peak_ns: Annotated[int, ns("when, since the begin of the capture")]
    peak_path: Annotated[str | None, is_("path that was open then")]
    growth_bytes: Annotated[int, size("in use at the end less at the begin")]
    peak_reserved_bytes: Annotated[int | None, size("most that the caching allocator held")]
    capacity_bytes: Annotated[int | None, size("memory of the GPU")]


class MemoryStep(Row, frozen=True):
    """Allocation events of a step."""

    index: Annotated[int, is_("number of the step")]
    device: Annotated[int | None, is_("physical number of the GPU")]
    peak_bytes: Annotated[int | None, size("most in use")]
    growth_bytes: Annotated[int | None, size("in use at its end less at its begin")]


class MemoryPath(Row, frozen=True):
    """Allocation events of a path, inclusive."""

    path: Annotated[str | None, is_("the path")]
    allocations: Annotated[int, is_("allocations")]
    allocated_bytes: Annotated[int, size("their sizes")]
    growth_bytes: Annotated[int, size("allocated less freed")]
    peak_bytes: Annotated[int, size("most in use right after an event in it")]


class AllocatorDevice(Row, frozen=True):
    """torch's caching allocator of a process on a GPU."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    capacity_bytes: Annotated[int | None, size("memory of the GPU")]
    process: Annotated[int, is_("id of the process")]
    readings: Annotated[int, is_("readings of the counters")]
    peak_bytes: Annotated[int | None, size("most allocated since the program began")]
    peak_reserved_bytes: Annotated[int | None, size("most held since the program began")]
    steps: Annotated[int | None, is_("steps with readings at both edges; the rest is of these")]
    growth_bytes: Annotated[int | None, size("median growth of a step")]
    retries: Annotated[int | None, is_("allocations that had to empty the cache first")]
    device_allocs: Annotated[int | None, is_("allocations from the driver")]
    device_frees: Annotated[int | None, is_("frees to the driver")]
    out_of_memory: Annotated[int | None, is_("allocations that failed")]


class AllocatorStep(Row, frozen=True):
    """The same counters over a step: differences of the readings at its edges."""

    index: Annotated[int, is_("number of the step")]
    device: Annotated[int | None, is_("physical number of the GPU")]
    allocated_bytes: Annotated[int | None, size("in use at its end")]
    growth_bytes: Annotated[int | None, size("in use at its end less at its begin")]
    peak_bytes: Annotated[int | None, size("the program's peak, where the step raised it")]
    retries: Annotated[int | None, is_("allocations that had to empty the cache first")]
    device_allocs: Annotated[int | None, is_("allocations from the driver")]
    device_frees: Annotated[int | None, is_("frees to the driver")]
    out_of_memory: Annotated[int | None, is_("allocations that failed")]


class Allocator(Row, frozen=True):
    """What torch's caching allocator counted."""

    source: Annotated[str, is_("what the numbers come from")]
    devices: Annotated[list[AllocatorDevice], is_("per process and GPU")]
    steps: Annotated[list[AllocatorStep], is_("per step and GPU")]


class SnapshotHolder(Row, frozen=True):
    """Who held memory at the peak."""

    line: Annotated[str | None, is_("line that allocated it")]
    path: Annotated[str | None, is_("path that was open then")]
    bytes: Annotated[int, size("held at the peak")]
    passing_bytes: Annotated[int, size("of these freed later in the step")]
    allocations: Annotated[int, is_("allocations")]


class SnapshotDevice(Row, frozen=True):
    """The fullest instant of a GPU."""

    device: Annotated[int, is_("number of the GPU as the program sees it")]
    peak_bytes: Annotated[int, size("allocated at that instant")]
    end_bytes: Annotated[int, size("allocated when the snapshot was taken")]
    reserved_bytes: Annotated[int, size("held from the driver when it was taken")]
    holders: Annotated[list[SnapshotHolder], is_("who held it, the largest first")]


class Snapshot(Row, frozen=True):
    """A memory snapshot of torch (`--memory-snapshot`)."""

    file: Annotated[str, is_("name of the file")]
    segments_taken: Annotated[int, is_("segments taken from the driver")]
    segments_returned: Annotated[int, is_("segments returned")]
    out_of_memory: Annotated[int, is_("allocations that failed")]
    devices: Annotated[list[SnapshotDevice], is_("per GPU")]


class Memory(Row, frozen=True):
    """What is known of memory; the fields of allocation events are null without any."""

    snapshot: Annotated[Snapshot | None, is_("of `--memory-snapshot`")]
    allocator: Annotated[Allocator | None, is_("torch's counters, read between steps")]
    source: Annotated[str | None, is_("whose allocation events")]
    from_zero: Annotated[bool | None, is_("whether what was in use at the begin is known")]
    devices: Annotated[list[MemoryDevice] | None, is_("allocation events per GPU")]
    steps: Annotated[list[MemoryStep] | None, is_("allocation events per step")]
    paths: Annotated[list[MemoryPath] | None, is_("allocation events per path")]


def memory(analysis: Analysis) -> Memory | None:
    """Memory with its sources; null where nothing was recorded."""
    use, snapshot, allocator = analysis.memory, _snapshot(analysis), _allocator(analysis)
    if use is None:
        if snapshot is None and allocator is None:
            return None
        return Memory(snapshot, allocator, None, None, None, None, None)
    return Memory(
        snapshot,
        allocator,
        source=f"allocation events of {'the driver' if use.of_driver else 'torch'}",
        from_zero=use.from_zero,
        devices=_devices(analysis, use),
        steps=rows(
            MemoryStep,
            use.steps,
            index=analysis.steps.index[use.steps.step].tolist(),
            device=analysis.attribution.trace.devices.id[use.steps.device].tolist(),
        ),
        paths=rows(MemoryPath, use.paths, path=path_texts(analysis, use.paths.path)),
    )


def _devices(analysis: Analysis, use: MemoryUse) -> list[MemoryDevice]:
    table, known = use.devices, analysis.attribution.trace.devices
    return rows(
        MemoryDevice,
        table,
        device=known.id[table.device].tolist(),
        peak_ns=table.peak_time.tolist(),
        peak_path=path_texts(analysis, table.peak_path),
        peak_reserved_bytes=_known(table.peak_reserved_bytes),
        capacity_bytes=_known(table.capacity_bytes),
    )


def _known(column: Column) -> list[int | None]:
    return [None if value < 0 else value for value in column.tolist()]


def _allocator(analysis: Analysis) -> Allocator | None:
    use = analysis.allocator
    if use is None:
        return None
    ids = [*analysis.attribution.trace.devices.id.tolist(), None]
    devices = rows(
        AllocatorDevice,
        use.devices,
        device=[ids[row] for row in use.devices.device.tolist()],
        capacity_bytes=_known(use.devices.capacity_bytes),
    )
    steps = rows(
        AllocatorStep,
        use.steps,
        index=analysis.steps.index[use.steps.step].tolist(),
        device=[ids[row] for row in use.steps.device.tolist()],
    )
    return Allocator("allocator counters, read between steps", devices, steps)


def _snapshot(analysis: Analysis) -> Snapshot | None:
    snapshot = analysis.snapshot
    if snapshot is None:
        return None
    devices = [
        SnapshotDevice(
            peak.device,
            peak.peak_bytes,
            peak.end_bytes,
            peak.reserved_bytes,
            _holders(analysis, snapshot, peak.holders),
        )
        for peak in analysis.snapshot_peaks
    ]
    return Snapshot(
        snapshot.file,
        snapshot.segments_taken,
        snapshot.segments_returned,
        snapshot.out_of_memory,
        devices,
    )


def _holders(analysis: Analysis, snapshot: MemorySnapshot, table: Holders) -> list[SnapshotHolder]:
    """Who held memory at the peak, by line and path."""
    return rows(
        SnapshotHolder,
        table,
        line=[snapshot.lines[line] or None for line in table.line.tolist()],
        path=path_texts(analysis, table.path),
    )
