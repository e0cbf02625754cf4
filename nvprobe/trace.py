"""The one noun: what a profiler recorded, as plain numpy columns.

A :class:`Trace` holds column tables in one vocabulary, whatever tool wrote the file. Conventions
that hold for every table:

* times are int64 nanoseconds since the trace's time zero and never rounded; ``origin_ns`` on the
  trace is that zero as UTC nanoseconds, where the source knows it;
* names are int32 rows of ``Trace.strings`` (an Arrow array), ``NO_NAME`` where there is none; equal
  rows are equal texts, but an equal text may stand in several rows (1.5 M unique range names are
  not searched for twins): compare texts, or what they are cleaned to, across rows;
* ``process``, ``thread`` and ``device`` are int32 *rows* of those tables, never raw ids, so that a
  join that forgets the process (two processes reuse the same correlation ids) cannot be written;
* a table the source cannot have is ``None`` (absent); a table it has but that is empty has no rows.
  ``Trace.missing`` says in words what is absent, why, and how to record it.

Definitions of what the columns mean for attribution: docs/attribution.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from nvprobe.recorded import Sidecar

__all__ = [
    "NO_DEVICE",
    "NO_NAME",
    "NO_PAYLOAD",
    "NO_ROW",
    "OPEN",
    "CallChains",
    "Calls",
    "Clock",
    "Column",
    "Counters",
    "CudaEvents",
    "Devices",
    "Flows",
    "Frames",
    "Geometry",
    "GraphNodes",
    "Marks",
    "MemoryEvents",
    "Missing",
    "OpKind",
    "Operators",
    "Ops",
    "OsCalls",
    "Overheads",
    "PageFaults",
    "PayloadFields",
    "Processes",
    "RangeSource",
    "Ranges",
    "Samples",
    "Schedule",
    "Source",
    "Spans",
    "Syncs",
    "Table",
    "Threads",
    "Trace",
]

Column = npt.NDArray[Any]

NO_ROW = -1
"""A reference to another table that leads nowhere."""
NO_NAME = -1
"""A string column without a value."""
NO_DEVICE = -1
"""An op whose device the source does not tell."""
OPEN = int(np.iinfo(np.int64).max)
"""The end of a range that was never closed: it is open to the end of the capture."""
NO_PAYLOAD = int(np.iinfo(np.int64).min)
"""The payload of a range or mark that carries none."""


class OpKind(IntEnum):
    """What a row of :class:`Ops` is; decided by table or category, never by its arguments."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    """A CUDA graph recorded whole (``--cuda-graph-trace=graph``)."""


class RangeSource(IntEnum):
    """Where a row of :class:`Ranges` comes from."""

    NVTX = 0
    ANNOTATION = 1
    """torch.profiler ``user_annotation`` (``record_function``)."""
    OPERATOR = 2
    """torch.profiler ``cpu_op``."""
    MODULE = 3
    """torch.profiler ``nn.Module`` frame."""
    PYTHON = 4
    """torch.profiler Python function frame, loaded on demand."""


def column(dtype: str, *, optional: bool = False) -> Any:
    """A dataclass field for one column of ``dtype``; an optional one may be ``None``."""
    metadata = {"dtype": np.dtype(dtype)}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


T = TypeVar("T", bound="Table")


@dataclass(frozen=True, slots=True)
class Table:
    """Base of the column tables: equal-length one-dimensional arrays, ``None`` for unknown ones."""

    def __post_init__(self) -> None:
        """Cast each column to its declared type and refuse unequal lengths."""
        lengths = set()
        for spec in dataclasses.fields(self):
            values = getattr(self, spec.name)
            if values is None:
                continue
            array = np.ascontiguousarray(values, dtype=spec.metadata["dtype"])
            object.__setattr__(self, spec.name, array)
            lengths.add(array.shape)
        if len(lengths) > 1:
            raise ValueError(f"{type(self).__name__}: columns of unequal length {sorted(lengths)}")

    def __len__(self) -> int:
        return next(len(values) for values in self.columns().values())

    def columns(self) -> dict[str, Column]:
        """The columns that are known, by name."""
        known = ((spec.name, getattr(self, spec.name)) for spec in dataclasses.fields(self))
        return {name: values for name, values in known if values is not None}

    def take(self: T, rows: Column) -> T:
        """The rows chosen by a boolean mask or an index array."""
        return dataclasses.replace(
            self, **{name: values[rows] for name, values in self.columns().items()}
        )

    @classmethod
    def empty(cls: type[T]) -> T:
        """A table without rows: present, and nothing was recorded."""
        return cls(
            **{
                spec.name: np.empty(0, spec.metadata["dtype"])
                for spec in dataclasses.fields(cls)
                if spec.default is not None
            }
        )


@dataclass(frozen=True, slots=True)
class Processes(Table):
    """One row a process."""

    key: Column = column("i8")
    """Identity within the file: nsys ``globalTid >> 24``; the pid in a torch trace."""
    pid: Column = column("i8")
    name: Column = column("i4")
    rank: Column = column("i4")
    """Rank of a distributed job, -1 where unknown."""


@dataclass(frozen=True, slots=True)
class Threads(Table):
    """One row a thread; ``(process, tid)`` is unique."""

    process: Column = column("i4")
    tid: Column = column("i8")
    name: Column = column("i4")


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
class Calls(Table):
    """CUDA runtime and driver calls, one row a record (several may share a correlation id)."""

    process: Column = column("i4")
    thread: Column = column("i4")
    correlation: Column = column("i8")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")
    """Name without version suffix: ``cudaStreamSynchronize``, not ``…_v3020``."""
    callchain: Column | None = column("i8", optional=True)


@dataclass(frozen=True, slots=True)
class CallChains(Table):
    """Native call stacks, one row a frame, by chain and depth."""

    chain: Column = column("i8")
    """What ``Calls.callchain`` refers to (of ``Trace.callchains``)."""
    depth: Column = column("i4")
    """0 for the innermost frame."""
    symbol: Column = column("i4")
    """The function's name; a bare address where it was not resolved."""


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
class Ranges(Table):
    """Push/pop ranges (and, in torch traces, operators and frames): they nest on their thread."""

    process: Column = column("i4")
    thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    """``OPEN`` where the range was never closed."""
    name: Column = column("i4")
    domain: Column = column("i4")
    """NVTX domain name, ``NO_NAME`` for the default domain."""
    category: Column = column("i4")
    """NVTX category name, ``NO_NAME`` where there is none."""
    source: Column = column("i1")
    payload: Column | None = column("i8", optional=True)


@dataclass(frozen=True, slots=True)
class Operators(Table):
    """What torch says of an operator's range, where the source has columns for it."""

    range: Column = column("i8")
    """Row of :class:`Ranges`."""
    sequence: Column = column("i8")
    """Autograd sequence number, -1 where there is none."""
    external: Column = column("i8")
    """``External id`` / ``op_id``, -1 where there is none."""
    forward_thread: Column = column("i8")
    """``Fwd thread id`` (autograd's own numbering), 0 in the forward pass, -1 unknown."""
    shapes: Column = column("i4")
    """Input dimensions as JSON text."""
    types: Column = column("i4")
    """Input types as JSON text."""


@dataclass(frozen=True, slots=True)
class Spans(Table):
    """Start/end ranges: they may cross threads and overlap, so they never nest."""

    process: Column = column("i4")
    thread: Column = column("i4")
    end_thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")
    domain: Column = column("i4")
    category: Column = column("i4")


@dataclass(frozen=True, slots=True)
class Marks(Table):
    """Instantaneous NVTX marks."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    name: Column = column("i4")
    domain: Column = column("i4")
    category: Column = column("i4")


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
class GraphNodes(Table):
    """Creations of CUDA graph nodes; a clone points to the node it was cloned from."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    node: Column = column("i8")
    origin: Column = column("i8")
    """``originalGraphNodeId``, 0 for a first node."""


@dataclass(frozen=True, slots=True)
class Frames(Table):
    """Python function frames (``train.py(12): forward``), loaded on demand: never owners."""

    process: Column = column("i4")
    thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")


@dataclass(frozen=True, slots=True)
class Flows(Table):
    """Arrows of torch traces from a forward operator to its backward node."""

    process: Column = column("i4")
    thread: Column = column("i4")
    """Thread of the forward operator."""
    time: Column = column("i8")
    """Start of the forward operator."""
    end_thread: Column = column("i4")
    """Thread of the backward node."""
    end_time: Column = column("i8")
    """Start of the backward node."""


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
class Counters(Table):
    """Samples of GPU metrics (``--gpu-metrics-devices``), one row a metric and instant."""

    device: Column = column("i4")
    time: Column = column("i8")
    metric: Column = column("i4")
    """Name as recorded, with its unit: ``SMs Active [Throughput %]``."""
    value: Column = column("f8")


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
class OsCalls(Table):
    """Calls of operating system libraries (``--trace=osrt``): what a thread blocked in."""

    process: Column = column("i4")
    thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")
    nesting: Column = column("i4")
    stack: Column = column("i8")
    """Chain of ``Trace.os_stacks``, -1 for none."""


@dataclass(frozen=True, slots=True)
class Samples(Table):
    """Periodic samples of what threads did (``--sample``)."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    cpu: Column = column("i4")
    stack: Column = column("i8")
    """Chain of ``Trace.sample_stacks``."""


@dataclass(frozen=True, slots=True)
class Schedule(Table):
    """When threads were put on a CPU and taken off it (``--cpuctxsw``)."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    cpu: Column = column("i4")
    running: Column = column("?")
    """Whether the thread runs from here on."""


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


@dataclass(frozen=True, slots=True)
class PayloadFields(Table):
    """Fields of NVTX payload schemas; payloads themselves are only in exports with blobs."""

    domain: Column = column("i8")
    """NVTX domain id (ids are reused between processes)."""
    schema: Column = column("i8")
    schema_name: Column = column("i4")
    index: Column = column("i4")
    name: Column = column("i4")
    type: Column = column("i8")
    """NVTX payload entry type, or the id of another schema."""
    offset: Column = column("i8")
    """Bytes from the begin of the payload."""


@dataclass(frozen=True, slots=True)
class Overheads(Table):
    """Time the profiler itself took in the program."""

    process: Column = column("i4")
    thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something a report cannot say, why, and how to record it."""

    what: str
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: what it is and who wrote it. ``file`` is a base name, never a path."""

    kind: str
    """``nsys-sqlite``, ``nsys-parquet``, ``nsys-rep``, ``torch-trace`` or ``sidecar``."""
    file: str
    product_version: str | None = None
    lost_events: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """How the times of merged sources relate; the JSON ``clock``."""

    kind: str
    """``single`` (one source), ``shared`` (one process under both) or ``sequence`` (two runs)."""
    offset_ns: tuple[int, int] | None = None
    """Bounds of what was added to the second source's raw times, beyond the difference of their
    origins, to bring them onto the first's clock; ``None`` where times are never compared."""
    matched_share: float | None = None
    """Share of the first source's kernels that found their partner in the second."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything one capture recorded. Tables of later sources are added as optional fields."""

    strings: pa.StringArray
    sources: tuple[Source, ...]
    processes: Processes
    threads: Threads
    devices: Devices
    calls: Calls | None = None
    callchains: CallChains | None = None
    ops: Ops | None = None
    geometry: Geometry | None = None
    ranges: Ranges | None = None
    operators: Operators | None = None
    spans: Spans | None = None
    marks: Marks | None = None
    syncs: Syncs | None = None
    graph_nodes: GraphNodes | None = None
    overheads: Overheads | None = None
    frames: Frames | None = None
    flows: Flows | None = None
    memory: MemoryEvents | None = None
    counters: Counters | None = None
    cuda_events: CudaEvents | None = None
    os_calls: OsCalls | None = None
    os_stacks: CallChains | None = None
    samples: Samples | None = None
    sample_stacks: CallChains | None = None
    schedule: Schedule | None = None
    page_faults: PageFaults | None = None
    payload_fields: PayloadFields | None = None
    sidecar: Sidecar | None = None
    clock: Clock = Clock("single")
    domains: tuple[str, ...] = ()
    """NVTX domains that were created, whether or not anything was recorded in them."""
    diagnostics: tuple[tuple[int, str], ...] = ()
    """The capture's own messages: (severity, text), severity 1 information, 2 warning, 3 error."""
    start_ns: int = 0
    """Begin of the capture window."""
    end_ns: int = 0
    """End of the capture: open ranges last until here."""
    origin_ns: int | None = None
    """UTC nanoseconds of time zero, where the source tells."""
    warnings: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def text(self, name: int) -> str | None:
        """The string of one name index."""
        return None if name < 0 else str(self.strings[int(name)].as_py())

    def texts(self, names: Column) -> list[str | None]:
        """The strings of many name indices, in order."""
        indices = pa.array(names, mask=names < 0)
        return list(self.strings.take(indices).to_pylist())
