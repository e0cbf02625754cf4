"""A Trace of one process alone."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from nvprobe.errors import UsageError
from nvprobe.trace import Column, Table, Threads, Trace

__all__ = ["of_process"]

T = TypeVar("T", bound=Table)

_WHOLE = ("processes", "threads", "devices", "geometry", "operators")
"""Tables that others refer to by row, or that refer to others."""


def of_process(trace: Trace, pid: int) -> Trace:
    """What the process with this pid did, as if it had been alone on its devices.

    Raises UsageError, naming the pids there are, where the trace has no such process.
    """
    rows = np.flatnonzero(trace.processes.pid == pid)
    if not len(rows):
        known = ", ".join(map(str, sorted(set(trace.processes.pid.tolist()))[:8]))
        raise UsageError(f"--process {pid}: no such process in the capture, which has {known}")
    changes: dict[str, Any] = {}
    for spec in dataclasses.fields(trace):
        table = getattr(trace, spec.name)
        if isinstance(table, Table) and spec.name not in _WHOLE:
            changes[spec.name] = table.take(_mine(table, trace.threads, rows))
    if trace.geometry is not None and trace.ops is not None:
        kept = _mine(trace.ops, trace.threads, rows)
        changes["geometry"] = _referring(trace.geometry, "op", kept)
    if trace.operators is not None and trace.ranges is not None:
        kept = _mine(trace.ranges, trace.threads, rows)
        changes["operators"] = _referring(trace.operators, "range", kept)
    return dataclasses.replace(trace, **changes)


def _mine(table: Table, threads: Threads, rows: Column) -> Column:
    """Bool per row: it belongs to one of the processes."""
    process = table.columns().get("process")
    if process is None:
        process = threads.process[table.columns()["thread"]]
    return np.isin(process, rows)


def _referring(table: T, field: str, kept: Column) -> T:
    """The rows that refer to kept rows, renumbered."""
    number = np.cumsum(kept) - 1
    target = table.columns()[field]
    mine = kept[target]
    return dataclasses.replace(table.take(mine), **{field: number[target[mine]]})
