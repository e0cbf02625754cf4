"""JSON of what the findings room knows: findings, kernel traits, work by path, memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvprobe.analysis.kernels.classes import UNKNOWN, Activity, Family, Precision
from nvprobe.analysis.kernels.counters import METRICS, Averages, Bound
from nvprobe.analysis.kernels.occupancy import Limiter
from nvprobe.analysis.memory import Memory
from nvprobe.analysis.model import UNKNOWN as UNCOUNTED
from nvprobe.analysis.result import Analysis
from nvprobe.trace import Column, Table

__all__ = [
    "counters",
    "counters_of_paths",
    "finding_rows",
    "kernel_traits",
    "memory",
    "places_of_paths",
    "work_of_paths",
]

Row = dict[str, Any]


def finding_rows(analysis: Analysis) -> list[Row] | None:
    """Findings in their order; null where they were not computed."""
    if analysis.findings is None:
        return None
    paths = analysis.attribution.paths
    return [
        {
            "id": one.id,
            "title": one.title,
            "severity": one.severity,
            "path": paths.text(one.path) if one.path >= 0 else None,
            "sources": list(one.sources),
            "source_roles": list(one.roles),
            "evidence": dict(one.evidence),
            "saves_ns": list(one.saves_ns),
            "try": list(one.advice),
        }
        for one in analysis.findings
    ]


def kernel_traits(analysis: Analysis) -> dict[str, list[Any]]:
    """Columns beside those of ``kernels``; null where unknown."""
    traits, rows = analysis.traits, len(analysis.kernels)
    names = (
        "class",
        "family",
        "precision",
        "tensor_cores",
        "occupancy",
        "waves",
        "tail",
        "limiter",
    )
    if traits is None:
        return {name: [None] * rows for name in names}
    return {
        "class": [Activity(value).label for value in traits.activity.tolist()],
        "family": [Family(value).label for value in traits.family.tolist()],
        "precision": [
            None if value == UNKNOWN else Precision(value).label
            for value in traits.precision.tolist()
        ],
        "tensor_cores": [
            None if value == UNKNOWN else bool(value) for value in traits.tensor_cores.tolist()
        ],
        "occupancy": _fractions(traits.occupancy),
        "waves": _fractions(traits.waves),
        "tail": _fractions(traits.tail),
        "limiter": [
            None if value < 0 else Limiter(value).name.lower() for value in traits.limiter.tolist()
        ],
    }


def work_of_paths(analysis: Analysis) -> dict[int, Row]:
    """``{path row: {flops, flops_per_s, bytes_per_s, intensity, mfu, …}}`` of paths with shapes."""
    table = analysis.work
    if table is None:
        return {}
    fields = ("flops", "bytes", "flops_per_s", "bytes_per_s", "intensity", "mfu")
    columns = {name: _fractions(getattr(table, name)) for name in fields}
    return {
        path: {
            "items": int(table.items[row]),
            "gpu_ns": int(table.gpu_ns[row]),
            **{name: values[row] for name, values in columns.items()},
        }
        for row, path in enumerate(table.path.tolist())
    }


def places_of_paths(analysis: Analysis, rows: list[int]) -> list[list[Row] | None]:
    """Per path: the lines at which its last range begins; null where no sidecar tells places."""
    if analysis.places is None:
        return [None] * len(rows)
    return [[line._asdict() for line in analysis.places.own(row)] for row in rows]


def counters(analysis: Analysis) -> Row | None:
    """Sampling and the averages of each kernel; those of paths stand beside the ranges."""
    use = analysis.counters
    if use is None:
        return None
    names = analysis.attribution.trace.texts(use.kernels.key)
    kernels = dict(zip(names, _averages(use.kernels), strict=True))
    order = [
        name for name in analysis.attribution.trace.texts(analysis.kernels.name) if name in kernels
    ]
    return {
        "samples": use.samples,
        "period_ns": use.period_ns,
        "clock_mhz": _fractions(np.array([use.lowest_clock_mhz, use.highest_clock_mhz])),
        "kernels": [{"name": name, **kernels[name]} for name in order],
    }


def counters_of_paths(analysis: Analysis) -> dict[int, Row]:
    """``{path row: {sm_active, …, samples, bound}}`` of paths that samples cover."""
    use = analysis.counters
    return (
        {} if use is None else dict(zip(use.paths.key.tolist(), _averages(use.paths), strict=True))
    )


def _averages(table: Averages) -> list[Row]:
    columns: dict[str, list[Any]] = {
        "samples": table.samples.tolist(),
        "sampled_ns": table.sampled_ns.tolist(),
        **{metric: _fractions(getattr(table, metric)) for metric, _ in METRICS},
        "bound": [None if b < 0 else Bound(b).name.lower() for b in table.bound.tolist()],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def memory(analysis: Analysis) -> Row | None:
    """Memory by device, step and path, each with its source; null where nothing was recorded."""
    use, snapshot, counted = analysis.memory, _snapshot(analysis), _allocator(analysis)
    if use is None and snapshot is None and counted is None:
        return None
    row: Row = {"snapshot": snapshot, "allocator": counted}
    return row if use is None else {**row, **_events(analysis, use)}


def _events(analysis: Analysis, use: Memory) -> Row:
    """What allocation events tell."""
    return {
        "source": f"allocation events of {'the driver' if use.of_driver else 'torch'}",
        "from_zero": use.from_zero,
        "devices": _memory_devices(analysis, use),
        "steps": [
            {
                "index": int(analysis.steps.index[step]),
                "device": device,
                "peak_bytes": peak,
                "growth_bytes": growth,
            }
            for step, device, peak, growth in zip(
                *(c.tolist() for c in use.steps.columns().values()), strict=True
            )
        ],
        "paths": [
            {"path": analysis.attribution.paths.text(path), **row}
            for path, row in zip(use.paths.path.tolist(), _path_memory(use), strict=True)
        ],
    }


def _allocator(analysis: Analysis) -> Row | None:
    """What torch's caching allocator counted, read between steps."""
    use = analysis.allocator
    if use is None:
        return None
    ids = [*analysis.attribution.trace.devices.id.tolist(), None]
    devices = [
        {
            "device": ids[row.pop("device")],
            "capacity_bytes": _known(row.pop("capacity_bytes")),
            **{name: None if value == UNCOUNTED else value for name, value in row.items()},
        }
        for row in _records(use.devices)
    ]
    steps = [
        {
            "index": int(analysis.steps.index[row.pop("step")]),
            "device": ids[row.pop("device")],
            **{name: None if value == UNCOUNTED else value for name, value in row.items()},
        }
        for row in _records(use.steps)
    ]
    return {"source": "allocator counters, read between steps", "devices": devices, "steps": steps}


def _records(table: Table) -> list[Row]:
    names = table.columns()
    rows = zip(*(values.tolist() for values in names.values()), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _snapshot(analysis: Analysis) -> Row | None:
    """Who held memory at the peak of the snapshot, by line and path."""
    snapshot, paths = analysis.snapshot, analysis.attribution.paths
    if snapshot is None:
        return None
    return {
        "file": snapshot.file,
        "segments_taken": snapshot.segments_taken,
        "segments_returned": snapshot.segments_returned,
        "out_of_memory": snapshot.out_of_memory,
        "devices": [
            {
                "device": peak.device,
                "peak_bytes": peak.peak_bytes,
                "end_bytes": peak.end_bytes,
                "reserved_bytes": peak.reserved_bytes,
                "holders": [
                    {
                        "line": snapshot.lines[line] or None,
                        "path": paths.text(path) if path >= 0 else None,
                        "bytes": size,
                        "passing_bytes": passing,
                        "allocations": count,
                    }
                    for line, path, size, passing, count in zip(
                        *(c.tolist() for c in peak.holders.columns().values()), strict=True
                    )
                ],
            }
            for peak in analysis.snapshot_peaks
        ],
    }


def _memory_devices(analysis: Analysis, use: Memory) -> list[Row]:
    table, paths = use.devices, analysis.attribution.paths
    ids = analysis.attribution.trace.devices.id
    return [
        {
            "process": int(table.process[row]),
            "device": int(ids[table.device[row]]),
            "events": int(table.events[row]),
            "peak_bytes": int(table.peak_bytes[row]),
            "peak_ns": int(table.peak_time[row]),
            "peak_path": paths.text(int(table.peak_path[row]))
            if table.peak_path[row] >= 0
            else None,
            "growth_bytes": int(table.growth_bytes[row]),
            "peak_reserved_bytes": _known(table.peak_reserved_bytes[row]),
            "capacity_bytes": _known(table.capacity_bytes[row]),
        }
        for row in range(len(table))
    ]


def _path_memory(use: Memory) -> list[Row]:
    names = ("allocations", "allocated_bytes", "growth_bytes", "peak_bytes")
    columns = [getattr(use.paths, name).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _known(value: Any) -> int | None:
    return None if value < 0 else int(value)


def _fractions(column: Column) -> list[float | None]:
    return [None if math.isnan(value) or math.isinf(value) else value for value in column.tolist()]
