"""Where a trace comes from, how its clocks relate, what it cannot say, what the profiler cost.

``nvprobe launch`` measures steps without and with the profiler and writes both to ``run.json``;
docs/cost.md has the method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class StepTime:
    """Elapsed time of a step, over groups of whole steps between two synchronized points.

    Both ends of a group are synchronized with the GPU, so it holds for programs that are bound by
    the host, by the GPU or by their input alike.
    """

    step_ns: int
    """Median over groups of elapsed time divided by steps."""
    spread_ns: int | None
    """How far a repetition may be off, in both directions; ``None`` where one group cannot say."""
    steps: int
    """Steps in all groups together."""
    groups: int


@dataclass(frozen=True, slots=True)
class RecordCosts:
    """What recording adds to the program, in ns a record.

    All are host time on the recording thread but ``graph_node_ns``, which is time on the GPU.
    """

    source: Literal["measured", "default"]
    """Measured on the capture's machine (``nvprobe doctor --measure``), or docs/cost.md's."""
    call_ns: float
    """A call of the CUDA runtime or driver API, a launch apart."""
    launch_ns: float
    """A call that launches a kernel, with the record of the kernel."""
    range_ns: float
    """An NVTX range (push and pop), however it was written."""
    module_ns: float
    """A module call that nvprobe instruments, its range included."""
    mark_ns: float
    """An implicit synchronization whose line is found, its mark included."""
    graph_node_ns: float
    """A node of a replayed CUDA graph, traced by node; measured on the smallest kernels, which it
    slows most."""
    operator_ns: float
    """An operator that torch.profiler records."""


DEFAULT_COSTS = RecordCosts(
    source="default",
    call_ns=3_000,
    launch_ns=3_000,
    range_ns=4_000,
    module_ns=9_000,
    mark_ns=7_000,
    graph_node_ns=1_100,
    operator_ns=1_000,
)
"""Those of a quiet host with one H200, for captures of machines that were not measured."""


@dataclass(frozen=True, slots=True)
class ProfilingCost:
    """The ``run.json`` of a capture: what profiling cost, and how the program ended."""

    backend: Literal["nsys", "torch"]
    bare: StepTime | None
    """Steps outside the window, instrumentation asleep; ``None`` where none were timed."""
    window: StepTime | None
    """Steps of the window; ``None`` where it was not timed."""
    costs: RecordCosts
    graph_nodes: bool | None
    """Whether CUDA graphs were traced by node; ``None`` where it is not known."""
    failure: str | None = None
    """How the program ended, where it failed: ``exit code 1 after 5.3 s``."""


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
    """``single`` (one source, or torch traces of one run), ``shared`` (one process under both) or
    ``sequence`` (two runs)."""
    offset_ns: tuple[int, int] | None = None
    """Bounds of what was added to the second source's raw times, beyond the difference of their
    origins, to bring them onto the first's clock; ``None`` where times are never compared."""
    matched_share: float | None = None
    """Share of the first source's kernels that found their partner in the second."""
