"""What happened on the GPU: operations, synchronization, graph nodes, memory, counters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nvprobe.trace.table import NO_DEVICE, Column, Table, column, name_of, row_of, time_of

_CORRELATION = "joins the record to its call, within its process"


class OpKind(IntEnum):
    """What a row of :class:`Ops` is; decided by table or category, never by its arguments."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    """A CUDA graph recorded whole (``--cuda-graph-trace=graph``)."""


@dataclass(frozen=True, slots=True)
class Devices(Table):
    """One row per physical GPU."""

    id: Column = column("i8", "physical number of the GPU")
    name: Column = name_of("model")
    sm_count: Column = column("i8", "streaming multiprocessors", missing=-1)
    clock_hz: Column = column("i8", "clock frequency", unit="Hz", missing=-1)
    memory_bytes: Column = column("i8", "memory", unit="bytes", missing=-1)
    bandwidth_bytes_s: Column = column("i8", "memory bandwidth", unit="bytes/s", missing=-1)
    l2_bytes: Column = column("i8", "L2 cache", unit="bytes", missing=-1)
    compute_major: Column = column("i4", "compute capability, major", missing=-1)
    compute_minor: Column = column("i4", "compute capability, minor", missing=-1)
    max_warps_per_sm: Column = column("i4", "most warps per SM", missing=-1)
    max_blocks_per_sm: Column = column("i4", "most blocks per SM", missing=-1)
    max_registers_per_sm: Column = column("i8", "registers per SM", missing=-1)
    max_shared_per_sm: Column = column("i8", "shared memory per SM", unit="bytes", missing=-1)


@dataclass(frozen=True, slots=True)
class Ops(Table):
    """GPU operations: kernels, copies, sets, whole graphs. Times are as recorded."""

    kind: Column = column("i1", "kernel, memcpy, memset, or graph (recorded whole)", enum=OpKind)
    process: Column = row_of("processes", "the process")
    device: Column = row_of("devices", "the GPU", missing=NO_DEVICE)
    context: Column = column("i8", "CUDA context", missing=-1)
    stream: Column = column("i8", "CUDA stream", missing=-1)
    correlation: Column = column("i8", "joins the op to its call, within its process")
    start: Column = time_of("begin")
    end: Column = time_of("end")
    name: Column = name_of("demangled kernel name, or what kind of copy (Memcpy HtoD)")
    short_name: Column = name_of("kernel name without templates and arguments")
    graph_node: Column = column("i8", "CUDA graph node, 0 outside graphs")
    bytes: Column = column("i8", "bytes copied or set", unit="bytes", missing=-1)
    copy_kind: Column = column(
        "i1",
        "CUPTI memcpy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, 11 and 12 unified memory",
        missing=-1,
    )
    source_memory: Column = column(
        "i1", "CUPTI memory kind of the source: 1 pageable, 2 pinned, 3 device", missing=-1
    )
    target_memory: Column = column("i1", "CUPTI memory kind of the target", missing=-1)


@dataclass(frozen=True, slots=True)
class Geometry(Table):
    """Launch geometry of kernels, one row per kernel."""

    op: Column = row_of("ops", "the kernel", dtype="i8")
    grid_x: Column = column("i4", "blocks", missing=-1)
    grid_y: Column = column("i4", "blocks", missing=-1)
    grid_z: Column = column("i4", "blocks", missing=-1)
    block_x: Column = column("i4", "threads per block", missing=-1)
    block_y: Column = column("i4", "threads per block", missing=-1)
    block_z: Column = column("i4", "threads per block", missing=-1)
    registers: Column = column("i4", "registers per thread", missing=-1)
    static_shared: Column = column(
        "i4", "shared memory per block that the kernel declares", unit="bytes", missing=-1
    )
    dynamic_shared: Column = column(
        "i4", "shared memory per block that the launch adds", unit="bytes", missing=-1
    )


@dataclass(frozen=True, slots=True)
class Messages(Table):
    """What communicating kernels carry, where the profiler says it of the kernel itself."""

    op: Column = row_of("ops", "the kernel", dtype="i8")
    bytes: Column = column("i8", "size", unit="bytes")
    group: Column = name_of("process group")
    sequence: Column = column("i8", "number of the collective in its group", missing=-1)
    peer: Column = column("i8", "other rank of a point-to-point message", missing=-1)


@dataclass(frozen=True, slots=True)
class Syncs(Table):
    """Synchronization records of the GPU side (CUPTI), joined to a call by correlation."""

    process: Column = row_of("processes", "the process")
    device: Column = row_of("devices", "the GPU")
    context: Column = column("i8", "CUDA context", missing=-1)
    stream: Column = column("i8", "awaited stream, none where the record names none", missing=-1)
    correlation: Column = column("i8", _CORRELATION)
    start: Column = time_of("begin")
    end: Column = time_of("end")
    event: Column = column("i8", "awaited CUDA event", missing=-1)
    name: Column | None = name_of("what was awaited (StreamSync, StreamWaitEvent)", optional=True)
    event_sync: Column | None = column(
        "i8", "leads to the CUDA event of the same number", missing=-1, optional=True
    )


@dataclass(frozen=True, slots=True)
class CudaEvents(Table):
    """Records of CUDA events, joined to the recording call by correlation."""

    process: Column = row_of("processes", "the process")
    device: Column = row_of("devices", "the GPU")
    context: Column = column("i8", "CUDA context", missing=-1)
    stream: Column = column("i8", "CUDA stream", missing=-1)
    correlation: Column = column("i8", _CORRELATION)
    event: Column = column("i8", "CUDA event", missing=-1)
    event_sync: Column = column("i8", "what Syncs.event_sync leads to", missing=-1)
    time: Column = time_of("when the GPU reached it", missing=-1)


@dataclass(frozen=True, slots=True)
class GraphNodes(Table):
    """Creations of CUDA graph nodes; a clone points to the node it was cloned from."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    time: Column = time_of("when it was created")
    node: Column = column("i8", "node")
    origin: Column = column("i8", "the node it was cloned from, 0 for a first one")


@dataclass(frozen=True, slots=True)
class Counters(Table):
    """Samples of GPU metrics (``--gpu-metrics-devices``), one row per metric and instant."""

    device: Column = row_of("devices", "the GPU")
    time: Column = time_of("when")
    metric: Column = name_of("metric as recorded, with its unit: SMs Active [Throughput %]")
    value: Column = column("f8", "value")


@dataclass(frozen=True, slots=True)
class MemoryEvents(Table):
    """Allocations and frees, by the allocator of torch or by the driver."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread, where the source names it")
    time: Column = time_of("when")
    device: Column = row_of("devices", "the GPU, none for host memory", missing=NO_DEVICE)
    address: Column = column("i8", "address")
    bytes: Column = column("i8", "negative for a free", unit="bytes")
    allocated: Column = column("i8", "in use on the device afterwards", unit="bytes", missing=-1)
    reserved: Column = column(
        "i8", "held by the caching allocator afterwards", unit="bytes", missing=-1
    )


@dataclass(frozen=True, slots=True)
class PageFaults(Table):
    """Page faults of unified memory; the copies that follow are ops of copy kinds 11 to 13."""

    process: Column = row_of("processes", "the process")
    device: Column = row_of("devices", "the GPU, none for a fault of the CPU", missing=NO_DEVICE)
    start: Column = time_of("begin")
    end: Column = time_of("end; the begin, for a fault of the CPU")
    address: Column = column("i8", "page")
    count: Column = column("i8", "faults of that page")
