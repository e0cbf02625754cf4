"""Two sides of runs compared: what differs, why, and whether that is more than noise.

``compare`` takes analysis documents and returns a :class:`~nvprobe.comparison.model.Comparison`.
Definitions: docs/compare.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvprobe.comparison.alignment import align
from nvprobe.comparison.comparability import differences
from nvprobe.comparison.counters import run_counters
from nvprobe.comparison.model import (
    SCHEMA,
    Comparison,
    FindingChange,
    GraphChange,
    Noise,
    RunFacts,
    StepComparison,
)
from nvprobe.comparison.samples import Group, Run, groups_of, step_count, work_of
from nvprobe.comparison.steps import compare_steps
from nvprobe.comparison.verdict import verdict
from nvprobe.errors import UsageError
from nvprobe.report.document import Document
from nvprobe.report.kernels import CompiledGraph
from nvprobe.version import __version__


def compare(before: Sequence[Document], after: Sequence[Document]) -> Comparison:
    """Compare one or several runs a side.

    Raises UsageError where a side has no run.
    """
    if not before or not after:
        raise UsageError("compare needs a run before and a run after")
    found = differences(before, after)
    steps, unmatched = _steps(before, after)
    counters = run_counters(before, after)
    return Comparison(
        schema=SCHEMA,
        nvprobe=__version__,
        verdict=verdict(steps, counters, found),
        before=[_facts(run) for run in before],
        after=[_facts(run) for run in after],
        differences=found,
        noise=_noise(before, after, steps),
        steps=steps,
        unmatched=unmatched,
        counters=counters,
        graphs=_graphs(before[0], after[0]),
        findings=_findings(before[0], after[0]),
        gate=None,
    )


def _facts(run: Document) -> RunFacts:
    return RunFacts([one.file for one in run.sources], len(run.steps), run.verdict)


def _steps(
    before: Sequence[Document], after: Sequence[Document]
) -> tuple[list[StepComparison], list[str]]:
    """Kinds of steps that all runs have; and the names of the others."""
    sides = [[groups_of(run) for run in side] for side in (before, after)]
    kinds = [[group for group in side[0] if all(group in run for run in side)] for side in sides]
    pairs = [(group, group) for group in kinds[0] if group in kinds[1]]
    left = [[group for group in side if group not in dict(pairs)] for side in kinds]
    for was in list(left[0]):  # the same steps under another name
        same = [[one for one in side if one.kind == was.kind] for side in left]
        if [len(some) for some in same] == [1, 1]:
            pairs.append((was, same[1][0]))
            left[0].remove(was)
            left[1].remove(same[1][0])
    found = [
        compare_steps(
            was,
            [Run(run, rows[was]) for run, rows in zip(before, sides[0], strict=True)],
            [Run(run, rows[now]) for run, rows in zip(after, sides[1], strict=True)],
        )
        for was, now in pairs
    ]
    found.sort(key=lambda one: -one.step.before_ns * one.steps[0])
    unmatched = [_name(group) for side in left for group in side]
    return found, unmatched


def _name(group: Group) -> str:
    batch = "" if group.batch is None else f"batch {group.batch}"
    return " ".join(word for word in (group.path, group.phase, batch) if word) or "(no name)"


def _noise(
    before: Sequence[Document], after: Sequence[Document], steps: Sequence[StepComparison]
) -> Noise | None:
    if not steps:
        return None
    runs = len(before) + len(after)
    measured = runs - 2 >= 2
    step = steps[0].step
    return Noise(measured, runs if measured else 0, step.floor_ns / max(step.before_ns, 1))


def _findings(before: Document, after: Document) -> list[FindingChange]:
    """Findings by id and path, and what is left by id alone."""
    names = align(work_of(before), work_of(after)).names
    same: list[FindingChange] = []
    gone: list[FindingChange] = []
    new = list(after.findings or ())
    for was in before.findings or ():
        like = [now for now in new if now.id == was.id]
        here = [now for now in like if names.get(now.path or "") == was.path]
        if not like:
            gone.append(FindingChange(was.id, "gone", was.path, was.title, None))
            continue
        now = (here or like)[0]
        new.remove(now)
        same.append(FindingChange(was.id, "same", was.path, was.title, now.title))
    return [*(FindingChange(one.id, "new", one.path, None, one.title) for one in new), *gone, *same]


def _graphs(before: Document, after: Document) -> list[GraphChange]:
    """Compiled graphs by id and phase."""
    sides = [
        {(one.id, one.phase): one for one in run.compiled_graphs or ()} for run in (before, after)
    ]
    steps = [step_count(run) for run in (before, after)]
    return [
        _graph(*key, sides[0].get(key), sides[1].get(key), steps)
        for key in dict.fromkeys((*sides[0], *sides[1]))
    ]


def _graph(
    id_: str, phase: str, was: CompiledGraph | None, now: CompiledGraph | None, steps: list[int]
) -> GraphChange:
    """GPU time, ops and host time of a step, and why the graph ends."""
    both = list(zip((was, now), steps, strict=True))
    gpu = [None if one is None else round(one.gpu_ns / count) for one, count in both]
    ops = [None if one is None else round(one.ops / count, 2) for one, count in both]
    host = [None if one is None else round(one.host_ns / count) for one, count in both]
    why = [None if one is None else one.break_reason for one, _ in both]
    return GraphChange(
        id=id_,
        phase=phase,
        status="same" if was and now else "new" if now else "gone",
        gpu_ns=(gpu[0], gpu[1]),
        ops=(ops[0], ops[1]),
        host_ns=(host[0], host[1]),
        break_reason=(why[0], why[1]),
    )
