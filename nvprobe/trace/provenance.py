"""Where a trace comes from, how its clocks relate, what it cannot say, what the profiler cost.

``nvprobe launch`` measures steps without and with the profiler and writes both to ``run.json``;
docs/cost.md has the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from nvprobe.trace.rows import Row, is_, ns, pair


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


class RecordCosts(Row, frozen=True):
    """What recording one of each costs; on the host, but graph nodes on the GPU."""

    source: Annotated[str, is_("`measured` on the capture's machine, or `default`")]
    call_ns: Annotated[float, ns("a CUDA call that launches nothing")]
    launch_ns: Annotated[float, ns("a launch call with its kernel")]
    range_ns: Annotated[float, ns("an NVTX range")]
    module_ns: Annotated[float, ns("a call of an instrumented module, its range included")]
    mark_ns: Annotated[float, ns("an implicit synchronization whose line is found")]
    graph_node_ns: Annotated[float, ns("a CUDA graph node traced by node")]
    operator_ns: Annotated[float, ns("an operator that torch.profiler records")]
    ready_node_ns: Annotated[
        float, ns("a CUDA graph node that nsys is ready to trace but does not record, at most")
    ] = 200


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


AHEAD = 0.8
"""The host runs ahead of the GPU where its own step is shorter than this share of the whole."""


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
    host_ns: int | None = None
    """What a ``bare`` step takes the host, from its begin to that of the next one: shorter than the
    step where the host runs ahead of the GPU. ``None`` where too few were timed."""

    @property
    def host_is_ahead(self) -> bool:
        """Whether the host is known to run ahead of the GPU in bare steps."""
        if self.bare is None or self.host_ns is None:
            return False
        return self.host_ns < AHEAD * self.bare.step_ns


class Missing(Row, frozen=True):
    """Something that the capture cannot say."""

    what: Annotated[str, is_("what is absent")]
    why: Annotated[str, is_("why")]
    how: Annotated[str, is_("how to record it")]


class Source(Row, frozen=True):
    """A file that was read."""

    kind: Annotated[str, is_("format: `nsys-sqlite`, `torch-trace`, …")]
    file: Annotated[str, is_("name of the file, without its folder")]
    product_version: Annotated[str | None, is_("version of the profiler that recorded it")]
    lost_events: Annotated[int | None, is_("events that the profiler says it dropped")]
    notes: Annotated[dict[str, str], is_("further facts that the file states")]


class Clock(Row, frozen=True):
    """How the clocks of several sources relate."""

    kind: Annotated[str, is_("`single` source or run, `shared` by two, or a `sequence` of runs")]
    offset_ns: Annotated[
        tuple[int, int] | None,
        pair("offset_low_ns", "offset_high_ns", "bounds of the offset between them", "ns"),
    ]
    matched_share: Annotated[float | None, is_("share of GPU ops found in both sources")]
