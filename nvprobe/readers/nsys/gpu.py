"""What nsys records of the GPU: ops, synchronization, graph nodes, memory, events, page faults."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from nvprobe.readers.nsys.export import Export
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.tables import UNKNOWN, Rows, possible
from nvprobe.readers.nsys.versions import (
    CPU_FAULTS,
    CUDA_EVENTS,
    GPU_FAULTS,
    KERNELS,
    MEMORY,
    SYNCS,
)
from nvprobe.trace import (
    NO_DEVICE,
    NO_NAME,
    NO_ROW,
    Calls,
    Column,
    CudaEvents,
    Geometry,
    GraphNodes,
    MemoryEvents,
    OpKind,
    Ops,
    PageFaults,
    Syncs,
)

Located = TypeVar("Located", Syncs, CudaEvents)

_KINDS = {
    KERNELS: OpKind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": OpKind.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": OpKind.MEMSET,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": OpKind.GRAPH,
}
_NO_STREAM = 2**32 - 1
"""CUPTI's stream of a record that names none."""
_NSYS_MEMORY_UNKNOWN = 7

_FREED = 1
"""``memoryOperationType`` of a deallocation."""
_HOST_MEMORY = (0, 1)
"""``memKind`` of pageable and pinned memory."""
_GEOMETRY = {
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared": "staticSharedMemory",
    "dynamic_shared": "dynamicSharedMemory",
}


def read_ops(export: Export) -> Ops:
    """GPU operations of all tables: kernels first, then copies, sets and whole graphs.

    A row whose times cannot be is kept with start and end 0: it still counts as an op.
    """
    parts = []
    for table, rows in export.get(*_KINDS):
        parts.append(_ops(table, rows, export))
        export.release(table)
    return Ops.joined(parts)


def _ops(table: str, rows: Rows, export: Export) -> dict[str, Column]:
    start, end = rows.ints("start", UNKNOWN), rows.ints("end", UNKNOWN)
    fine = possible(start) & possible(end)
    copy_kind = rows.ints("copyKind", -1)
    name, short_name = _op_names(table, rows, export.names, copy_kind)
    target = "memKind" if table.endswith("_MEMSET") else "dstKind"
    return {
        **export.located(table),
        **rows.columns(-1, context="contextId", stream="streamId", bytes="bytes"),
        **rows.columns(0, correlation="correlationId", graph_node="graphNodeId"),
        "kind": np.full(len(rows), _KINDS[table], np.int8),
        "start": start if fine.all() else np.where(fine, start, 0),
        "end": end if fine.all() else np.where(fine, end, 0),
        "name": name,
        "short_name": short_name,
        "copy_kind": np.clip(copy_kind, -1, 127).astype(np.int8),
        "source_memory": _memory(rows, "srcKind"),
        "target_memory": _memory(rows, target),
    }


def _op_names(table: str, rows: Rows, names: Names, copy_kind: Column) -> tuple[Column, Column]:
    """String rows of name and short name."""
    if table == KERNELS:
        name = names.column(table, "demangledName")
        short = names.column(table, "shortName")
        return np.where(name == NO_NAME, short, name), np.where(short == NO_NAME, name, short)
    if table.endswith("_MEMCPY"):
        name = names.copies(copy_kind)
    elif table.endswith("_MEMSET"):
        name = np.full(len(rows), names.memset, np.int32)
    else:
        name = names.graphs()
    return name, name


def _memory(rows: Rows, column: str) -> Column:
    """CUPTI memory kinds: nsys numbers them one lower and puts "unknown" last."""
    if not rows.has(column):
        return np.full(len(rows), -1, np.int8)
    kind = rows.ints(column, -2)
    known = (kind >= 0) & (kind < _NSYS_MEMORY_UNKNOWN)
    return np.where(known, kind + 1, np.where(kind == _NSYS_MEMORY_UNKNOWN, 0, -1)).astype(np.int8)


def read_geometry(export: Export) -> Geometry:
    """Launch geometry; kernels are the first rows of the ops."""
    rows = export.rows.get(KERNELS)
    if rows is None or not rows.has("gridX", "blockX"):
        return Geometry.absent()
    return Geometry(op=np.arange(len(rows)), **rows.columns(-1, **_GEOMETRY))


def by_context(records: Located, ops: Ops) -> Located:
    """Records on the device on which their context runs ops, where any are known of it.

    A context belongs to one device. Synchronizations and events of a process that runs on the
    second GPU alone say device 0 all the same [2026.2_two_gpus].
    """
    if not len(records) or not len(ops):
        return records
    if (ops.device == ops.device[0]).all() and (records.device == ops.device[0]).all():
        return records
    contexts, first = np.unique(_context(ops), return_index=True)
    asked = _context(records)
    at = np.minimum(np.searchsorted(contexts, asked), len(contexts) - 1)
    known = (contexts[at] == asked) & (records.context >= 0)
    device = np.where(known, ops.device[first[at]], records.device)
    return records.with_columns(device=device.astype(np.int32))


def _context(table: Ops | Syncs | CudaEvents) -> Column:
    return table.process.astype(np.int64) << 40 | (table.context & ((1 << 40) - 1))


def read_syncs(export: Export) -> Syncs:
    """Synchronization records of CUPTI. Their type is left alone: its numbers differ by version."""
    rows = export.rows.get(SYNCS)
    if rows is None:
        return Syncs.absent()
    stream = rows.ints("streamId", -1)
    return Syncs(
        **export.located(SYNCS),
        **rows.columns(-1, context="contextId", event="eventId"),
        **rows.columns(0, correlation="correlationId", start="start", end="end"),
        stream=np.where(stream == _NO_STREAM, -1, stream),
        event_sync=rows.ints("eventSyncId", -1) if rows.has("eventSyncId") else None,
    )


def read_graph_nodes(export: Export) -> GraphNodes:
    """Creations of graph nodes; in 2022 they were in the table of graph events."""
    columns = {"time": "start", "node": "graphNodeId", "origin": "originalGraphNodeId"}
    return GraphNodes.joined(
        [
            export.hosted(table) | rows.columns(0, **columns)
            for table, rows in export.get("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
            if rows.has("graphNodeId")
        ]
    )


def read_cuda_events(export: Export) -> CudaEvents:
    """Records of CUDA events."""
    rows = export.rows.get(CUDA_EVENTS)
    if rows is None:
        return CudaEvents.absent()
    time = rows.ints("timestamp", 0)
    return CudaEvents(
        **export.located(CUDA_EVENTS),
        **rows.columns(-1, context="contextId", stream="streamId"),
        **rows.columns(-1, event="eventId", event_sync="eventSyncId"),
        correlation=rows.ints("correlationId", 0),
        time=np.where(time == 0, -1, time),
    )


def read_memory(export: Export, calls: Calls) -> MemoryEvents:
    """Allocations and frees of the driver (``--cuda-memory-usage``)."""
    rows = export.rows.get(MEMORY)
    if rows is None:
        return MemoryEvents.absent()
    where = export.located(MEMORY)
    unknown = np.full(len(rows), -1, np.int64)
    freed = rows.ints("memoryOperationType", 0) == _FREED
    size = rows.ints("bytes", 0)
    on_host = np.isin(rows.ints("memKind", -1), _HOST_MEMORY)
    return MemoryEvents(
        process=where["process"],
        thread=_calling_thread(where["process"], rows.ints("correlationId", 0), calls),
        device=np.where(on_host, NO_DEVICE, where["device"]),
        **rows.columns(0, time="start", address="address"),
        bytes=np.where(freed, -size, size),
        allocated=unknown,
        reserved=unknown,
    )


def _calling_thread(process: Column, correlation: Column, calls: Calls) -> Column:
    """Thread row of the call of each (process, correlation), ``NO_ROW`` where there is none."""
    if not len(calls) or not len(process):
        return np.full(len(process), NO_ROW, np.int32)
    some = np.flatnonzero(np.isin(calls.correlation, correlation))
    order = some[np.lexsort((calls.correlation[some], calls.process[some]))]
    known = _pairs(calls.process[order], calls.correlation[order])
    wanted = _pairs(process, correlation)
    place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if not len(known):
        return np.full(len(process), NO_ROW, np.int32)
    return np.where(known[place] == wanted, calls.thread[order[place]], NO_ROW)


def _pairs(process: Column, correlation: Column) -> Column:
    """Process and correlation as one sortable value each."""
    pairs = np.empty(len(process), [("process", np.int32), ("correlation", np.int64)])
    pairs["process"], pairs["correlation"] = process, correlation
    return pairs


def read_page_faults(export: Export) -> PageFaults:
    """Page faults of unified memory on either side."""
    parts = []
    for table, rows in export.get(CPU_FAULTS, GPU_FAULTS):
        on_gpu = table == GPU_FAULTS
        columns = {"start": "start", "end": "end" if on_gpu else "start", "address": "address"}
        parts.append(
            {
                "process": export.index.process(table),
                "device": np.full(len(rows), NO_DEVICE, np.int32),
                **(export.located(table) if on_gpu else {}),
                **rows.columns(0, **columns),
                "count": rows.ints("numberOfPageFaults", 1),
            }
        )
    return PageFaults.joined(parts)
