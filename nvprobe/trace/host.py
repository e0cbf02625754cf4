"""What happened on the host: processes, calls, ranges, operators, frames, samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nvprobe.trace.table import Column, Table, column

__all__ = [
    "CallChains",
    "Calls",
    "Flows",
    "Frames",
    "Marks",
    "Operators",
    "OsCalls",
    "Overheads",
    "PayloadFields",
    "Payloads",
    "Processes",
    "RangeSource",
    "Ranges",
    "Samples",
    "Schedule",
    "Spans",
    "Threads",
]


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
    """Call stacks, one row a frame, by chain and depth."""

    chain: Column = column("i8")
    """What ``Calls.callchain`` refers to (of ``Trace.callchains``)."""
    depth: Column = column("i4")
    """0 for the innermost frame."""
    symbol: Column = column("i4")
    """The function's name; a bare address where it was not resolved."""


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
    arguments: Column | None = column("i4", optional=True)
    """Values of its arguments as JSON, a list of texts, of operators whose work they decide."""


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
    """What threads did: periodic samples (``--sample``, ``--python-sampling``), back-traces."""

    process: Column = column("i4")
    thread: Column = column("i4")
    time: Column = column("i8")
    cpu: Column = column("i4")
    stack: Column = column("i8")
    """Chain of ``Trace.sample_stacks``, ``python_stacks`` (``train.py(12): step``) or
    ``backtrace_stacks`` (the same)."""


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
class Payloads(Table):
    """Values of structured NVTX payloads, by event and field; only in exports with blobs."""

    process: Column = column("i4")
    thread: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    range: Column = column("i8")
    """Row of :class:`Ranges`, ``NO_ROW`` for the payload of a span or mark."""
    domain: Column = column("i4")
    schema_name: Column = column("i4")
    """``NO_NAME`` where it was registered without one."""
    field: Column = column("i4")
    """Name of the field; inside a nested schema ``outer.inner``."""
    element: Column = column("i4")
    """Place among the values of this field in this event: 0, except in arrays."""
    integer: Column = column("i8")
    """``NO_PAYLOAD`` for what is no integer; unsigned 64-bit numbers wrap."""
    real: Column = column("f8")
    """NaN for what is no floating-point number."""
    text: Column = column("i4")
    """Text, or the name of an enumeration's value."""


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
