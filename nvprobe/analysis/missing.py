"""What a report cannot say of this capture, why, and how to record it."""

from __future__ import annotations

from nvprobe.analysis.kernels.work import convolutions_without_work
from nvprobe.analysis.model import Steps
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.shapes import RangeShapes
from nvprobe.attribution.model import Attribution, Method
from nvprobe.trace import Missing, OpKind

__all__ = ["missing", "not_computed"]

_OPTIONAL = {
    "modules": "modules",
    "operators": "operators",
    "waits": "idle causes, syncs, overlap, collectives, host time",
    "compiled_graphs": "compiled_graphs",
    "findings": "findings",
}
"""Fields of an Analysis that an older nvprobe leaves out, and what is then missing."""
_OF_THE_CAPTURE = {
    "memory": Missing(
        "memory",
        "the capture has no allocations of GPU memory",
        "profile with profile_memory=True, or nvprobe launch --memory-usage",
    ),
    "counters": Missing(
        "counters", "the capture has no GPU metrics", "nvprobe launch --gpu-metrics"
    ),
}
"""Fields of an Analysis that are ``None`` where the capture has nothing for them."""


def missing(attribution: Attribution, steps: Steps, shapes: RangeShapes) -> tuple[Missing, ...]:
    """What the loader missed, then what only an attribution shows to be absent."""
    found = [
        *attribution.trace.missing,
        _captured_ranges(attribution),
        _steps(attribution, steps),
        _convolutions(attribution, shapes),
    ]
    return tuple(entry for entry in found if entry is not None)


def not_computed(analysis: Analysis) -> tuple[Missing, ...]:
    """The fields of the schema that were not computed of this input: null, never 0."""
    old = [
        Missing(what, "this version of nvprobe does not compute it", "upgrade nvprobe")
        for field, what in _OPTIONAL.items()
        if getattr(analysis, field) is None
    ]
    told = [one for field, one in _OF_THE_CAPTURE.items() if getattr(analysis, field) is None]
    return (*old, *told)


def _captured_ranges(attribution: Attribution) -> Missing | None:
    """Graph nodes whose creation is known, but with no range open then."""
    trace = attribution.trace
    if not len(trace.graph_nodes):
        return None
    nodes = (attribution.method == Method.GRAPH_LAUNCH) & (trace.ops.kind != OpKind.GRAPH)
    if not nodes.any():
        return None
    return Missing(
        "ranges inside CUDA graphs",
        f"{int(nodes.sum()):,} ops of replayed graphs belong to the launch of their graph: no "
        "range of the time of capture is in this file",
        "let the window include the capture of the graphs, or train with nvprobe.instrument(), "
        "whose sidecar keeps it",
    )


def _steps(attribution: Attribution, steps: Steps) -> Missing | None:
    if len(steps):
        return None
    of_torch = any(source.kind == "torch-trace" for source in attribution.trace.sources)
    ways = ["give the profiler a schedule and call its step() in the loop"] if of_torch else []
    ways += ["loop over nvprobe.steps(loader)", 'open a range named "step N"']
    why = "no range marks one; pauses and library ranges are not taken for steps"
    if attribution.outside is not None:
        why, ways = "no range inside the filters marks one", ["take the filters off", *ways]
    return Missing(
        "steps",
        why,
        ", ".join(ways[:-1]) + f", or {ways[-1]}",
    )


def _convolutions(attribution: Attribution, shapes: RangeShapes) -> Missing | None:
    count = convolutions_without_work(attribution, shapes)
    if not count:
        return None
    return Missing(
        "FLOPs of convolutions",
        f"{count:,} convolutions are recorded with their shapes, but without stride and padding",
        "profile with torch.profiler(record_shapes=True) of torch 2.1 or newer; emit_nvtx records "
        "no arguments",
    )
