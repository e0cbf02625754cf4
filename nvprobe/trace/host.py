"""What happened on the host: processes, calls, ranges, operators, frames, samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nvprobe.trace.table import (
    NO_PAYLOAD,
    OPEN,
    Column,
    Table,
    column,
    name_of,
    row_of,
    time_of,
)


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
    REPEATED = 5
    """Not recorded: a backward node as in an equal run of the autograd engine."""


_NEVER = "end, none where it never ended"


@dataclass(frozen=True, slots=True)
class Processes(Table):
    """One row per process."""

    key: Column = column("i8", "identity within the file: nsys globalTid >> 24; a pid of torch")
    pid: Column = column("i8", "operating system process id", missing=-1)
    name: Column = name_of("name of the program")
    rank: Column = column("i4", "rank in a distributed job", missing=-1)
    world_size: Column | None = column("i4", "ranks of that job", missing=-1, optional=True)


@dataclass(frozen=True, slots=True)
class Threads(Table):
    """One row per thread; ``(process, tid)`` is unique."""

    process: Column = row_of("processes", "its process")
    tid: Column = column("i8", "operating system thread id", missing=-1)
    name: Column = name_of("what the thread is called")


@dataclass(frozen=True, slots=True)
class Calls(Table):
    """CUDA runtime and driver calls, one row per record (several may share a correlation id)."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    correlation: Column = column(
        "i8", "joins a call to what it started, within its process", missing=-1
    )
    start: Column = time_of("begin")
    end: Column = time_of("end")
    name: Column = name_of("function, without ABI suffix: cudaStreamSynchronize, not …_v3020")
    callchain: Column | None = column("i8", "chain of callchains", missing=-1, optional=True)


@dataclass(frozen=True, slots=True)
class CallChains(Table):
    """Call stacks, one row per frame, by chain and depth."""

    chain: Column = column("i8", "what the column stack (callchain of calls) refers to")
    depth: Column = column("i4", "0 for the innermost frame")
    symbol: Column = name_of(
        "function, or a bare address where it was not resolved; of Python: train.py(12): step"
    )


@dataclass(frozen=True, slots=True)
class Ranges(Table):
    """Push/pop ranges (and, in torch traces, operators and frames): they nest on their thread."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    start: Column = time_of("begin")
    end: Column = time_of(_NEVER, missing=OPEN)
    name: Column = name_of("as recorded")
    domain: Column = name_of("NVTX domain, none for the default one")
    category: Column = name_of("NVTX category")
    source: Column = column(
        "i1",
        "nvtx, annotation, operator, module, python; repeated: not recorded",
        enum=RangeSource,
    )
    payload: Column | None = column("i8", "integer payload", missing=NO_PAYLOAD, optional=True)


@dataclass(frozen=True, slots=True)
class Operators(Table):
    """What torch says of an operator's range, where the source has columns for it."""

    range: Column = row_of("ranges", "its range", dtype="i8")
    sequence: Column = column("i8", "autograd sequence number", missing=-1)
    external: Column = column("i8", "External id, op_id", missing=-1)
    forward_thread: Column = column(
        "i8", "Fwd thread id (autograd's own numbering), 0 in the forward pass", missing=-1
    )
    shapes: Column = name_of("input dimensions as JSON")
    types: Column = name_of("input types as JSON")
    arguments: Column | None = name_of(
        "arguments as JSON, a list of texts, of operators whose work they decide", optional=True
    )


@dataclass(frozen=True, slots=True)
class Spans(Table):
    """Start/end ranges: they may cross threads and overlap, so they never nest."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    end_thread: Column = row_of("threads", "the thread that ended it")
    start: Column = time_of("begin")
    end: Column = time_of(_NEVER, missing=OPEN)
    name: Column = name_of("name")
    domain: Column = name_of("NVTX domain")
    category: Column = name_of("NVTX category")


@dataclass(frozen=True, slots=True)
class Marks(Table):
    """Instantaneous NVTX marks."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    time: Column = time_of("when")
    name: Column = name_of("name")
    domain: Column = name_of("NVTX domain")
    category: Column = name_of("NVTX category")


@dataclass(frozen=True, slots=True)
class Frames(Table):
    """Python function frames, loaded on demand: never owners."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    start: Column = time_of("begin")
    end: Column = time_of("end")
    name: Column = name_of("function and its first line: train.py(12): forward")


@dataclass(frozen=True, slots=True)
class Flows(Table):
    """Arrows of torch traces from a forward operator to its backward node."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "thread of the forward operator")
    time: Column = time_of("begin of the forward operator")
    end_thread: Column = row_of("threads", "thread of the backward node")
    end_time: Column = time_of("begin of the backward node")


@dataclass(frozen=True, slots=True)
class OsCalls(Table):
    """Calls of operating system libraries (``--trace=osrt``): what a thread blocked in."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    start: Column = time_of("begin")
    end: Column = time_of("end")
    name: Column = name_of("function")
    nesting: Column = column("i4", "depth among OS calls")
    stack: Column = column("i8", "chain of os_stacks", missing=-1)


@dataclass(frozen=True, slots=True)
class Samples(Table):
    """What threads did: periodic samples (``--sample``, ``--python-sampling``), backtraces."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    time: Column = time_of("when; of a backtrace, when the CUDA call began")
    cpu: Column = column("i4", "CPU", missing=-1)
    stack: Column = column(
        "i8", "chain of sample_stacks, python_stacks or backtrace_stacks", missing=-1
    )


@dataclass(frozen=True, slots=True)
class Schedule(Table):
    """When threads were put on a CPU and taken off it (``--cpuctxsw``)."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    time: Column = time_of("when")
    cpu: Column = column("i4", "CPU", missing=-1)
    running: Column = column("?", "put on the CPU, else taken off")


@dataclass(frozen=True, slots=True)
class Payloads(Table):
    """Values of structured NVTX payloads, by event and field; only in exports with blobs."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    start: Column = time_of("begin of the event it was attached to")
    end: Column = time_of("end of the event")
    range: Column = row_of("ranges", "that event, none for a span or mark", dtype="i8")
    domain: Column = name_of("NVTX domain")
    schema_name: Column = name_of("payload schema, none where it has no name")
    field: Column = name_of("field of the schema; inside another schema outer.inner")
    element: Column = column(
        "i4", "place among the values of this field in this event, 0 except in arrays"
    )
    integer: Column = column(
        "i8", "value of an integer; unsigned 64-bit numbers wrap", missing=NO_PAYLOAD
    )
    real: Column = column("f8", "value of a floating-point number", missing=float("nan"))
    text: Column = name_of("text, or the name of an enumeration's value")


@dataclass(frozen=True, slots=True)
class PayloadFields(Table):
    """Fields of NVTX payload schemas; payloads themselves are only in exports with blobs."""

    domain: Column = column("i8", "NVTX domain id (ids are reused between processes)")
    schema: Column = column("i8", "schema id")
    schema_name: Column = name_of("payload schema, none where it has no name")
    index: Column = column("i4", "place of the field in the schema")
    name: Column = name_of("name of the field")
    type: Column = column("i8", "NVTX payload entry type, or the id of another schema")
    offset: Column = column("i8", "from the begin of the payload", unit="bytes", missing=-1)


@dataclass(frozen=True, slots=True)
class Overheads(Table):
    """Time the profiler itself took in the program."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    start: Column = time_of("begin")
    end: Column = time_of("end")
    name: Column = name_of("what the profiler did")
