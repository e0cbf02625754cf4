"""The savings of findings by replay: which change each finding asks for, and what it saves.

To add a kind of change to an existing finding: a line in ``_edit``. A finding that only a replay
can weigh: a function in ``FINDERS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from nvprobe.analysis.findings.by_kernel import kernel_causes
from nvprobe.analysis.findings.casts import weight_casts
from nvprobe.analysis.findings.compilation import unfused_compiled
from nvprobe.analysis.findings.conversions import double_products, layout_conversions
from nvprobe.analysis.findings.distributed import micro_step_reductions, unused_parameters
from nvprobe.analysis.findings.gradients import dense_gradients, zeroed_gradients
from nvprobe.analysis.findings.habits import habits
from nvprobe.analysis.findings.loops import Proposed, launch_loops, small_uploads
from nvprobe.analysis.findings.model import Evidence, Finding, StepSaving
from nvprobe.analysis.findings.pauses import host_pauses
from nvprobe.analysis.findings.program import program
from nvprobe.analysis.findings.repeats import products_in_a_row, repeated_modules
from nvprobe.analysis.findings.selection import selections
from nvprobe.analysis.findings.together import waits_together
from nvprobe.analysis.findings.traffic import transfer_share
from nvprobe.analysis.inference.phases import leading_steps
from nvprobe.analysis.inference.slowest import collection_ns, collections
from nvprobe.analysis.replay.edits import calls, kernels, launches, waits
from nvprobe.analysis.replay.levels import Edit
from nvprobe.analysis.replay.model import EventKind
from nvprobe.analysis.replay.prepared import Replay
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal, Saving, search
from nvprobe.attribution.kinds import compiled_graphs
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import Column

FINDERS: tuple[Callable[[Evidence, Sample], Iterator[Proposed]], ...] = (
    launch_loops,
    small_uploads,
    selections,
    double_products,
    layout_conversions,
    weight_casts,
    products_in_a_row,
    repeated_modules,
    micro_step_reductions,
    unused_parameters,
    unfused_compiled,
    dense_gradients,
    zeroed_gradients,
    kernel_causes,
    habits,
)
EFFORTS = {
    "host_work": 0.6, "graph_break": 0.9, "launch_bound": 0.5, "elementwise_chain": 0.8,
    "unfused_attention": 0.9, "exposed_copy": 0.8, "exposed_communication": 0.5,
    "kernel_underfills": 0.5, "kernel_latency_bound": 0.5, "graph_gaps": 0.5,
}  # fmt: skip
"""How hard a change is to make; 1, a line, where nothing is said."""
GENERAL: dict[str, Literal["host", "all"]] = {
    "launch_bound": "host", "host_work": "host", "elementwise_chain": "all",
}  # fmt: skip
"""Findings whose remedy is to compile or capture the program, or to look: causes go first."""
PAUSE_NS, LONG_NS = 50_000, 400_000
_ALIKE = 1.5
"""The replayed steps stand for all where they have at most so many times more or less of it."""
_PASSES = ("forward", "backward")


def replayed(
    evidence: Evidence, found: Sequence[Finding], by: Replay
) -> tuple[list[Finding], list[Finding]]:
    """(findings with replayed savings, the best first; those that no replay can weigh).

    What saves too little is left out.
    """
    few = by.sample
    proposed: list[Proposed] = []
    for one in found:
        edit = _edit(evidence, few, one)
        if edit is not None:
            effort = EFFORTS.get(one.id, 1.0)
            proposed.append((one, Proposal(edit, effort, GENERAL.get(one.id, "no"))))
    weighed = {id(one) for one, _ in proposed}
    others = [one for one in found if id(one) not in weighed]
    proposed = waits_together(by, proposed)
    for finder in FINDERS:
        proposed += finder(evidence, few)
    proposed += host_pauses(evidence, few, found)
    savings = search(by.models, [p for _, p in proposed], 1 if few.is_long else None)
    place = {one.proposal: number for number, one in enumerate(savings)}
    out = [_with_saving(evidence, proposed[one.proposal][0], one, by, place) for one in savings]
    return out, others


def _with_saving(
    evidence: Evidence, finding: Finding, saving: Saving, by: Replay, place: dict[int, int]
) -> Finding:
    steps = len(by.sample.captured.model.borders) - 1
    window = by.step_ns * steps * len(evidence.devices)
    instead = None if saving.instead_of is None else place[saving.instead_of] + 1
    return dataclasses.replace(
        finding,
        saves_ns=(round(saving.low * window), round(saving.high * window)),
        step_saving=StepSaving(
            low=round(100 * saving.low, 1),
            mid=round(100 * saving.mid, 1),
            high=round(100 * saving.high, 1),
            after_previous=round(100 * saving.after_previous, 1),
            instead_of=instead,
            step_ns=by.step_ns,
            calibration=by.source,
            replay_error=round(by.fidelity.error, 5),
        ),
    )


def _edit(evidence: Evidence, few: Sample, finding: Finding) -> Edit | None:
    """The change that a finding asks for; ``None`` where a replay cannot weigh it."""
    make = _EDITS.get(finding.id)
    return None if make is None else make(evidence, few, finding)


def _events(few: Sample, finding: Finding) -> Column:
    rows = finding.touches if finding.touches is not None else np.empty(0, np.int64)
    return np.isin(few.events.call, rows) & (few.events.call >= 0)


def _ops(few: Sample, finding: Finding) -> Column:
    rows = finding.touches if finding.touches is not None else finding.ops
    return np.isin(few.op, rows if rows is not None else np.empty(0, np.int64))


def _hidden(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    return kernels.hide(_ops(few, finding), transfer_share(evidence)[few.op])


def _sync(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    return waits.remove_sync(few, _events(few, finding))


def _upload(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    return waits.async_upload(few, _ops(few, finding))


def _compile(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    events = few.compiling_gap | (few.model.events.kind == EventKind.OTHER)
    return waits.shorten_gaps(events, calls=True, sure=finding.id == "recompile")


def _between_graphs(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    """What lies between graphs is all that the host does before the first launch of a next one."""
    path = few.path
    paths = evidence.attribution.paths
    here = np.ones(len(path), bool)
    if finding.path >= 0:
        here = _below(paths, np.array([finding.path]))[path]
    inside = _below(paths, np.flatnonzero(compiled_graphs(paths)))[path]
    opened = np.append(False, path[1:] != path[:-1]) | (few.records.ranges > 0)
    follows = np.append(False, here[:-1] & (few.step[1:] == few.step[:-1]))
    return launches.graph_break(here & follows & (opened | ~inside), here)


def _launches(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    """CUDA graphs where nothing is in their way, else compiled code that is not compiled yet.

    A backward pass is captured with its forward pass, so a part of them stands for what holds both.
    """
    paths, path, known = evidence.attribution.paths, few.path, program(evidence)
    root = finding.path
    while root >= 0 and _in_pass(paths)[root]:
        root = int(paths.parent[root])
    here = np.ones(len(path), bool)
    if root >= 0:
        here = _below(paths, np.array([root]))[path]
    if known.graphs:
        return launches.cuda_graph(few, here)
    inside = _below(paths, np.flatnonzero(compiled_graphs(paths)))[path]
    return launches.compiled(few, here & ~inside)


def _in_pass(paths: PathTable) -> Column:
    """Bool per path: a forward or backward pass, or inside one."""
    named = paths.nearest(paths.kind == Kind.PHASE)
    names = np.array(paths.names.to_pylist(), object)[paths.name]
    return np.isin(np.append(names, "")[named], _PASSES)


def _pauses(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    path = few.gap_path
    here = np.ones(len(path), bool)
    if finding.path >= 0:
        here = _below(evidence.attribution.paths, np.array([finding.path]))[path]
    gap = few.model.events.gap
    least = LONG_NS if (here & (gap >= LONG_NS)).any() else PAUSE_NS
    return waits.shorten_gaps(here & (gap >= least))


def _graphs_missed(evidence: Evidence, few: Sample, finding: Finding) -> Edit | None:
    """Graphs for the steps without any, where the replayed steps have as many of these."""
    mine = _ops(few, finding)
    step = few.step[few.model.ops.event]
    found = len(np.unique(step[mine])) / max(few.steps, 1)
    bare, others = (int(finding.evidence[f"steps_{one}_graph"] or 0) for one in ("without", "with"))
    if not found or not 1 / _ALIKE <= found * (bare + others) / bare <= _ALIKE:
        return None
    events = np.isin(few.step, np.unique(step[mine])) & (few.events.call >= 0)
    return launches.recaptured(few, events)


def _collected(evidence: Evidence, few: Sample, _: Finding) -> Edit | None:
    """Steps without garbage collection, where the replayed steps have as much of it as others."""
    attribution, steps = evidence.attribution, leading_steps(evidence.steps)
    rows, ranges = collections(attribution), attribution.trace.ranges
    spent = few.gap_within(ranges.thread[rows], ranges.start[rows], attribution.tree.end[rows])
    mean = float(collection_ns(attribution, evidence.steps)[steps].mean())
    if not 1 / _ALIKE <= int(spent.sum()) / max(few.steps, 1) / mean <= _ALIKE:
        return None
    return waits.without_work(spent)


def _uncalled(few: Sample, finding: Finding) -> Edit | None:
    return None if finding.calls is None else calls.uncalled(few, finding.calls)


def _tensor_cores(evidence: Evidence, few: Sample, finding: Finding) -> Edit:
    gain = finding.evidence["peak_ratio"]
    return kernels.other_precision(_ops(few, finding), float(gain or 1))


def _scaled(evidence: Evidence, few: Sample, finding: Finding) -> Edit | None:
    if finding.ops is None:
        return None
    total = int(evidence.attribution.duration[finding.ops].sum())
    return kernels.scaled(_ops(few, finding), max(1 - finding.saves_ns[1] / max(total, 1), 0))


def _below(paths: PathTable, roots: Column) -> Column:
    """Bool per path, the last one for none: one of ``roots`` or below it."""
    out = np.zeros(len(paths.parent) + 1, bool)
    out[roots] = True
    for depth in range(1, int(paths.depth.max(initial=0)) + 1):
        rows = np.flatnonzero(paths.depth == depth)
        out[rows] |= out[paths.parent[rows]]
    return out


_EDITS: dict[str, Callable[[Evidence, Sample, Finding], Edit | None]] = {
    "implicit_sync": _sync,
    "explicit_sync": _sync,
    "pageable_copy": _upload,
    "input_wait": lambda _, few, __: waits.input_wait(few),
    "allocator": lambda _, few, one: waits.allocator(few, _events(few, one)),
    "recompile": _compile,
    "compile_in_window": _compile,
    "graph_break": _between_graphs,
    "graph_missed": _graphs_missed,
    "garbage_collection": _collected,
    "batch_padding": _scaled,
    "launch_bound": _launches,
    "host_work": _pauses,
    "fp32_gemm": _tensor_cores,
    "unfused_attention": lambda _, few, one: kernels.sdpa(few, _ops(few, one)),
    "elementwise_chain": lambda _, few, one: kernels.fuse_chains(few, _ops(few, one)),
    "kernel_underfills": _scaled,
    "kernel_latency_bound": _scaled,
    "exposed_copy": lambda _, few, one: waits.overlap_upload(few, _ops(few, one)),
    "exposed_communication": _hidden,
    "graph_gaps": lambda _, few, one: launches.graph_gaps(few, _ops(few, one)),
    "pinned_allocation": lambda _, few, one: _uncalled(few, one),
    "graph_rebuilt": lambda _, few, one: _uncalled(few, one),
}
