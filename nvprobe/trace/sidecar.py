"""What a program wrote about itself beside its profile: the sidecar, as tables of a Trace.

Times are nanoseconds of the Trace's own clock. ``process`` and ``thread`` are rows of its tables.
The meaning of each field: docs/sidecar.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from nvprobe.trace.table import NO_ROW, Column, Table, column, name_of, row_of, time_of

Whole = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]
"""A time or a count; sums of such numbers cannot wrap."""


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
class SidecarSteps(Table):
    """A step of the program; its range, where one was recorded, lies inside."""

    process: Column = row_of("processes", "the process")
    index: Column = column("i8", "number of the step")
    start: Column = time_of("begin")
    end: Column = time_of("end")
    found: Column = column("?", "by nvprobe; else marked by the program")


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


class Line(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """A line of a sidecar of one kind, as it is written."""

    process: int = NO_ROW
    """The process that wrote it, once the sidecar is that of a Trace."""


class ManifestNode(msgspec.Struct, frozen=True):
    """An FX node that a kernel computes."""

    name: str = msgspec.field(name="fx")
    op: str
    path_and_class: tuple[str | None, str | None] | None = msgspec.field(
        name="module", default=None
    )
    source: str | None = msgspec.field(name="src", default=None)
    """``train.py:27 forward``."""
    backward: bool = msgspec.field(name="bwd", default=False)
    from_node: Any = None

    @property
    def module(self) -> str | None:
        """Dotted path relative to the compiled root."""
        return self.path_and_class[0] if self.path_and_class else None

    @property
    def recomputed(self) -> bool:
        """Whether it is a node of the forward that the backward graph computes again."""
        return bool(self.from_node) and not self.backward


class ManifestKernel(msgspec.Struct, frozen=True):
    """A kernel call of a compiled graph, in call order; an extern call launches one to several."""

    name: str
    extern: bool = False
    nodes: tuple[ManifestNode, ...] = ()


class GraphManifest(Line, frozen=True, tag="graph"):
    """The kernels of one compiled graph."""

    compile_id: str
    phase: str = ""
    """``fwd`` or ``bwd``."""
    kernels: tuple[ManifestKernel, ...] = ()


class GraphBreak(Line, frozen=True, tag="graph_break"):
    """Why Dynamo ended a graph, and where."""

    compile_id: str | None = None
    reason: str = ""
    source: str | None = None
    function: str | None = None
    stack: tuple[str, ...] = ()


class Reason(msgspec.Struct, frozen=True):
    """Why one earlier compilation did not fit."""

    guard: str | None = None


class Recompile(Line, frozen=True, tag="recompile"):
    """Why a frame was compiled again: one reason for each earlier compilation that did not fit."""

    compile_id: str | None = None
    source: str | None = None
    function: str | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def guards(self) -> tuple[str, ...]:
        """What did not hold of each of the earlier compilations."""
        return tuple(str(reason.guard) for reason in self.reasons)


class CompileSpan(Line, frozen=True, tag="compile_span"):
    """Time spent compiling, by torch's own account; times in unix ns, in a Trace on its clock."""

    compile_id: str | None = None
    phase: str = "fwd"
    start: Whole = msgspec.field(name="start_unix_ns", default=0)
    end: Whole = msgspec.field(name="end_unix_ns", default=0)
    source: str | None = None
    function: str | None = None
    cache_hits: Whole = 0
    failed: str | None = None


class SyncSource(Line, frozen=True, tag="sync"):
    """A line that makes the host wait for the GPU, as torch's own warning says."""

    source: str
    stack: tuple[str, ...] = ()
    count: Whole = 1
    sampled: bool = False
    """Whether only some synchronizations have a mark: in each step the first one at least."""


class Place(msgspec.Struct, frozen=True):
    """A position in the user's code where something that has a name begins."""

    name: str
    """A range's name; a function's, where it has no range (``torch.cuda.empty_cache``)."""
    role: str
    """``entered``, ``called``, ``defined``, ``loop``, ``made``, ``made_apart``."""
    source: str
    category: str | None = None
    """The range's category (``user``, ``phase``, ``module``, ``step``); None for a function."""
    stack: tuple[str, ...] = ()
    """The lines that lead there, innermost first: of functions; of a range that an installed
    package opens, its line and the program's."""
    detail: str | None = None
    """Of a module: its root's range; of a stream wait: which stream waits; of a function compiled
    again: its line."""
    count: Whole = 1
    process: int = NO_ROW


class ModuleObject(msgspec.Struct, frozen=True):
    """A module object that opens ranges of a name, in a mode."""

    name: str
    """The range's name: a path below its root, or a class."""
    object: Whole
    """Its number in the process."""
    root: str | None = None
    """The range of the root that it is part of."""
    trains: bool | None = None
    """Whether it was called in training mode with gradients, or in evaluation mode; None for
    training mode without gradients, and where nobody looked."""
    process: int = NO_ROW


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Everything of all sidecars of a run."""

    modules: ModuleCalls = field(default_factory=ModuleCalls.absent)
    steps: SidecarSteps = field(default_factory=SidecarSteps.absent)
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
    objects: tuple[ModuleObject, ...] = ()
    monotonic: tuple[int, ...] = ()
    """What added to ns of the machine's monotonic clock gives the trace's time, by reading."""
    recorded: bool = True
    """Whether the program wrote a sidecar at all."""

    @classmethod
    def absent(cls) -> Sidecar:
        """What is known of a program that wrote no sidecar."""
        return cls(recorded=False)
