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

from dataclasses import dataclass

import pyarrow as pa

from nvprobe.trace.gpu import (
    Counters,
    CudaEvents,
    Devices,
    Geometry,
    GraphNodes,
    MemoryEvents,
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
from nvprobe.trace.profiling import DEFAULT_COSTS, ProfilingCost, RecordCosts, StepTime
from nvprobe.trace.provenance import Clock, Missing, Source
from nvprobe.trace.sidecar import Sidecar
from nvprobe.trace.table import (
    NO_DEVICE,
    NO_NAME,
    NO_PAYLOAD,
    NO_ROW,
    OPEN,
    Column,
    Table,
    column,
)

__all__ = [
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
    python_samples: Samples | None = None
    python_stacks: CallChains | None = None
    backtraces: Samples | None = None
    """Python stacks of CUDA calls: each at the time that its call begins at."""
    backtrace_stacks: CallChains | None = None
    schedule: Schedule | None = None
    page_faults: PageFaults | None = None
    payload_fields: PayloadFields | None = None
    payloads: Payloads | None = None
    sidecar: Sidecar | None = None
    profiling: ProfilingCost | None = None
    """What the profiler cost, where a ``run.json`` lies beside the capture."""
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

    def text(self, name: int) -> str | None:
        """The string of one name index."""
        return None if name < 0 else str(self.strings[int(name)].as_py())

    def texts(self, names: Column) -> list[str | None]:
        """The strings of many name indices, in order."""
        indices = pa.array(names, mask=names < 0)
        return list(self.strings.take(indices).to_pylist())
