"""What a program does, counted: launches, synchronizations, copies, graph breaks, compilations."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from nvprobe.comparison.model import Counter
from nvprobe.comparison.samples import Run
from nvprobe.report.document import Document

STEP_COUNTERS = {
    "launches": "launches",
    "syncs": "syncs",
    "graph launches": "graph_launches",
    "graph nodes": "graph_nodes",
    "bytes copied": "copied_bytes",
}
"""Field of `nvprobe.report.step_parts.StepCounts` by name."""


def step_counters(before: Sequence[Run], after: Sequence[Run]) -> list[Counter]:
    """Counts a step.

    Where the sides captured other steps, usual steps are held against each other, not means: what
    a program does in every tenth step is in one capture and not in the other.
    """
    same = _indices(before[0]) == _indices(after[0])
    found = []
    for name, field in STEP_COUNTERS.items():
        sides = [[_counts(run, field) for run in side] for side in (before, after)]
        if not all(run for side in sides for run in side):
            continue
        was, now = (sum(map(per_step, side)) / len(side) for side in sides)
        usual = [median(median(run) for run in side) for side in sides]
        differ = was != now if same else usual[0] != usual[1]
        found.append(Counter(name, True, was, now, differ))
    return found


def _indices(run: Run) -> list[int]:
    return [run.document.steps[row].index for row in run.rows]


def _counts(run: Run, field: str) -> list[int]:
    table = run.document.step_parts
    return [getattr(table.counts[row], field) for row in run.rows] if table else []


def per_step(counts: Sequence[int]) -> float:
    """The mean."""
    return sum(counts) / len(counts)


def run_counters(before: Sequence[Document], after: Sequence[Document]) -> list[Counter]:
    """Counts of whole captures: graph breaks and recompilations; empty where nothing compiles."""
    if all(not run.compiled_graphs for run in (*before, *after)):
        return []
    found = []
    for name, count in (("graph breaks", breaks), ("recompilations", recompilations)):
        was, now = (max(count(run) for run in side) for side in (before, after))
        found.append(Counter(name, False, was, now, was != now))
    return found


def breaks(run: Document) -> int:
    """Graph breaks that a step meets: by place, not by how often."""
    graphs = run.compiled_graphs or ()
    return len({(one.process, one.id) for one in graphs if one.break_reason is not None})


def recompilations(run: Document) -> int:
    """Compilations of a frame besides the first."""
    graphs = run.compiled_graphs or ()
    frames = {(one.process, one.id.partition("/")[0]): one.recompiles or 0 for one in graphs}
    return sum(frames.values())
