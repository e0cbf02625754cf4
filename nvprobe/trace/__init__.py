"""What a profiler recorded, as plain numpy columns.

A :class:`Trace` holds column tables in one vocabulary, whatever tool wrote the file. Conventions
that hold for every table:

* times are int64 nanoseconds since the trace's time zero and never rounded; ``origin_ns`` on the
  trace is that zero as UTC nanoseconds, where the source knows it;
* names are int32 rows of ``Trace.strings`` (an Arrow array), ``NO_NAME`` where there is none; equal
  rows are equal texts, but an equal text may stand in several rows (1.5 M unique range names are
  not searched for equal ones): compare texts, or what they are cleaned to, across rows;
* ``process``, ``thread`` and ``device`` are int32 *rows* of those tables, never raw ids, so that a
  join that forgets the process (two processes reuse the same correlation ids) cannot be written;
* no table is ever ``None``. One without rows may be recorded (nothing happened) or not (nothing is
  known): ``Trace.recorded`` names the tables that a source recorded, ``Trace.missing`` says in
  words what is absent, why, and how to record it.

Column meanings, units and values for "none": ``Ops.column_schemas()``. What the columns
mean for attribution: docs/attribution.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pyarrow as pa

from nvprobe.trace.gpu import (
    Counters,
    CudaEvents,
    Devices,
    Geometry,
    GraphNodes,
    MemoryEvents,
    Messages,
    OpKind,
    Ops,
    PageFaults,
    Syncs,
)
from nvprobe.trace.host import (
    CallChains,
    Calls,
    Flows,
    Frames,
    Marks,
    Operators,
    OsCalls,
    Overheads,
    PayloadFields,
    Payloads,
    Processes,
    Ranges,
    RangeSource,
    Samples,
    Schedule,
    Spans,
    Threads,
)
from nvprobe.trace.provenance import (
    AHEAD,
    DEFAULT_COSTS,
    Clock,
    Missing,
    ProfilingCost,
    RecordCosts,
    Source,
    StepTime,
)
from nvprobe.trace.sidecar import Sidecar
from nvprobe.trace.table import (
    NO_DEVICE,
    NO_NAME,
    NO_PAYLOAD,
    NO_ROW,
    OPEN,
    Column,
    ColumnSchema,
    Table,
    column,
)

__all__ = [
    "AHEAD",
    "DEFAULT_COSTS",
    "NO_DEVICE",
    "NO_NAME",
    "NO_PAYLOAD",
    "NO_ROW",
    "OPEN",
    "CallChains",
    "Calls",
    "Clock",
    "Column",
    "ColumnSchema",
    "Counters",
    "CudaEvents",
    "Devices",
    "Flows",
    "Frames",
    "Geometry",
    "GraphNodes",
    "Marks",
    "MemoryEvents",
    "Messages",
    "Missing",
    "OpKind",
    "Operators",
    "Ops",
    "OsCalls",
    "Overheads",
    "PageFaults",
    "PayloadFields",
    "Payloads",
    "Processes",
    "ProfilingCost",
    "RangeSource",
    "Ranges",
    "RecordCosts",
    "Samples",
    "Schedule",
    "Source",
    "Spans",
    "StepTime",
    "Syncs",
    "Table",
    "Threads",
    "Trace",
    "column",
]


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """Everything one capture recorded; a table that no source recorded is empty (``absent()``)."""

    strings: pa.StringArray
    sources: tuple[Source, ...]
    processes: Processes
    threads: Threads
    devices: Devices
    calls: Calls = field(default_factory=Calls.absent)
    callchains: CallChains = field(default_factory=CallChains.absent)
    ops: Ops = field(default_factory=Ops.absent)
    geometry: Geometry = field(default_factory=Geometry.absent)
    ranges: Ranges = field(default_factory=Ranges.absent)
    messages: Messages = field(default_factory=Messages.absent)
    operators: Operators = field(default_factory=Operators.absent)
    spans: Spans = field(default_factory=Spans.absent)
    marks: Marks = field(default_factory=Marks.absent)
    syncs: Syncs = field(default_factory=Syncs.absent)
    graph_nodes: GraphNodes = field(default_factory=GraphNodes.absent)
    overheads: Overheads = field(default_factory=Overheads.absent)
    frames: Frames = field(default_factory=Frames.absent)
    flows: Flows = field(default_factory=Flows.absent)
    memory: MemoryEvents = field(default_factory=MemoryEvents.absent)
    counters: Counters = field(default_factory=Counters.absent)
    cuda_events: CudaEvents = field(default_factory=CudaEvents.absent)
    os_calls: OsCalls = field(default_factory=OsCalls.absent)
    os_stacks: CallChains = field(default_factory=CallChains.absent)
    samples: Samples = field(default_factory=Samples.absent)
    sample_stacks: CallChains = field(default_factory=CallChains.absent)
    python_samples: Samples = field(default_factory=Samples.absent)
    python_stacks: CallChains = field(default_factory=CallChains.absent)
    backtraces: Samples = field(default_factory=Samples.absent)
    """Python stacks of CUDA calls: each at the time that its call begins at."""
    backtrace_stacks: CallChains = field(default_factory=CallChains.absent)
    schedule: Schedule = field(default_factory=Schedule.absent)
    page_faults: PageFaults = field(default_factory=PageFaults.absent)
    payload_fields: PayloadFields = field(default_factory=PayloadFields.absent)
    payloads: Payloads = field(default_factory=Payloads.absent)
    sidecar: Sidecar = field(default_factory=Sidecar.absent)
    profiling: ProfilingCost | None = None
    """What the profiler cost, where a ``run.json`` lies beside the capture."""
    clock: Clock = Clock("single", None, None)
    domains: tuple[str, ...] = ()
    """NVTX domains that were created, whether or not anything was recorded in them."""
    diagnostics: tuple[tuple[int, str], ...] = ()
    """The capture's own messages: (severity, text), severity 1 information, 2 warning, 3 error."""
    start_ns: int = 0
    """Begin of the capture window."""
    end_ns: int = 0
    """End of the capture: open ranges last until here."""
    origin_ns: int | None = None
    """UTC nanoseconds of time zero, where the source has them."""
    unrecorded: tuple[tuple[int, int], ...] = ()
    """(begin, end) of stretches in the window that no source recorded: no device idles there."""
    warnings: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def __repr__(self) -> str:
        """What was read of which files, in a line."""
        files = " and ".join(source.file for source in self.sources) or "nothing"
        tables = {"GPU ops": self.ops, "calls": self.calls, "ranges": self.ranges}
        counts = (f"{len(table) if table else 'no'} {name}" for name, table in tables.items())
        return f"<nvprobe trace of {files}: {', '.join(counts)}>"

    @property
    def recorded(self) -> frozenset[str]:
        """Names of the tables that a source recorded, with or without rows."""
        tables = ((spec.name, getattr(self, spec.name)) for spec in fields(self))
        return frozenset(
            name for name, table in tables if isinstance(table, (Table, Sidecar)) and table.recorded
        )

    def text(self, name: int) -> str | None:
        """The string of one name index."""
        return None if name < 0 else str(self.strings[int(name)].as_py())

    def texts(self, names: Column) -> list[str | None]:
        """The strings of many name indices, in order."""
        indices = pa.array(names, mask=names < 0)
        return list(self.strings.take(indices).to_pylist())
