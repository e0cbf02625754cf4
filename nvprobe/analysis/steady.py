"""The steps that stand for the loop: without warm-up, first compilations, start and end.

Of a capture of a whole run the report is about these steps. What is left out is counted by kind,
and ``--all`` leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from nvprobe.analysis.model import Steps
from nvprobe.attribution.engines import StepPhase
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column
from nvprobe.trace.rows import Row, is_, ns

FEWEST = 5
"""Steady steps that a report can be about."""
_NEAR = 5
"""Neighboring steps whose median says whether the loop has settled."""
_SETTLED = 1.5
"""A settled loop's steps are up to so many times as long as those of its second half."""
_SLOW = 2
"""A single step at the beginning that is so many times longer than usual warms up."""
_LEAST_SHARE = 0.1
"""Less of the capture than this is not worth leaving out."""


class LeftOut(Row, frozen=True):
    """What of a whole run the other tables are not about (`--all` counts it)."""

    start_ns: Annotated[int, ns("from the begin of the capture to its first step")]
    warmup_steps: Annotated[int, is_("steps before the loop had settled, or at its end")]
    warmup_ns: Annotated[int, ns("from the first step to the first steady one")]
    end_ns: Annotated[int, ns("from the end of the last steady step to the end of the capture")]


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """The steady steps of the leading process, and what lies around them."""

    steady: Column
    """Bool per row of the steps of all processes."""
    start: int
    end: int
    numbers: tuple[int, int]
    """Number of the first steady step and the one after the last."""
    left_out: LeftOut


def steady_steps(attribution: Attribution, steps: Steps) -> SteadySteps | None:
    """The steady steps of a whole run; ``None`` where nothing much is to be left out."""
    weight = steps.gpu_ns if len(attribution.trace.ops) else steps.wall_ns
    working = steps.ops > 0 if len(attribution.trace.ops) else steps.wall_ns > 0
    if np.count_nonzero(working) < FEWEST:
        return None
    process = int(np.bincount(steps.process, weights=weight).argmax())
    rows = np.flatnonzero((steps.process == process) & working)
    own = rows[_found_before(attribution, steps, rows) :]
    kept = own[_settled(steps, own) :]
    trace = attribution.trace
    begin, end = _captured(attribution)
    if len(kept) < FEWEST:
        return None
    start, last = int(steps.start[kept[0]]), int(steps.end[kept].max())
    if len(own) == len(rows) and (end - begin) * (1 - _LEAST_SHARE) < last - start:
        return None
    first = int(steps.start[rows[0]])
    left = LeftOut(max(first - begin, 0), len(rows) - len(kept), start - first, max(end - last, 0))
    steady = (steps.start >= start) & (steps.start < last)
    steady &= np.isin(np.arange(len(steps)), kept) | (steps.process != process)
    numbers = int(steps.index[kept[0]]), int(steps.index[kept[-1]]) + 1
    return SteadySteps(steady, start, min(last, trace.end_ns), numbers, left)


def left_out(attribution: Attribution) -> LeftOut | None:
    """What lies around the steady steps that an attribution was narrowed down to."""
    held = attribution.unfiltered
    found = None if held is None else held.left_out
    return found if isinstance(found, LeftOut) else None


def _captured(attribution: Attribution) -> tuple[int, int]:
    """From the first to the last record of calls and ops, of ranges where there are neither."""
    trace = attribution.trace
    times = [(table.start, table.end) for table in (trace.calls, trace.ops) if len(table)]
    times = times or [(trace.ranges.start, attribution.tree.end)]
    return min(int(start.min()) for start, _ in times), max(int(end.max()) for _, end in times)


def _found_before(attribution: Attribution, steps: Steps, rows: Column) -> int:
    """How many of the steps are of a warm-up: found before the first that the program marked."""
    noted = attribution.trace.sidecar.steps
    marked = noted.index[(noted.process == steps.process[rows[0]]) & ~noted.found]
    return int(np.searchsorted(steps.index[rows], marked.min())) if len(marked) else 0


def _settled(steps: Steps, rows: Column) -> int:
    """How many of the steps (in order of time) pass before the loop has settled; 0 for never."""
    phase = steps.phase[rows]
    known = phase[phase != StepPhase.UNKNOWN]
    usual = np.flatnonzero(phase == (np.bincount(known).argmax() if len(known) else 0))
    wall = steps.wall_ns[rows[usual]]
    if len(wall) < 2 * FEWEST:
        return 1 if len(wall) >= 3 and wall[0] > _SLOW * np.median(wall[1:]) else 0
    level = np.median(wall[len(wall) // 2 :])
    near = np.lib.stride_tricks.sliding_window_view(wall, _NEAR)
    quiet = np.flatnonzero(np.median(near, axis=1) <= _SETTLED * level)
    if not len(quiet) or quiet[0] > len(wall) // 2:
        return 0
    first = int(quiet[0])
    while first < len(wall) - FEWEST and wall[first] > _SLOW * level:
        first += 1
    return int(usual[first - 1]) + 1 if first else 0
