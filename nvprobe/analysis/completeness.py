"""What the capture lacks, what could not be computed for it, and what to warn about."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from nvprobe.analysis.kernels.work import convolutions_without_work
from nvprobe.analysis.model import Steps
from nvprobe.analysis.replay.gate import Fidelity
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.shapes import RangeShapes
from nvprobe.analysis.verdict import duration
from nvprobe.attribution.model import Attribution, Kind, Method, ModuleMethod, Modules
from nvprobe.trace import NO_ROW, Calls, Column, Missing, OpKind, Ops, Trace
from nvprobe.trace.cuda_calls import LAUNCHES, CallRole, call_roles, calls_with


def lost_launches(attribution: Attribution) -> Column:
    """Rows of ``trace.calls`` that launched a kernel or graph of which there is no GPU record.

    What is launched while a stream of the process is being captured runs later, as a graph: such
    calls have no record of their own and are not lost. Nor is what was never to be recorded.
    """
    trace = attribution.trace
    calls, ops = trace.calls, trace.ops
    if not ops.recorded:
        return np.empty(0, np.int64)
    without = np.ones(len(calls), bool)
    without[attribution.call[attribution.call >= 0]] = False
    rows = np.flatnonzero(calls_with(trace, LAUNCHES) & without)
    if not len(rows):
        return rows
    rows = rows[~_same_id_has_op(calls, ops, rows)]
    return rows[~_captured(attribution, rows)]


def _same_id_has_op(calls: Calls, ops: Ops, rows: Column) -> Column:
    """Bool per row: another record of the same call is the one its ops were given to."""
    processes = int(max(calls.process.max(), ops.process.max(initial=0))) + 1
    asked = calls.correlation[rows] * processes + calls.process[rows]
    return np.isin(asked, ops.correlation * processes + ops.process)


def _captured(attribution: Attribution, rows: Column) -> Column:
    """Bool per row: the call happened between begin and end of a capture in its process."""
    calls = attribution.trace.calls
    roles = call_roles(attribution.trace)
    begins = np.flatnonzero(roles == CallRole.CAPTURE_BEGIN)
    ends = np.flatnonzero(roles == CallRole.CAPTURE_END)
    out = np.zeros(len(rows), bool)
    for process in np.unique(calls.process[np.concatenate((begins, ends))]):
        mine = np.flatnonzero(calls.process[rows] == process)
        begun = np.sort(calls.start[begins[calls.process[begins] == process]])
        ended = np.sort(calls.start[ends[calls.process[ends] == process]])
        # A capture begun before the window shows only its end.
        before = max(len(ended) - len(begun), 0)
        time = calls.start[rows[mine]]
        open_now = before + np.searchsorted(begun, time) - np.searchsorted(ended, time)
        out[mine] = open_now > 0
    return out


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
_BY_LAUNCH = {
    "GPU records (kernels, copies)": "run it where nvprobe doctor finds a GPU that nsys records",
    "GPU work": "run it where nvprobe doctor finds a GPU",
    "NVTX ranges": "nvprobe launch without --annotate off, or nvprobe.range in the program",
    "kernels inside CUDA graphs": "nvprobe launch --kernels-in-graphs",
    "CUDA graph capture": "nvprobe launch --steps from before the graphs are captured",
    "source lines and modules": "nvprobe launch --backend torch --python-backtraces",
    "awaited streams": "nvprobe launch --backend nsys",
    "FLOPs of convolutions": "nvprobe launch --with-torch-trace",
    "memory": "nvprobe launch --memory-usage",
}
"""How ``nvprobe launch`` records what a run of it lacks; others hear of nsys and torch."""


def missing(
    attribution: Attribution,
    steps: Steps,
    shapes: RangeShapes,
    owners: Modules,
    replayed: Fidelity | None = None,
) -> tuple[Missing, ...]:
    """What the loader missed, then what only an attribution shows to be absent."""
    found = [
        *attribution.trace.missing,
        _captured_ranges(attribution, owners),
        _steps(attribution, steps),
        _convolutions(attribution, shapes),
        _savings(replayed),
    ]
    return _by_launch(attribution.trace, [entry for entry in found if entry is not None])


def _by_launch(trace: Trace, entries: list[Missing]) -> tuple[Missing, ...]:
    """With nvprobe's own options, where ``nvprobe launch`` wrote the capture."""
    if trace.profiling is None:
        return tuple(entries)
    return tuple(replace(one, how=_BY_LAUNCH.get(one.what, one.how)) for one in entries)


def not_computed(analysis: Analysis) -> tuple[Missing, ...]:
    """The fields of the schema that were not computed of this input: null, never 0."""
    old = [
        Missing(what, "this version of nvprobe does not compute it", "upgrade nvprobe")
        for field, what in _OPTIONAL.items()
        if getattr(analysis, field) is None
    ]
    absent = [one for field, one in _OF_THE_CAPTURE.items() if getattr(analysis, field) is None]
    return (*old, *_by_launch(analysis.attribution.trace, absent))


def _captured_ranges(attribution: Attribution, owners: Modules) -> Missing | None:
    """Graph nodes whose creation is known, but neither a range open then nor their module.

    Compiled code opens no ranges inside of its graphs: its manifest says what each kernel is.
    """
    trace = attribution.trace
    if not len(trace.graph_nodes):
        return None
    nodes = (attribution.method == Method.GRAPH_LAUNCH) & (trace.ops.kind != OpKind.GRAPH)
    nodes &= owners.method != ModuleMethod.MANIFEST
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
    ways += _step_pattern(attribution)
    why = "no range marks one; pauses and library ranges are not taken for steps"
    if attribution.outside is not None:
        why, ways = "no range inside the filters marks one", ["take the filters off", *ways]
    return Missing(
        "steps",
        why,
        ", ".join(ways[:-1]) + f", or {ways[-1]}",
    )


def _step_pattern(attribution: Attribution) -> list[str]:
    """The option that makes steps of the repeated outermost range with most GPU time."""
    tree, paths = attribution.tree, attribution.paths
    calls = np.bincount(tree.path[~tree.folded & (tree.path >= 0)], minlength=len(paths.parent))
    outer = np.isin(paths.kind, (Kind.USER, Kind.PHASE, Kind.MODULE)) & (paths.depth == 0)
    owned = attribution.owner >= 0
    root = paths.nearest(paths.depth == 0)[attribution.owner[owned]]
    gpu_ns = np.bincount(root, attribution.duration[owned], len(paths.parent))
    repeated = np.flatnonzero(outer & (calls >= 3))
    if not len(repeated):
        return []
    best = repeated[np.lexsort((calls[repeated], gpu_ns[repeated]))[-1]]
    name = str(paths.names[int(paths.name[best])])
    return [f"name the range that is a step, as in --step-name '{re.escape(name)}.*'"]


def _savings(replayed: Fidelity | None) -> Missing | None:
    """Where the model of a step does not give the step, savings are bounds of idle time."""
    if replayed is None or replayed.passed:
        return None
    if replayed.too_long:
        return Missing(
            "savings by replay",
            "steps have too many calls, and waits between them, to be replayed again and again: "
            "findings give bounds of the profiled window",
            "shorter steps: a micro-batch, a token",
        )
    why = f"a replay of the captured steps is {max(replayed.error, replayed.usual_error):.1%} off"
    if replayed.lost_ops:
        why += f"; {replayed.lost_ops:,} GPU ops have no call"
    if replayed.late_ns:
        why += f"; ops started {duration(replayed.late_ns)} late for reasons not recorded"
    return Missing(
        "savings by replay",
        f"{why}: findings give bounds of the profiled window",
        "capture every process that uses the GPU, from a step's begin on",
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


_WARNING, _ERROR = 2, 3
"""Severities among the profiler's own messages."""
_BOILERPLATE = re.compile(
    r"^No .+ events collected|^Not all .+ events might have been collected"
    r"|^CUDA profiling might have not been started correctly"
    r"|^Scheduling information is absent|perf.event.paranoid|paranoid level"
    r"|^Unable to (?:collect|configure).*(?:CPU|context switch|kernel)"
)
"""Warnings of nsys in nearly every capture: of child processes, of what was not asked for. They are
given as the reason where GPU records are missing."""
_SHOWN = 3
"""Names listed in a warning before it says "and N more"."""


def warnings(
    attribution: Attribution, suspect: Column, lost: Column, steps: Steps
) -> tuple[str, ...]:
    """The loader's warnings, the profiler's own errors, then those of each rule."""
    trace = attribution.trace
    profiling = trace.profiling
    found = [
        profiling.failure if profiling is not None and len(trace.ops) else None,
        *trace.warnings,
        *_diagnostics(trace),
        _lost_launches(trace, lost, steps),
        _impossible_times(attribution),
        _overlapping_successors(attribution, suspect),
        _started_before_call(attribution),
    ]
    return tuple(text for text in found if text)


def _diagnostics(trace: Trace) -> list[str]:
    """Errors and warnings that the profiler wrote into the capture, each once.

    Without what stands in nearly every capture; messages that differ in numbers alone are one.
    """
    said: dict[str, list[str]] = {}
    for severity, text in trace.diagnostics:
        words = " ".join(text.split())
        if severity >= _ERROR or (severity == _WARNING and not _BOILERPLATE.search(words)):
            said.setdefault(re.sub(r"\d+", "0", words), []).append(words)
    return [
        f"the profiler said: {same[0]}" + (f" (and {len(same) - 1} alike)" if same[1:] else "")
        for same in said.values()
    ]


def _lost_launches(trace: Trace, lost: Column, steps: Steps) -> str | None:
    if not len(lost):
        return None
    where = ""
    hit = np.flatnonzero(steps.missing_launches)
    if len(hit):
        word = "step" if len(hit) == 1 else "steps"
        where = f" (in {word} {_listed([str(i) for i in steps.index[hit].tolist()])})"
    noun = "launch call has" if len(lost) == 1 else "launch calls have"
    return (
        f"{len(lost):,} {noun} no GPU record{where}: the profiler lost the kernels, so GPU time is "
        "a lower bound and idle time an upper bound there"
    )


def _impossible_times(attribution: Attribution) -> str | None:
    count = int((~attribution.valid).sum())
    if not count:
        return None
    noun = "GPU record has" if count == 1 else "GPU records have"
    return f"{count:,} {noun} impossible times (end before start, or 0) and count with 0 ns"


def _overlapping_successors(attribution: Attribution, suspect: Column) -> str | None:
    ops, trace = attribution.trace.ops, attribution.trace
    rows = np.flatnonzero(suspect)
    if not len(rows):
        return None
    names = [text or "(unnamed)" for text in trace.texts(np.unique(ops.short_name[rows]))]
    time = int(attribution.duration[rows].sum())
    noun = "op overlaps its" if len(rows) == 1 else "ops overlap their"
    return (
        f"{len(rows):,} {noun} successors on the same stream ({_listed(names)}): work on a stream "
        f"is serial, so these ends are unreliable and {time:,} ns with them"
    )


def _started_before_call(attribution: Attribution) -> str | None:
    ops, calls = attribution.trace.ops, attribution.trace.calls
    rows = np.flatnonzero(attribution.valid & (attribution.call != NO_ROW))
    lead = calls.start[attribution.call[rows]] - ops.start[rows]
    early = lead > 0
    if not early.any():
        return None
    noun = "op starts" if int(early.sum()) == 1 else "ops start"
    return (
        f"{int(early.sum()):,} {noun} up to {int(lead[early].max()):,} ns before the launch: the "
        "clocks of host and GPU differ by that much; owners are kept"
    )


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
