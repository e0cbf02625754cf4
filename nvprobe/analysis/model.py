"""Tables of an analysis that several modules make or read; the whole is in ``analysis``.

Conventions: times are integer nanoseconds; ``UNKNOWN`` stands where a quantity cannot be known
(JSON: null, never 0); ``path`` columns are rows of ``attribution.paths`` (-1: no path). See
docs/attribution.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import numpy as np

from nvprobe.trace import Column, Table, column
from nvprobe.trace.rows import Row, is_, ns

UNKNOWN = int(np.iinfo(np.int64).min)
"""A quantity that cannot be known from this input."""


@dataclass(frozen=True, slots=True)
class PathQuantities(Table):
    """Quantities of every path: row *i* belongs to row *i* of ``attribution.paths``.

    Inclusive where not said otherwise: an op counts for each path that its owner path begins with.
    """

    calls: Column = column("i8")
    """Instances; replays for ranges that were seen only inside graph replays."""
    wall_ns: Column = column("i8")
    """Host time inside; UNKNOWN for ranges seen only inside graph replays."""
    self_wall_ns: Column = column("i8")
    """Host time inside it and in no range opened later; UNKNOWN as ``wall_ns``."""
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")
    """Sum of the durations of its ops."""
    gpu_self_ns: Column = column("i8")
    """The same for ops whose owner path is this very path."""
    gpu_busy_ns: Column = column("i8")
    """Length of the union of its ops, per device, summed over devices."""
    gpu_span_ns: Column = column("i8")
    """Per instance: first op start to last op end; summed over instances."""
    order: Column = column("i8")
    """Position in a depth-first walk of the tree, siblings in order of appearance."""
    sync_ns: Column | None = column("i8", optional=True)
    """Host time blocked in synchronizing calls here."""
    idle_ns: Column | None = column("i8", optional=True)
    """GPU idle time assigned here."""
    exposed_comm_ns: Column | None = column("i8", optional=True)
    """Communication with no compute running beside it on that device."""


@dataclass(frozen=True, slots=True)
class Kernels(Table):
    """GPU work by kernel name (whole-graph records by theirs), the longest first."""

    name: Column = column("i4")
    """Row of the trace's strings: the demangled name."""
    short_name: Column = column("i4")
    kind: Column = column("i1")
    """:class:`~nvprobe.trace.OpKind`."""
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")
    longest_ns: Column = column("i8")
    top_path: Column = column("i4")
    """The owner path with most of its time, -1 where that time has no owner."""
    top_path_ns: Column = column("i8")
    suspect_ops: Column = column("i8")
    """Ops that contain their successors on a serial stream: their end cannot be right."""
    suspect_ns: Column = column("i8")
    """Their time; the table is sorted by ``gpu_ns - suspect_ns``."""


@dataclass(frozen=True, slots=True)
class Copies(Table):
    """Copies and sets by name (``Memcpy HtoD``), the longest first."""

    name: Column = column("i4")
    kind: Column = column("i1")
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")
    bytes: Column = column("i8")
    top_path: Column = column("i4")


class FoundBy(IntEnum):
    """How the steps of a process were found: the strongest evidence that there was."""

    ENGINE = 0
    """Names of an inference engine, or the user's own (``--step-name``)."""
    MARK = 1
    """Ranges of kind step: nvprobe's hooks, torch.profiler."""
    NAME = 2
    """Names that end in a step word."""
    MODULE_CALL = 3
    COMPILED_CALL = 4
    GRAPH_LAUNCH = 5
    READ_BACK = 6
    """A value read back to the host, once a period."""
    KERNEL_PERIOD = 7
    """The period of the sequence of kernel names."""


UNITS = {
    FoundBy.ENGINE: "iteration",
    FoundBy.MARK: "step",
    FoundBy.NAME: "step",
    FoundBy.MODULE_CALL: "call",
    FoundBy.COMPILED_CALL: "call",
    FoundBy.GRAPH_LAUNCH: "graph replay",
    FoundBy.READ_BACK: "read-back",
    FoundBy.KERNEL_PERIOD: "period",
}
"""What a step is, by how it was found."""


@dataclass(frozen=True, slots=True)
class Steps(Table):
    """Training steps, tokens, iterations of a server, ... by process and time."""

    process: Column = column("i4")
    range: Column = column("i8")
    """Row of ``trace.ranges``, -1 where no range marks it."""
    path: Column = column("i4")
    index: Column = column("i8")
    """The number in its name, else its position among the steps of its process."""
    start: Column = column("i8")
    end: Column = column("i8")
    wall_ns: Column = column("i8")
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")
    gpu_busy_ns: Column = column("i8")
    missing_launches: Column = column("i8")
    """Launch calls of this step without any GPU record: trust no idle figure where there are."""
    found_by: Column = column("i1")
    """:class:`FoundBy`."""
    phase: Column = column("i1")
    """:class:`~nvprobe.attribution.engines.StepPhase`; UNKNOWN for what is not inference."""
    prefill_requests: Column = column("i8")
    """UNKNOWN, as the next four, where nothing says."""
    prefill_tokens: Column = column("i8")
    decode_requests: Column = column("i8")
    decode_tokens: Column = column("i8")
    kv_tokens: Column = column("i8")
    padded_requests: Column = column("i8")
    """Requests that a CUDA graph computed for: the batch and its padding."""
    steady: Column | None = column("?", optional=True)
    """Bool: the report is about it; ``None`` where it is about all of them."""
    idle_ns: Column | None = column("i8", optional=True)
    """GPU idle time inside the step, over devices; UNKNOWN outside of what a report is about."""

    @property
    def shown(self) -> Steps:
        """The steps that a report is about."""
        return self if self.steady is None else self.take(self.steady)


class StepSpread(Row, frozen=True):
    """How much the host time of steps varies."""

    count: Annotated[int, is_("steps")]
    shortest_ns: Annotated[int, ns("the shortest")]
    median_ns: Annotated[int, ns("the median, the upper one of an even number")]
    longest_ns: Annotated[int, ns("the longest")]
    slowest: Annotated[int, is_("index of the longest")]


@dataclass(frozen=True, slots=True)
class SpanRows(Table):
    """Start/end ranges by name and domain: beside the tree, never nodes in it."""

    name: Column = column("i4")
    domain: Column = column("i4")
    calls: Column = column("i8")
    wall_ns: Column = column("i8")
    longest_ns: Column = column("i8")
    unclosed: Column = column("i8")


@dataclass(frozen=True, slots=True)
class DeviceUse(Table):
    """One row a physical device that ran something, by row of ``trace.devices``."""

    device: Column = column("i4")
    """Row of ``trace.devices``, -1 where the source names no device."""
    ops: Column = column("i8")
    start: Column = column("i8")
    """Start of its first op."""
    end: Column = column("i8")
    """End of its last op."""
    busy_ns: Column = column("i8")
    idle_ns: Column = column("i8")
    window_ns: Column = column("i8")
