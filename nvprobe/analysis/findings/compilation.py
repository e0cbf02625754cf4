"""Findings about torch.compile: graph breaks, recompiles, compiling inside the window.

Breaks and recompiles are in the sidecar (torch's own reasons); without one nothing is said of
them: two graphs in a row may be two models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import Sampled, path_of_ops
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.graph_calls import compiling
from nvprobe.analysis.grouping import push_up
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.replay.edits.kernels import fuse_chains
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.analysis.waiting.host_causes import HOST_LATE, Cause
from nvprobe.attribution.kinds import compiled_graphs
from nvprobe.attribution.model import Kind
from nvprobe.trace import Column
from nvprobe.trace.sidecar import CompileSpan, GraphBreak

_LONGEST_REASON = 160
LAUNCHES, MOSTLY = 30, 0.4
"""Launches of compiled graphs a step, and how many of them Inductor would fuse."""


def graph_breaks(evidence: Evidence) -> Iterator[Finding]:
    """Breaks whose surroundings idle: the time between the graphs of one path.

    Low end: three tenths of it. High end: all host and launch idle of the path, as one graph also
    launches fewer kernels.
    """
    sidecar = evidence.trace.sidecar
    breaks = tuple(b for b in sidecar.breaks if _own(b.source))
    if not breaks or not evidence.idle_trusted or not evidence.repeats:
        return
    between = _between_graphs(evidence)
    idle = evidence.idle(*HOST_LATE)
    lost = np.where(np.append(between, False), idle, 0)
    total = int(lost.sum())
    if not total:
        return
    paths = evidence.attribution.paths
    path = common_path(paths, lost)
    whole = push_up(paths, idle[:-1])
    most = int(whole[path]) if path >= 0 else int(idle.sum())
    sources = Counter(one.source for one in breaks if one.source)
    lines = tuple(source for source, _ in sources.most_common(5))
    yield Finding(
        id="graph_break",
        idle=lost,
        title=f"Graph breaks at {lines[0] if lines else named(paths, path)} split the compiled "
        "model; the GPU waits between graphs",
        path=path,
        sources=lines,
        evidence={
            "breaks": len(breaks),
            "reason": _reason(breaks),
            "idle_between_graphs_ns": total,
        },
        saves_ns=(total * 3 // 10, max(most, total)),
        advice=(
            "torch.compile(fullgraph=True) stops at the first break and names it",
            "move the line out of the compiled code, or register it as an operator "
            "(torch.library.custom_op with register_fake)",
        ),
    )


def _own(source: str | None) -> bool:
    """Whether a line is the program's: breaks inside torch and nvprobe say nothing of it."""
    return source is None or not source.startswith(("torch/", "nvprobe/"))


def _reason(breaks: tuple[GraphBreak, ...]) -> str:
    """The commonest reason, on one line."""
    reasons = Counter(one.reason for one in breaks)
    text = " ".join(reasons.most_common(1)[0][0].split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _between_graphs(evidence: Evidence) -> Column:
    """bool per path: above at least two instances of compiled graphs, and inside none of them."""
    paths, tree = evidence.attribution.paths, evidence.attribution.tree
    compiling = pc.match_substring_regex(paths.names, "^compile ").to_numpy(zero_copy_only=False)
    graph = compiled_graphs(paths) & ~np.asarray(compiling, bool)[paths.name]
    instances = np.zeros(len(paths.parent), np.int64)
    rows = (tree.path >= 0) & ~tree.folded
    np.add.at(instances, tree.path[rows], 1)
    below = push_up(paths, np.where(graph, instances, 0))
    inside = paths.nearest(graph) >= 0
    calls = np.maximum(instances, 1)
    return ~inside & (below >= 2 * calls) & (paths.kind != Kind.STEP)


def compilation(evidence: Evidence) -> Iterator[Finding]:
    """The host compiles inside the window: again and again, or for the first time.

    High end: the steps in which it compiles; low end: half of the idle.
    """
    if not evidence.idle_trusted:
        return
    idle = evidence.idle(Cause.COMPILATION)
    total, paths = int(idle.sum()), evidence.attribution.paths
    sidecar, trace = evidence.trace.sidecar, evidence.trace
    spans = [
        span for span in sidecar.compile_spans
        if span.start < trace.end_ns and span.end > trace.start_ns
    ]  # fmt: skip
    spent = sum(min(s.end, trace.end_ns) - max(s.start, trace.start_ns) for s in spans)
    again = [one for one in sidecar.recompiles if _own(one.source)]
    if not total and not spent:
        return
    path = common_path(paths, idle)
    facts: dict[str, int | str | float | None] = {
        "idle_ns": total, "compilations": len(spans), "compile_ns": spent,
    }  # fmt: skip
    if len(again) >= 2 and len(spans) != 1:
        reasons = Counter(" ".join(r.split()) for one in again for r in one.guards[:1])
        facts |= {
            "recompiles": len(again),
            "reason": reasons.most_common(1)[0][0][:_LONGEST_REASON] if reasons else None,
        }
        sources = tuple(s for s, _ in Counter(r.source for r in again if r.source).most_common(5))
        yield Finding(
            "recompile", f"{sources[0] if sources else named(paths, path)} is compiled again "
            f"and again ({len(again)} recompilations)", path, sources, facts,
            (total // 2, max(total, spent, _steps_of(evidence, spans))),
            ("torch.compile(dynamic=True), or torch._dynamo.mark_dynamic, for changing shapes",
             "pad or bucket inputs to a few shapes",
             "keep changing Python values out of compiled code, or make them tensors"),
            functions=("torch.compile",), roles=("defined",) * len(sources),
        )  # fmt: skip
    else:
        by_torch = bool(spans) or len(compiling(evidence.attribution)) > 0
        what = "torch.compile runs" if by_torch else "Kernels are loaded or compiled"
        yield Finding(
            "compile_in_window", f"{what} inside the captured window, in {named(paths, path)}",
            path, (), facts, (0, max(total, spent)),
            ("warm up before the window: nvprobe launch --steps 10:15",
             *(() if by_torch else ("CUDA_MODULE_LOADING=EAGER loads all kernels at the start",))),
        )  # fmt: skip


def _steps_of(evidence: Evidence, spans: list[CompileSpan]) -> int:
    """Host time of the steady steps in which something was compiled."""
    steps, steady = evidence.steps, evidence.steady
    hit = np.zeros(len(steady), bool)
    for span in spans:
        hit |= (steps.start[steady] < span.end) & (steps.end[steady] > span.start)
    return int(steps.wall_ns[steady][hit].sum())


def unfused_compiled(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Compiled graphs that launch the kernels of eager torch: no code was generated for them."""
    steps, paths = Sampled(evidence, sample), evidence.attribution.paths
    compiled = np.append(paths.nearest(compiled_graphs(paths)) >= 0, False)[sample.path]
    inside = steps.started_by(compiled) & steps.kernels(r"")
    family = evidence.classes.family[sample.op]
    generated = inside & ((family == Family.TRITON) | steps.kernels(r"(?i)triton"))
    fusible = inside & np.isin(family, (Family.ELEMENTWISE, Family.NORM, Family.REDUCTION))
    count = np.count_nonzero(inside)
    if generated.any() or count < LAUNCHES * sample.steps:
        return
    if np.count_nonzero(fusible) < MOSTLY * count:
        return
    rows = sample.op[fusible]
    path = path_of_ops(evidence, sample.op[inside])
    yield (
        Finding(
            id="unfused_compiled",
            ops=rows,
            title=f"What is compiled in {named(paths, path)} runs the kernels "
            "of eager torch: nothing is fused",
            path=path,
            sources=(),
            evidence={
                "kernels_per_step": round(int(count) / sample.steps, 1),
                "elementwise_per_step": round(len(rows) / sample.steps, 1),
            },
            saves_ns=(0, 0),
            advice=(
                'torch.compile(backend="inductor"), the default: "eager" and "aot_eager" are for '
                "finding faults",
                "TORCH_LOGS=inductor says what made it fall back",
            ),
        ),
        Proposal(fuse_chains(sample, fusible), 1.0),
    )
