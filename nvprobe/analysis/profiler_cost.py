"""How long a step takes without its profiler, and how much of the idle time is the profiler's.

Measured where ``run.json`` has it (docs/cost.md); else as the replay has it, with the bounds of its
calibrations. Without a replay it is estimated from what was recorded in a step and what each record
costs; that is coarse: it lies between no cost at all and twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from nvprobe.analysis.findings.model import Evidence
from nvprobe.analysis.replay.prepared import Replay
from nvprobe.attribution.kinds import OWN_DOMAIN
from nvprobe.attribution.model import Kind
from nvprobe.trace import (
    DEFAULT_COSTS,
    NO_NAME,
    Column,
    ProfilingCost,
    RangeSource,
    RecordCosts,
    StepTime,
    Trace,
)
from nvprobe.trace.cuda_calls import LAUNCHES, calls_with
from nvprobe.trace.rows import Row, is_

REPLAY_ERROR = 0.05
"""Of a step whose calibration is right; on programs whose step is known it was half of that."""


class Records(Row, frozen=True):
    """What the profiler recorded in a step on average."""

    calls: Annotated[float, is_("CUDA calls that launch nothing")]
    launches: Annotated[float, is_("launch calls")]
    ranges: Annotated[float, is_("NVTX ranges")]
    modules: Annotated[float, is_("ranges of instrumented modules")]
    marks: Annotated[float, is_("marks of implicit synchronizations")]
    operators: Annotated[float, is_("operators of torch.profiler")]
    graph_nodes: Annotated[float, is_("CUDA graph nodes traced one by one")]

    def host_ns(self, costs: RecordCosts) -> float:
        """What recording them costs the host."""
        return (
            self.calls * costs.call_ns
            + self.launches * costs.launch_ns
            + self.ranges * costs.range_ns
            + self.modules * costs.module_ns
            + self.marks * costs.mark_ns
            + self.operators * costs.operator_ns
        )

    def gpu_ns(self, costs: RecordCosts) -> float:
        """What it costs the GPU at most: nodes of CUDA graphs that are traced one by one."""
        return self.graph_nodes * costs.graph_node_ns

    def ready_ns(self, costs: RecordCosts) -> float:
        """What they cost it at most in a step that is not recorded."""
        return self.graph_nodes * costs.ready_node_ns


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """A step with the profiler and without it, elapsed time in nanoseconds."""

    backend: Literal["nsys", "torch"]
    source: Literal["measured", "estimated"]
    profiled_ns: int
    unprofiled_ns: int
    bounds_ns: tuple[int, int]
    """Of the unprofiled step; equal to it where a measurement cannot tell its spread."""
    difference_spread_ns: int
    """How far what profiling costs may be off: the spread of both measurements."""
    idle_ns: int | None
    """Of the profiled step; ``None`` where the steps use several GPUs, or none."""
    profiler_idle_ns: int | None
    """How much of ``idle_ns`` the profiler causes."""
    records: Records
    costs: RecordCosts

    @property
    def is_known(self) -> bool:
        """Whether profiling costs more than steps vary by."""
        cost = self.profiled_ns - self.unprofiled_ns
        return self.source == "estimated" or cost > self.difference_spread_ns


def profiler_cost(evidence: Evidence, by: Replay | None = None) -> ProfilerCost | None:
    """The cost of profiling a step of the leading process; ``None`` without steady steps.

    ``by``: its replay, which gives the estimate; without one a step is shorter by what its records
    cost.
    """
    rows = _leading(evidence)
    if not len(rows):
        return None
    trace = evidence.trace
    measured = trace.profiling
    records = _records(evidence, rows)
    costs = measured.costs if measured else DEFAULT_COSTS
    profiled, busy = _elapsed(evidence, rows), _busy(evidence, rows)
    if measured and measured.window and measured.window.steps <= len(rows):  # else some left out
        profiled = measured.window.step_ns
    if measured and measured.bare:
        source: Literal["measured", "estimated"] = "measured"
        ready = _ready_ns(measured, records, busy or 0)
        unprofiled = measured.bare.step_ns - ready // 2
        bounds = _measured_bounds(measured.bare, ready)
        difference_spread = _difference_spread(measured.bare, measured.window, ready)
    else:
        source, difference_spread = "estimated", 0
        host, gpu = records.host_ns(costs), records.gpu_ns(costs)
        floor = min(profiled, busy or 0)
        unprofiled = max(floor, profiled - round(host))
        bounds = max(floor, profiled - round(2 * host + gpu)), profiled
        if by is not None:
            unprofiled = min(by.step_ns, profiled)
            bounds = _replayed_bounds(by, floor, profiled, unprofiled)
    idle = None if busy is None else max(profiled - busy, 0)
    return ProfilerCost(
        backend=_backend(trace),
        source=source,
        profiled_ns=profiled,
        unprofiled_ns=unprofiled,
        bounds_ns=bounds,
        difference_spread_ns=difference_spread,
        idle_ns=idle,
        profiler_idle_ns=None if idle is None else min(max(profiled - unprofiled, 0), idle),
        records=records,
        costs=costs,
    )


def _replayed_bounds(by: Replay, floor: int, profiled: int, unprofiled: int) -> tuple[int, int]:
    """The step by all calibrations that may hold, and the replay's own error."""
    low, high = min(*by.steps_ns, unprofiled), max(by.steps_ns)
    most = min(round((1 + REPLAY_ERROR) * high), profiled)
    least = max(floor, round((1 - REPLAY_ERROR) * low))
    return min(least, unprofiled), max(most, unprofiled)


def _ready_ns(cost: ProfilingCost, records: Records, busy: int) -> int:
    """What nsys adds at most to a step that it does not record: it has prepared nodes of graphs.

    No more than leaves the GPU's busy time, of which tracing has made nodes longer.
    """
    if cost.backend != "nsys" or cost.graph_nodes is not True or cost.bare is None:
        return 0
    least = max(busy - round(records.gpu_ns(cost.costs)), 0)
    return min(round(records.ready_ns(cost.costs)), max(cost.bare.step_ns - least, 0))


def _measured_bounds(bare: StepTime, ready: int) -> tuple[int, int]:
    """The step with its spread; all of what nodes may cost is taken out of it, or nothing."""
    spread = bare.spread_ns or 0
    return max(0, bare.step_ns - ready - spread), bare.step_ns + spread


def _difference_spread(bare: StepTime, window: StepTime | None, ready: int) -> int:
    """The spread of both measurements together, and what nodes may cost more or less."""
    spreads = [time.spread_ns for time in (bare, window) if time and time.spread_ns]
    return ready // 2 + (round(float(np.hypot.reduce(spreads))) if spreads else 0)


def _backend(trace: Trace) -> Literal["nsys", "torch"]:
    """Who recorded the GPU's work."""
    return "nsys" if any(source.kind.startswith("nsys") for source in trace.sources) else "torch"


def _leading(evidence: Evidence) -> Column:
    """Steady steps, in order, of the process that has most of them."""
    rows = evidence.steady
    if not len(rows):
        return rows
    process = evidence.steps.process[rows]
    rows = rows[process == np.bincount(process).argmax()]
    return rows[np.argsort(evidence.steps.start[rows])]


def _elapsed(evidence: Evidence, rows: Column) -> int:
    """A step's share of the host's time or of the GPU's, whichever is longer."""
    start, end = evidence.steps.start[rows], evidence.steps.end[rows]
    host = np.median(np.diff(start)) if len(rows) > 1 else end[0] - start[0]
    mine = np.isin(evidence.step_of_op, rows) & evidence.trusted
    if not mine.any():
        return int(host)
    ops = evidence.ops
    return int(max(host, (ops.end[mine].max() - ops.start[mine].min()) / len(rows)))


def _busy(evidence: Evidence, rows: Column) -> int | None:
    """Busy time of a step on its one GPU."""
    devices = np.unique(evidence.ops.device[np.isin(evidence.step_of_op, rows)])
    if len(devices) != 1:
        return None
    return int(np.median(evidence.steps.gpu_busy_ns[rows]))


def _records(evidence: Evidence, rows: Column) -> Records:
    """Counts over the steady steps, divided by their number."""
    trace, steps = evidence.trace, evidence.steps
    process = int(steps.process[rows[0]])
    begin, end = steps.start[rows], steps.end[rows]

    def mean(of: Column, time: Column, chosen: Column) -> float:
        """How many of the chosen records of this process begin in a step."""
        times = np.sort(time[(of == process) & chosen], kind="stable")  # nearly sorted: linear
        inside = np.searchsorted(times, end) - np.searchsorted(times, begin)
        return float(inside.sum()) / len(rows)

    calls, ranges, marks = trace.calls, trace.ranges, trace.marks
    launch = calls_with(trace, LAUNCHES)
    written = np.isin(ranges.source, (RangeSource.NVTX, RangeSource.ANNOTATION))
    module = written & (evidence.attribution.tree.kind == Kind.MODULE)
    operator = ranges.source == RangeSource.OPERATOR
    sync = _is(trace, marks.domain, OWN_DOMAIN) & _is(trace, marks.category, "sync")
    return Records(
        calls=mean(calls.process, calls.start, ~launch),
        launches=mean(calls.process, calls.start, launch),
        ranges=mean(ranges.process, ranges.start, written & ~module),
        modules=mean(ranges.process, ranges.start, module),
        marks=mean(marks.process, marks.time, sync),
        operators=mean(ranges.process, ranges.start, operator),
        graph_nodes=_graph_nodes(evidence, rows),
    )


def _graph_nodes(evidence: Evidence, rows: Column) -> float:
    """Those that were traced as such: of ``--accurate`` they were in another run."""
    measured = evidence.trace.profiling
    if measured is not None and measured.graph_nodes is False:
        return 0.0
    nodes = evidence.ops.graph_node
    mine = np.isin(evidence.step_of_op, rows)
    return float(np.count_nonzero(mine & (nodes != 0))) / len(rows)


def _is(trace: Trace, names: Column, text: str) -> Column:
    """Bool per row: its name is ``text``."""
    distinct = np.unique(names[names != NO_NAME])
    return np.isin(names, distinct[[one == text for one in trace.texts(distinct)]])
