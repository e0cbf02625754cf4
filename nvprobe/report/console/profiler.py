"""What the profiler cost, behind the line of the steps."""

from __future__ import annotations

from nvprobe.analysis.profiler_cost import ProfilerCost
from nvprobe.analysis.result import Analysis
from nvprobe.report.console.format import span, time

_NOTABLE = 0.01
"""Idle time of the profiler's from this share of the step on is worth words."""
_UNKNOWN = 0.5
"""A step that may be off by this share says nothing."""


def profiler(analysis: Analysis) -> str:
    """The step without the profiler, and the idle time that is the profiler's."""
    cost = analysis.profiler
    if cost is None:
        return ""
    return f"; {_unprofiled(cost)}{_idle(cost)}{_graphs(cost)}"


def _unprofiled(cost: ProfilerCost) -> str:
    low, high = cost.bounds_ns
    if cost.source == "estimated":
        return f"unprofiled an estimated {span(low, high)} (not measured)"
    spread = high - cost.unprofiled_ns
    if _is_vague(cost):
        off = f"{spread / cost.unprofiled_ns:.0%}"
        return f"unprofiled not known: {time(cost.unprofiled_ns)} may be off by {off}"
    sure = f" ± {time(spread)}" if spread else ""
    doubt = "" if cost.is_known else ": profiling costs less than steps vary by"
    return f"{time(cost.unprofiled_ns)}{sure} unprofiled{doubt}"


def _is_vague(cost: ProfilerCost) -> bool:
    return cost.bounds_ns[1] - cost.unprofiled_ns >= _UNKNOWN * cost.unprofiled_ns


def _idle(cost: ProfilerCost) -> str:
    """Only of a measurement: an estimate is too coarse to take its difference."""
    if cost.source == "estimated" or not cost.idle_ns or not cost.profiler_idle_ns:
        return ""
    if _is_vague(cost) or not cost.is_known or cost.profiler_idle_ns < _NOTABLE * cost.profiled_ns:
        return ""
    share = cost.profiler_idle_ns / cost.idle_ns
    return f"; {share:.0%} of its idle time ({time(cost.idle_ns)}) is the profiler's"


def _graphs(cost: ProfilerCost) -> str:
    nodes = cost.records.graph_nodes
    if nodes < 1:
        return ""
    added = round(cost.records.gpu_ns(cost.costs))
    return (
        f"; tracing {nodes:,.0f} nodes of CUDA graphs one by one slows the GPU by up to "
        f"{time(added)} of it"
    )
