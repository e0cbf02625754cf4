"""What the profiler cost, in a line below the verdict."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from nvprobe.analysis.profiler_cost import ProfilerCost
from nvprobe.analysis.result import Analysis
from nvprobe.report.console.format import time
from nvprobe.report.console.view import TreeView

__all__ = ["profiler"]

_NOTABLE = 0.01
"""Idle time of the profiler's from this share of the step on is worth words."""


def profiler(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """The step with and without the profiler, and the idle time that is the profiler's."""
    cost = analysis.profiler
    if cost is None:
        return None
    text = Text(f"A step takes {time(cost.profiled_ns)} profiled, {_unprofiled(cost)}")
    return text.append(_idle(cost)).append(_graphs(cost))


def _unprofiled(cost: ProfilerCost) -> str:
    low, high = cost.bounds_ns
    if cost.source == "estimated":
        return f"an estimated {time(low)} to {time(high)} unprofiled (not measured)"
    spread = high - cost.unprofiled_ns
    sure = f" ± {time(spread)}" if spread else ""
    doubt = "" if cost.is_known else ": profiling costs less than steps vary by"
    return f"{time(cost.unprofiled_ns)}{sure} unprofiled{doubt}"


def _idle(cost: ProfilerCost) -> str:
    """Only of a measurement: an estimate is too coarse to take its difference."""
    if cost.source == "estimated" or not cost.idle_ns or not cost.profiler_idle_ns:
        return ""
    if not cost.is_known or cost.profiler_idle_ns < _NOTABLE * cost.profiled_ns:
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
