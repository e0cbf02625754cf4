"""The event tables of one export, read once and freed of rows that no time axis can hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvprobe.readers.nsys.strings import distinct
from nvprobe.readers.nsys.tables import Rows, Tables
from nvprobe.readers.nsys.versions import LIBRARIES, LONGEST_TIME
from nvprobe.trace import Column

__all__ = [
    "CALLCHAINS",
    "CALLS",
    "CPU_FAULTS",
    "CUDA_EVENTS",
    "GPU_FAULTS",
    "KERNELS",
    "MEMORY",
    "METRICS",
    "OPS",
    "OS_CALLS",
    "OS_STACKS",
    "OVERHEADS",
    "PYTHON_BACKTRACES",
    "PYTHON_SAMPLES",
    "SAMPLES",
    "SAMPLE_STACKS",
    "SCHEDULE",
    "SYNCS",
    "UNKNOWN",
    "Encoded",
    "Frames",
    "possible",
]

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
OPS = (
    KERNELS,
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
CALLCHAINS = "CUDA_CALLCHAINS"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
METRICS = "GPU_METRICS"
CPU_FAULTS, GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
OS_CALLS, OS_STACKS = "OSRT_API", "OSRT_CALLCHAINS"
SAMPLES, SAMPLE_STACKS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
PYTHON_SAMPLES, PYTHON_BACKTRACES = "PYTHON_SAMPLES", "PYTHON_BACKTRACES"
"""Not tables of an export: NVTX marks that are Python stacks (`python_stacks`)."""
SCHEDULE = "SCHED_EVENTS"

_TIMES_OF = (
    *((table, ()) for table in (*OPS, CALLCHAINS, OS_STACKS, SAMPLE_STACKS, CUDA_EVENTS)),
    *((table, ("start", "end")) for table in (*CALLS, *OVERHEADS, SYNCS, OS_CALLS, GPU_FAULTS)),
    *((table, ("start",)) for table in ("NVTX_EVENTS", *LIBRARIES)),
    *((table, ("start",)) for table in ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")),
    *((table, ("start",)) for table in (SAMPLES, SCHEDULE, MEMORY, CPU_FAULTS)),
    (METRICS, ("timestamp",)),
)
"""Every event table, and the times without which its rows cannot be placed."""

UNKNOWN = int(np.iinfo(np.int64).min)
"""Stands for NULL in columns of identifiers."""

Encoded = tuple[Column, Column]
"""Distinct values in order, and the int32 place of every row among them."""


@dataclass
class Frames:
    """Rows by table name. Ops are all kept: they are counted even where their times are wrong."""

    rows: dict[str, Rows]
    warnings: list[str] = field(default_factory=list)
    _encoded: dict[tuple[str, str], Encoded] = field(default_factory=dict)

    @classmethod
    def read(cls, tables: Tables) -> Frames:
        """Read every event table that the export has."""
        frames = cls({})
        for table, times in _TIMES_OF:
            rows = frames._placed(table, tables.read(table), times)
            if rows is not None:
                frames.rows[table] = rows
        return frames

    def get(self, *tables: str) -> list[tuple[str, Rows]]:
        """Those of ``tables`` that the export has, in that order."""
        return [(table, self.rows[table]) for table in tables if table in self.rows]

    def release(self, *tables: str) -> None:
        """Let go of rows that are not needed any more; what was encoded of them stays."""
        for table in tables:
            self.rows.pop(table, None)

    def encoded(self, table: str, column: str) -> Encoded:
        """A column of identifiers as :func:`distinct` values and codes, made once."""
        key = (table, column)
        if key not in self._encoded:
            self._encoded[key] = distinct(self.rows[table].ints(column, UNKNOWN))
        return self._encoded[key]

    def _placed(self, table: str, rows: Rows | None, times: tuple[str, ...]) -> Rows | None:
        """Without the rows that have no time, or one that cannot be."""
        if rows is None or not times:
            return rows
        good = np.ones(len(rows), bool)
        for column in times:
            good &= possible(rows.ints(column, UNKNOWN))
        if lost := len(rows) - int(np.count_nonzero(good)):
            self.warnings.append(f"{lost} rows of {table} have no possible time and are left out")
        return rows.take(good)


def possible(times: Column) -> Column:
    """bool: times within what can be added up without wrapping."""
    inside: Column = (times >= -LONGEST_TIME) & (times <= LONGEST_TIME)
    return inside
