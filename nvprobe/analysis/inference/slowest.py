"""The slowest steps and what was different in them, against the median step of the main phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.inference.phases import PhaseRows, intervals, leading_steps, main_phase
from nvprobe.analysis.model import Steps
from nvprobe.analysis.steps import step_at
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.engines import StepPhase
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

MOST = 5
_SLOWER = 1.2
"""What is hardly longer than the median step needs no reason."""
GARBAGE = r"(?i)^(?:gc|garbage[ _]collection)$"
"""Ranges around Python's garbage collection, nvprobe's own or the program's."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One of the slowest steps."""

    step: int
    """Row of the steps."""
    length_ns: int
    """From its begin to that of the next."""
    usual_ns: int
    """Median length of the steps of the main phase."""
    reason: str
    """``prefill``, ``gpu``, ``garbage_collection`` or a cause of idle time."""
    reason_ns: int
    """How much more of it there is than in the median step."""


def slowest(
    attribution: Attribution, steps: Steps, waits: Waits, phases: PhaseRows
) -> list[SlowStep]:
    """Up to five steps that are a fifth longer than the median one, the slowest first."""
    rows = leading_steps(steps)
    usual = rows[steps.phase[rows] == main_phase(phases)]
    length = np.zeros(len(steps), np.int64)
    length[rows] = intervals(steps, rows)
    level = int(np.median(length[usual]))
    found = rows[np.argsort(-length[rows], kind="stable")][:MOST]
    found = found[length[found] > _SLOWER * level]
    if not len(found):
        return []
    excess = _excess(attribution, steps, waits, usual)
    out = []
    for row in found.tolist():
        reason = max(excess, key=lambda one: int(excess[one][row]))
        if steps.phase[row] in (StepPhase.PREFILL, StepPhase.MIXED) and row not in usual:
            out.append(SlowStep(row, int(length[row]), level, "prefill", int(length[row]) - level))
            continue
        more = max(int(excess[reason][row]), 0)
        out.append(SlowStep(row, int(length[row]), level, reason, more))
    return out


def _excess(
    attribution: Attribution, steps: Steps, waits: Waits, usual: Column
) -> dict[str, Column]:
    """ns by which each step exceeds the median one: GPU work, causes of idle time, collection."""
    idle, size = waits.idle, len(steps)
    # What passes between two steps belongs to the earlier one, as its length does.
    step = np.where(idle.step >= 0, idle.step, idle.next_step - 1)
    values: dict[str, Column] = {"gpu": steps.gpu_busy_ns}
    for cause in np.unique(idle.cause).tolist():
        mine = idle.cause == cause
        values[Cause(cause).label] = sums(step[mine], idle.ns[mine], size)
    values["garbage_collection"] = collection_ns(attribution, steps)
    return {name: ns - int(np.median(ns[usual])) for name, ns in values.items()}


def collection_ns(attribution: Attribution, steps: Steps) -> Column:
    """Time of each step in Python's garbage collection, where ranges show it."""
    rows, ranges = collections(attribution), attribution.trace.ranges
    step = step_at(steps, ranges.process[rows], ranges.start[rows])
    return sums(step, attribution.tree.end[rows] - ranges.start[rows], len(steps))


def collections(attribution: Attribution) -> Column:
    """Rows of ``trace.ranges``: Python's garbage collection."""
    paths, tree = attribution.paths, attribution.tree
    hit = pc.match_substring_regex(paths.names, GARBAGE).to_numpy(zero_copy_only=False)
    if not len(hit) or not hit.any():
        return np.empty(0, np.int64)
    named = np.append(np.asarray(hit, bool)[paths.name], False)[tree.path]
    return np.flatnonzero(named & ~tree.folded)
