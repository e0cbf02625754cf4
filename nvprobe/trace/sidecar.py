"""What a program wrote about itself beside its profile: the sidecar, as tables of a Trace.

Times are nanoseconds of the Trace's own clock. ``process`` and ``thread`` are rows of its tables.
The meaning of each field: docs/sidecar.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvprobe.trace.table import Column, Table, column, name_of, row_of, time_of


@dataclass(frozen=True, slots=True)
class ModuleCalls(Table):
    """One call of a module's forward: ``first_sequence <= n < last_sequence`` are its nodes."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    module: Column = name_of("the module's range name: fwd:blocks.0.fc1, or its path")
    first_sequence: Column = column("i8", "autograd sequence number when it began", missing=-1)
    last_sequence: Column = column("i8", "autograd sequence number when it ended", missing=-1)
    start: Column = time_of("begin", missing=-1)
    end: Column = time_of("end", missing=-1)


@dataclass(frozen=True, slots=True)
class CaptureRanges(Table):
    """Ranges opened while a CUDA graph was captured, also before the profiled window."""

    process: Column = row_of("processes", "the process")
    thread: Column = row_of("threads", "the thread")
    capture: Column = column(
        "i8", "number of the capture: the payload of its capture and replay ranges"
    )
    depth: Column = column("i4", "ranges around it")
    start: Column = time_of("begin", missing=-1)
    end: Column = time_of("end", missing=-1)
    name: Column = name_of("as recorded")
    category: Column = name_of("module for a module's range")


@dataclass(frozen=True, slots=True)
class AllocatorSamples(Table):
    """Counters of torch's caching allocator, one row per reading and device.

    Those that only grow count from the program's begin, and peaks too unless the program resets
    them.
    """

    process: Column = row_of("processes", "the process")
    device: Column = row_of("devices", "the GPU, where it is known which one it is")
    ordinal: Column = column("i4", "torch's number of the device in this process")
    time: Column = time_of("between two steps")
    allocated: Column = column("i8", "in use", unit="bytes", missing=-1)
    reserved: Column = column("i8", "held from the driver", unit="bytes", missing=-1)
    peak_allocated: Column = column("i8", "most in use so far", unit="bytes", missing=-1)
    peak_reserved: Column = column("i8", "most held so far", unit="bytes", missing=-1)
    retries: Column = column(
        "i8", "allocations refused until all cached memory had been given back", missing=-1
    )
    device_allocs: Column = column("i8", "calls of cudaMalloc and the like", missing=-1)
    device_frees: Column = column("i8", "calls of cudaFree and the like", missing=-1)
    out_of_memory: Column = column("i8", "allocations that failed", missing=-1)


@dataclass(frozen=True, slots=True)
class ManifestNode:
    """An FX node that a kernel computes."""

    name: str
    op: str
    module: str | None
    """Dotted path relative to the compiled root."""
    module_class: str | None
    source: str | None
    """``train.py:27 forward``."""
    backward: bool
    recomputed: bool
    """A node of the forward that the backward graph computes again."""
    sequence: int
    """Autograd sequence number while compiling, -1 unknown."""


@dataclass(frozen=True, slots=True)
class ManifestKernel:
    """A kernel call of a compiled graph, in call order; an extern call launches one to several."""

    name: str
    extern: bool
    nodes: tuple[ManifestNode, ...]


@dataclass(frozen=True, slots=True)
class GraphManifest:
    """The kernels of one compiled graph."""

    process: int
    compile_id: str
    phase: str
    """``fwd`` or ``bwd``."""
    kernels: tuple[ManifestKernel, ...]


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Why Dynamo ended a graph, and where."""

    process: int
    compile_id: str | None
    reason: str
    source: str | None
    function: str | None
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recompile:
    """Why a frame was compiled again: one reason for each earlier compilation that did not fit."""

    process: int
    compile_id: str | None
    source: str | None
    function: str | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompileSpan:
    """Time spent compiling, by torch's own account."""

    process: int
    compile_id: str | None
    phase: str
    start: int
    end: int
    source: str | None
    function: str | None
    cache_hits: int
    failed: str | None


@dataclass(frozen=True, slots=True)
class SyncSource:
    """A line that makes the host wait for the GPU, as torch's own warning says."""

    process: int
    source: str
    stack: tuple[str, ...]
    count: int
    sampled: bool = False
    """Whether only some synchronizations have a mark: in each step the first one at least."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the user's code where something that has a name begins."""

    process: int
    name: str
    """A range's name; a function's, where it has no range (``torch.cuda.empty_cache``)."""
    category: str | None
    """The range's category (``user``, ``phase``, ``module``, ``step``); None for a function."""
    role: str
    """``entered``, ``called``, ``defined``, ``loop``, ``made``, ``made_apart``."""
    source: str
    stack: tuple[str, ...]
    """The lines that lead there, innermost first: of functions; of a range that an installed
    package opens, its line and the program's."""
    detail: str | None
    """Of a module: its root's range; of a stream wait: which stream waits; of a function compiled
    again: its line."""
    count: int


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Everything of all sidecars of a run."""

    modules: ModuleCalls = field(default_factory=ModuleCalls.absent)
    captures: CaptureRanges = field(default_factory=CaptureRanges.absent)
    manifests: tuple[GraphManifest, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    compile_spans: tuple[CompileSpan, ...] = ()
    syncs: tuple[SyncSource, ...] = ()
    roots: tuple[str, ...] = ()
    """Class names of the models whose modules were given ranges."""
    allocator: AllocatorSamples = field(default_factory=AllocatorSamples.absent)
    places: tuple[Place, ...] = ()
    recorded: bool = True
    """Whether the program wrote a sidecar at all."""

    @classmethod
    def absent(cls) -> Sidecar:
        """What is known of a program that wrote no sidecar."""
        return cls(recorded=False)
