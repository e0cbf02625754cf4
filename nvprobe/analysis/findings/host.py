"""Findings about an idle GPU whose host is awake: it launches too slowly, or does something else.

A gap that takes the host milliseconds is not a launch, whatever stands around it: such pauses are
told apart (:data:`nvprobe.analysis.waiting.gaps.LONG_NS`), and what they take is not promised to
who makes launching cheaper. The low end for launches is a quarter of the idle time: under a
profiler launching is slower than alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nvprobe.analysis.code_places import LINE
from nvprobe.analysis.findings.model import Evidence, Finding, Value
from nvprobe.analysis.findings.sources import common_path, main_operator, named, sampled_lines
from nvprobe.analysis.grouping import push_up
from nvprobe.analysis.verdict import duration
from nvprobe.analysis.waiting.host_causes import HOST_LATE
from nvprobe.attribution.model import PathTable
from nvprobe.trace import Column, OpKind

LAUNCH_NS = 200_000
"""A host that takes longer than this a launch does more than launching."""
SHORT_KERNEL_NS = 20_000
"""So short, or shorter than the GPU waits for each launch: then launching may be the limit."""
PLAIN = 0.05
"""Less of the window than this is not a bottleneck."""
FEW_LAUNCHES = 10
"""A step with fewer launches is not bound by them."""


def host_bound(evidence: Evidence, specific: Sequence[Finding]) -> Iterator[Finding]:
    """The GPU is idle while the host launches (launch-bound) or does something else.

    Beside long kernels launching is not the limit: a host that is late there was held before.
    """
    if not evidence.idle_trusted or not evidence.repeats:
        return
    idle = unexplained(evidence, specific)
    path, kernels = _launches(evidence, idle)
    if not kernels.any():
        kernels = _graph_launches(evidence, path)
    facts = _facts(evidence, idle, path, kernels)
    if not kernels.any():
        return
    if facts["host_ns_per_launch"] > LAUNCH_NS or facts["launches_per_step"] < FEW_LAUNCHES:
        yield from _few_launches(evidence, idle, path, kernels, facts)
        return
    pauses = np.minimum(idle, _in_pauses(evidence, len(idle)))
    yield from _slow_launches(evidence, idle - pauses)
    yield from _pauses(evidence, pauses)


def unexplained(evidence: Evidence, specific: Sequence[Finding]) -> Column:
    """Idle ns per path for which the host is late, without what other findings explain."""
    idle = evidence.idle(*HOST_LATE)
    explained = np.zeros(len(idle), np.int64)
    for one in specific:
        explained = explained if one.idle is None else np.maximum(explained, one.idle)
    return np.maximum(idle - explained, 0)


def _launches(evidence: Evidence, idle: Column) -> tuple[int, Column]:
    """The path with most of ``idle``, and (bool per op) the kernels launched below it."""
    path = common_path(evidence.attribution.paths, idle)
    kernels = _below(evidence, path) & (evidence.ops.kind == OpKind.KERNEL)
    kernels &= (evidence.ops.graph_node == 0) & _called_in_steady(evidence)
    return path, kernels


def _graph_launches(evidence: Evidence, path: int) -> Column:
    """Bool per op: the first one of each graph replay below a path, where nothing else is launched.

    A replay is one launch; its kernels follow each other without the host.
    """
    inside = _below(evidence, path) & _called_in_steady(evidence)
    inside &= (evidence.ops.graph_node != 0) | (evidence.ops.kind == OpKind.GRAPH)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(evidence.ops.start[rows], kind="stable")]
    first = np.unique(evidence.attribution.call[rows], return_index=True)[1]
    out = np.zeros(len(inside), bool)
    out[rows[first]] = True
    return out


def _facts(evidence: Evidence, idle: Column, path: int, kernels: Column) -> dict[str, int | float]:
    """The figures of a finding about ``idle``; zeros where nothing is launched."""
    total, launches = int(idle.sum()), int(kernels.sum())
    here = int(push_up(evidence.attribution.paths, idle[:-1])[path]) if path >= 0 else total
    durations = evidence.attribution.duration[kernels]
    return {
        "idle_ns": total,
        "share_of_window": round(total / evidence.window_ns, 4),
        "launches": launches,
        "launches_per_step": round(launches / len(evidence.steady), 1),
        "median_kernel_ns": int(np.median(durations)) if launches else 0,
        "host_ns_per_launch": here // launches if launches else 0,
    }


def _few_launches(
    evidence: Evidence, idle: Column, path: int, kernels: Column, facts: dict[str, int | float]
) -> Iterator[Finding]:
    """Few launches, or much between them."""
    total = int(idle.sum())
    if total < PLAIN * evidence.window_ns:
        return
    pauses = int(np.minimum(idle, _in_pauses(evidence, len(idle))).sum())
    before = place_before(evidence, path, _after_pauses(evidence)) if 2 * pauses >= total else ""
    yield own_work(
        evidence, path,
        f"The GPU waits {duration(total // len(evidence.steady))} per step for the host's own work "
        f"in {_named(evidence, path)}{before}",
        total, facts, np.flatnonzero(kernels),
    )  # fmt: skip


def _slow_launches(evidence: Evidence, idle: Column) -> Iterator[Finding]:
    """Many launches of short kernels, each a little late."""
    path, kernels = _launches(evidence, idle)
    facts, total = _facts(evidence, idle, path, kernels), int(idle.sum())
    if total < PLAIN * evidence.window_ns or not kernels.any():
        return
    short = max(SHORT_KERNEL_NS, facts["host_ns_per_launch"])
    if facts["median_kernel_ns"] > short or facts["launches_per_step"] < FEW_LAUNCHES:
        return
    yield Finding(
        "launch_bound",
        f"Launch-bound in {_named(evidence, path)}: {facts['launches_per_step']:,.0f} kernels per "
        f"step, half of them under {facts['median_kernel_ns'] / 1000:.1f} µs, launched more slowly "
        "than they run",
        path, (), facts, (total // 4, total),
        ('torch.compile(mode="reduce-overhead"): fewer kernels, replayed as a CUDA graph',
         "capture the step in a CUDA graph (torch.cuda.CUDAGraph, make_graphed_callables)",
         "larger batches; foreach or fused optimizers"),
        ops=np.flatnonzero(kernels),
    )  # fmt: skip


def _pauses(evidence: Evidence, idle: Column) -> Iterator[Finding]:
    """The same long pause in most steps: the host does something else there."""
    total, steps = int(idle.sum()), len(evidence.steady)
    charges = evidence.waits.idle
    paused = np.intersect1d(charges.step[_of_pauses(evidence)], evidence.steady)
    if total < PLAIN * evidence.window_ns or 2 * len(paused) <= steps:
        return
    path, ops = common_path(evidence.attribution.paths, idle), _after_pauses(evidence)
    before = place_before(evidence, path, ops)
    operator = main_operator(evidence.attribution.paths, idle)
    doing = f"{operator} in" if operator else "the host's own work in"
    yield own_work(
        evidence, path,
        f"The GPU waits {duration(total // len(paused))} per step for {doing} "
        f"{_named(evidence, path)}{before}",
        total,
        {"idle_ns": total, "share_of_window": round(total / evidence.window_ns, 4),
         "steps": len(paused), "pauses": len(ops), "operator": operator},
        ops,
    )  # fmt: skip


def place_before(evidence: Evidence, path: int, ops: Column) -> str:
    """``, before step/h2d``: where the ops are that ended the pauses; nothing for ``path``."""
    spent = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(spent, evidence.attribution.owner[ops], 1)
    following = common_path(evidence.attribution.paths, spent)
    return f", before {_named(evidence, following)}" if following not in (path, -1) else ""


def own_work(
    evidence: Evidence, path: int, title: str, total: int, facts: Mapping[str, Value], ops: Column
) -> Finding:
    """What the host does is not known, so nothing of it is sure to be saved."""
    lines = sampled_lines(evidence, _paths_below(evidence.attribution.paths, path))
    seen = len(evidence.trace.python_samples) or len(evidence.trace.frames)
    see = ("sample Python (nvprobe launch --python-samples) to see which lines it runs",)
    return Finding(
        "host_work", title, path, lines, facts, (0, total),
        (*(() if lines or seen or not evidence.on_nvidia else see),
         "move the work out of the loop, or into another thread or process"),
        ops=ops, roles=(LINE,) * len(lines),
    )  # fmt: skip


def _of_pauses(evidence: Evidence) -> Column:
    """Bool per row of the idle charges: the host's own time in a long pause."""
    charges = evidence.waits.idle
    return np.asarray(charges.long & np.isin(charges.cause, HOST_LATE))


def _in_pauses(evidence: Evidence, size: int) -> Column:
    """Idle ns per path, the last for none, in long pauses of the steady steps."""
    charges, out = evidence.waits.idle, np.zeros(size, np.int64)
    rows = _of_pauses(evidence) & np.isin(charges.step, evidence.steady)
    np.add.at(out, charges.path[rows], charges.ns[rows])
    return out


def _after_pauses(evidence: Evidence) -> Column:
    """Op rows that ended a long pause of a steady step."""
    gaps = evidence.waits.gaps
    return gaps.op[evidence.waits.long & evidence.in_steady(gaps.queued)]


def _named(evidence: Evidence, path: int) -> str:
    return named(evidence.attribution.paths, path)


def _below(evidence: Evidence, path: int) -> Column:
    """bool per op: its owner path begins with ``path`` (all ops for -1)."""
    return _paths_below(evidence.attribution.paths, path)[evidence.attribution.owner]


def _paths_below(paths: PathTable, path: int) -> Column:
    """bool per path, the last one for none: it begins with ``path`` (all for -1)."""
    if path < 0:
        return np.ones(len(paths.parent) + 1, bool)
    return np.append(paths.nearest(np.arange(len(paths.parent)) == path) >= 0, False)


def _called_in_steady(evidence: Evidence) -> Column:
    """bool per op: launched in a steady step."""
    calls, call = evidence.trace.calls, evidence.attribution.call
    if not len(calls):
        return np.zeros(len(call), bool)
    return (call >= 0) & evidence.in_steady(calls.start[call])
