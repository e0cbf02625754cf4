"""What happened on the GPU: operations, synchronisation, graph nodes, memory, counters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nvprobe.trace.table import Column, Table, column

__all__ = [
    "Counters",
    "CudaEvents",
    "Devices",
    "Geometry",
    "GraphNodes",
    "MemoryEvents",
    "OpKind",
    "Ops",
    "PageFaults",
    "Syncs",
]


class OpKind(IntEnum):
    """What a row of :class:`Ops` is; decided by table or category, never by its arguments."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    """A CUDA graph recorded whole (``--cuda-graph-trace=graph``)."""


@dataclass(frozen=True, slots=True)
class Devices(Table):
    """One row a physical GPU. Limits are -1 where the source does not tell them."""

    id: Column = column("i8")
    name: Column = column("i4")
    sm_count: Column = column("i8")
    clock_hz: Column = column("i8")
    memory_bytes: Column = column("i8")
    bandwidth_bytes_s: Column = column("i8")
    l2_bytes: Column = column("i8")
    compute_major: Column = column("i4")
    compute_minor: Column = column("i4")
    max_warps_per_sm: Column = column("i4")
    max_blocks_per_sm: Column = column("i4")
    max_registers_per_sm: Column = column("i8")
    max_shared_per_sm: Column = column("i8")


@dataclass(frozen=True, slots=True)
class Ops(Table):
    """GPU operations: kernels, copies, sets, whole graphs. Times are as recorded."""

    kind: Column = column("i1")
    process: Column = column("i4")
    device: Column = column("i4")
    context: Column = column("i8")
    stream: Column = column("i8")
    correlation: Column = column("i8")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")
    """Demangled kernel name; for copies and sets what nsys calls them (``Memcpy HtoD``)."""
    short_name: Column = column("i4")
    graph_node: Column = column("i8")
    """CUDA graph node id, 0 where the op is not a node of a graph."""
    bytes: Column = column("i8")
    """Bytes copied or set, -1 for kernels and graphs."""
    copy_kind: Column = column("i1")
    """CUPTI memcpy kind (1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, 11/12 unified memory), -1 otherwise."""
    source_memory: Column = column("i1")
    """CUPTI memory kind of the source (1 pageable, 2 pinned, 3 device, …), -1 unknown."""
    target_memory: Column = column("i1")


@dataclass(frozen=True, slots=True)
class Geometry(Table):
    """Launch geometry of kernels, one row a kernel; ``op`` is its row of :class:`Ops`."""

    op: Column = column("i8")
    grid_x: Column = column("i4")
    grid_y: Column = column("i4")
    grid_z: Column = column("i4")
    block_x: Column = column("i4")
    block_y: Column = column("i4")
    block_z: Column = column("i4")
    registers: Column = column("i4")
    """Registers a thread."""
    static_shared: Column = column("i4")
    dynamic_shared: Column = column("i4")


@dataclass(frozen=True, slots=True)
class Syncs(Table):
    """Synchronisation records of the GPU side (CUPTI), joined to a call by correlation."""

    process: Column = column("i4")
    device: Column = column("i4")
    context: Column = column("i8")
    stream: Column = column("i8")
    """Awaited stream, -1 where the record names none."""
    correlation: Column = column("i8")
    start: Column = column("i8")
    end: Column = column("i8")
    event: Column = column("i8")
    name: Column | None = column("i4", optional=True)
    """What was awaited, where the record says it (``StreamSync``, ``StreamWaitEvent``)."""
    event_sync: Column | None = column("i8", optional=True)
    """Leads to :class:`CudaEvents` of the same id (nsys 2025.1 and later), -1 for none."""


@dataclass(frozen=True, slots=True)
class CudaEvents(Table):
    """Records of CUDA events, joined to the recording call by correlation."""

    process: Column = column("i4")
    device: Column = column("i4")
    context: Column = column("i8")
    stream: Column = column("i8")
    correlation: Column = column("i8")
    event: Column = column("i8")
    event_sync: Column = column("i8")
    """What ``Syncs.event_sync`` leads to, -1 where the source does not tell."""
    time: Column = column("i8")
    """When the GPU reached the event, -1 where it was not measured."""


@dataclass(frozen=True, slots=True)
class GraphNodes(Table):
    """Creations of CUDA graph nodes; a clone points to the node it was cloned from."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    node: Column = column("i8")
    origin: Column = column("i8")
    """``originalGraphNodeId``, 0 for a first node."""


@dataclass(frozen=True, slots=True)
class Counters(Table):
    """Samples of GPU metrics (``--gpu-metrics-devices``), one row a metric and instant."""

    device: Column = column("i4")
    time: Column = column("i8")
    metric: Column = column("i4")
    """Name as recorded, with its unit: ``SMs Active [Throughput %]``."""
    value: Column = column("f8")


@dataclass(frozen=True, slots=True)
class MemoryEvents(Table):
    """Allocations and frees, by the allocator of torch or by the driver."""

    process: Column = column("i4")
    thread: Column = column("i4")
    """``NO_ROW`` where the source names no thread."""
    time: Column = column("i8")
    device: Column = column("i4")
    """``NO_DEVICE`` for host memory."""
    address: Column = column("i8")
    bytes: Column = column("i8")
    """Positive for an allocation, negative for a free."""
    allocated: Column = column("i8")
    """Bytes in use on the device afterwards, -1 where the source does not tell."""
    reserved: Column = column("i8")
    """Bytes the caching allocator holds afterwards, -1 where the source does not tell."""


@dataclass(frozen=True, slots=True)
class PageFaults(Table):
    """Page faults of unified memory; the copies that follow are ops of copy kinds 11 to 13."""

    process: Column = column("i4")
    device: Column = column("i4")
    """``NO_DEVICE`` for a fault of the CPU."""
    start: Column = column("i8")
    end: Column = column("i8")
    """The start, for a fault of the CPU."""
    address: Column = column("i8")
    count: Column = column("i8")
    """Faults of the same page."""
