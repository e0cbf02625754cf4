"""CUDA of an nsys export: GPU operations, host calls, synchronisation, graph nodes, overhead."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np

from nvprobe.readers.nsys.event_rows import (
    CALLS,
    KERNELS,
    OVERHEADS,
    SYNCS,
    UNKNOWN,
    Frames,
    possible,
)
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.processes import Gpus, People
from nvprobe.readers.nsys.tables import Rows
from nvprobe.trace import (
    NO_NAME,
    Calls,
    Column,
    CudaEvents,
    Geometry,
    GraphNodes,
    OpKind,
    Ops,
    Overheads,
    Syncs,
)

__all__ = [
    "read_calls",
    "read_geometry",
    "read_graph_nodes",
    "read_ops",
    "read_overheads",
    "by_context",
    "read_syncs",
]

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


def read_ops(frames: Frames, people: People, gpus: Gpus, names: Names) -> Ops:
    """GPU operations of all tables: kernels first, then copies, sets and whole graphs.

    A row whose times cannot be is kept with start and end 0: it still counts as an op.
    """
    parts = []
    for table in _KINDS:
        if table in frames.rows:
            parts.append(_ops(table, frames.rows[table], people, gpus, names))
            frames.release(table)
    if not parts:
        return Ops.absent()
    return Ops(**{name: _joined([part[name] for part in parts]) for name in parts[0]})


def _joined(parts: list[Column]) -> Column:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _ops(table: str, rows: Rows, people: People, gpus: Gpus, names: Names) -> dict[str, Column]:
    process = people.process(table)
    start, end = rows.ints("start", UNKNOWN), rows.ints("end", UNKNOWN)
    fine = possible(start) & possible(end)
    unknown = np.full(len(rows), -1, np.int8)
    copy_kind = rows.ints("copyKind", -1)
    is_set = table.endswith("_MEMSET")
    name, short_name = _op_names(table, rows, names, copy_kind)
    return {
        "kind": np.full(len(rows), _KINDS[table], np.int8),
        "process": process,
        "device": gpus.device(table, process),
        "context": rows.ints("contextId", -1),
        "stream": rows.ints("streamId", -1),
        "correlation": rows.ints("correlationId", 0),
        "start": start if fine.all() else np.where(fine, start, 0),
        "end": end if fine.all() else np.where(fine, end, 0),
        "name": name,
        "short_name": short_name,
        "graph_node": rows.ints("graphNodeId", 0),
        "bytes": rows.ints("bytes", -1),
        "copy_kind": np.clip(copy_kind, -1, 127).astype(np.int8),
        "source_memory": _memory(rows, "srcKind") if rows.has("srcKind") else unknown,
        "target_memory": _memory(rows, "memKind" if is_set else "dstKind"),
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


def read_geometry(frames: Frames) -> Geometry:
    """Launch geometry; kernels are the first rows of the ops."""
    rows = frames.rows.get(KERNELS)
    if rows is None or not rows.has("gridX", "blockX"):
        return Geometry.absent()
    columns = {
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
    values = {ours: rows.ints(theirs, -1) for ours, theirs in columns.items()}
    return Geometry(op=np.arange(len(rows)), **values)


def read_calls(frames: Frames, people: People, names: Names) -> Calls:
    """Runtime and driver calls; newer exports keep both in the runtime table."""
    parts = []
    for table, rows in frames.get(*CALLS):
        thread = people.thread(table)
        parts.append(
            {
                "process": people.thread_process[thread],
                "thread": thread,
                "correlation": rows.ints("correlationId", -1),
                "start": rows.ints("start", 0),
                "end": rows.ints("end", 0),
                "name": names.calls(table),
                "callchain": rows.ints("callchainId", -1),
            }
        )
    frames.release(*CALLS)
    if not parts:
        return Calls.absent()
    columns: dict[str, Column | None] = {
        name: _joined([part[name] for part in parts]) for name in parts[0]
    }
    chains = columns["callchain"]
    if chains is not None and not bool((chains >= 0).any()):
        columns["callchain"] = None
    return Calls(**columns)  # type: ignore[arg-type]


def by_context(records: Located, ops: Ops) -> Located:
    """Records on the device on which their context runs ops, where any are known of it.

    A context belongs to one device. Synchronisations and events of a process that runs on the
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
    return dataclasses.replace(records, device=device.astype(np.int32))


def _context(table: Ops | Syncs | CudaEvents) -> Column:
    return table.process.astype(np.int64) << 40 | (table.context & ((1 << 40) - 1))


def read_syncs(frames: Frames, people: People, gpus: Gpus) -> Syncs:
    """Synchronisation records of CUPTI. Their type is left alone: its numbers differ by version."""
    rows = frames.rows.get(SYNCS)
    if rows is None:
        return Syncs.absent()
    process = people.process(SYNCS)
    stream = rows.ints("streamId", -1)
    return Syncs(
        process=process,
        device=gpus.device(SYNCS, process),
        context=rows.ints("contextId", -1),
        stream=np.where(stream == _NO_STREAM, -1, stream),
        correlation=rows.ints("correlationId", 0),
        start=rows.ints("start", 0),
        end=rows.ints("end", 0),
        event=rows.ints("eventId", -1),
        event_sync=rows.ints("eventSyncId", -1) if rows.has("eventSyncId") else None,
    )


def read_graph_nodes(frames: Frames, people: People) -> GraphNodes:
    """Creations of graph nodes; in 2022 they were in the table of graph events."""
    parts = []
    for table, rows in frames.get("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"):
        if rows.has("graphNodeId"):
            thread = people.thread(table)
            parts.append(
                {
                    "process": people.thread_process[thread],
                    "thread": thread,
                    "time": rows.ints("start", 0),
                    "node": rows.ints("graphNodeId", 0),
                    "origin": rows.ints("originalGraphNodeId", 0),
                }
            )
    if not parts:
        return GraphNodes.absent()
    return GraphNodes(**{name: _joined([part[name] for part in parts]) for name in parts[0]})


def read_overheads(frames: Frames, people: People, names: Names) -> Overheads:
    """Time that the profiler itself took."""
    parts = []
    for table, rows in frames.get(*OVERHEADS):
        thread = people.thread(table)
        parts.append(
            {
                "process": people.thread_process[thread],
                "thread": thread,
                "start": rows.ints("start", 0),
                "end": rows.ints("end", 0),
                "name": names.column(table, "nameId"),
            }
        )
    if not parts:
        return Overheads.absent()
    return Overheads(**{name: _joined([part[name] for part in parts]) for name in parts[0]})
