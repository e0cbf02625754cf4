"""What nsys records of the host: CUDA calls, OS and library calls, samples, stacks, scheduling."""

from __future__ import annotations

import numpy as np

from nvprobe.readers.nsys.export import Export
from nvprobe.readers.nsys.tables import possible
from nvprobe.readers.nsys.versions import CALLS, LIBRARIES, OS_CALLS, OVERHEADS, SAMPLES, SCHEDULE
from nvprobe.trace import (
    NO_NAME,
    OPEN,
    CallChains,
    Calls,
    OsCalls,
    Overheads,
    Ranges,
    RangeSource,
    Samples,
    Schedule,
)

_LENGTH = {"start": "start", "end": "end"}


def read_calls(export: Export) -> Calls:
    """Runtime and driver calls; newer exports keep both in the runtime table."""
    parts = [
        {
            **export.hosted(table),
            **rows.columns(-1, correlation="correlationId", callchain="callchainId"),
            **rows.columns(0, **_LENGTH),
            "name": export.names.calls(table),
        }
        for table, rows in export.get(*CALLS)
    ]
    export.release(*CALLS)
    calls = Calls.joined(parts)
    has_chains = calls.callchain is not None and bool((calls.callchain >= 0).any())
    return calls if has_chains else calls.with_columns(callchain=None)


def read_overheads(export: Export) -> Overheads:
    """Time that the profiler itself took."""
    return Overheads.joined(
        [
            export.hosted(table)
            | rows.columns(0, **_LENGTH)
            | {"name": export.names.column(table, "nameId")}
            for table, rows in export.get(*OVERHEADS)
        ]
    )


def read_os_calls(export: Export) -> OsCalls:
    """Calls of operating system libraries."""
    rows = export.rows.get(OS_CALLS)
    if rows is None:
        return OsCalls.absent()
    return OsCalls(
        **export.hosted(OS_CALLS),
        **rows.columns(0, **_LENGTH, nesting="nestingLevel"),
        name=export.names.column(OS_CALLS, "nameId"),
        stack=rows.ints("callchainId", -1),
    )


def read_samples(export: Export) -> Samples:
    """Periodic samples; a sample's id is that of its stack."""
    rows = export.rows.get(SAMPLES)
    if rows is None:
        return Samples.absent()
    return Samples(
        **export.hosted(SAMPLES), **rows.columns(-1, time="start", cpu="cpu", stack="id")
    )


def read_schedule(export: Export) -> Schedule:
    """Context switches of the CPUs."""
    rows = export.rows.get(SCHEDULE)
    if rows is None:
        return Schedule.absent()
    return Schedule(
        **export.hosted(SCHEDULE),
        **rows.columns(-1, time="start", cpu="cpu"),
        running=rows.ints("isSchedIn", 0) != 0,
    )


def read_library_calls(export: Export) -> list[Ranges]:
    """Calls of MPI, UCX, cuBLAS and cuDNN: they nest on their thread, as ranges of a domain."""
    return [_library(table, export) for table, rows in export.get(*LIBRARIES) if len(rows)]


def _library(table: str, export: Export) -> Ranges:
    rows, names = export.rows[table], export.names
    by_text, by_name = names.column(table, "textId"), names.column(table, "nameId")
    name = np.where(by_text == NO_NAME, by_name, by_text)
    end = rows.ints("end", OPEN)
    return Ranges(
        **export.hosted(table),
        start=rows.ints("start", 0),
        end=np.where(possible(end), end, OPEN),
        name=np.where(name == NO_NAME, names.unnamed, name),
        domain=np.full(len(rows), names.library(table), np.int32),
        category=np.full(len(rows), NO_NAME, np.int32),
        source=np.full(len(rows), RangeSource.NVTX, np.int8),
    )


def read_callchains(export: Export, table: str) -> CallChains:
    """All stacks of a table of call chains."""
    rows = export.rows.get(table)
    if rows is None:
        return CallChains.absent()
    chain, depth = rows.ints("id", -1), rows.ints("stackDepth", -1)
    order = np.lexsort((depth, chain))
    symbol = export.names.column(table, "symbol")
    return CallChains(chain=chain[order], depth=depth[order], symbol=symbol[order])
