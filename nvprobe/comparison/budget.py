"""Budgets: what a run may cost. Counts have no tolerance, times the noise of steps and runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.counters import STEP_COUNTERS, breaks, recompilations
from nvprobe.comparison.model import Check, Outcome
from nvprobe.comparison.samples import Run, groups_of
from nvprobe.comparison.statistics import ASSUMED_FLOOR, mean_bounds, noise_floor
from nvprobe.comparison.steps import columns_of
from nvprobe.errors import UsageError
from nvprobe.report.document import Document

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>ns|us|µs|ms|s)")
_STEP, _EXPOSED, _PATHS = "step-time", "exposed-communication", "paths"
_COUNTS = {
    name.replace(" ", "-"): name for name in (*STEP_COUNTERS, "graph breaks", "recompilations")
}


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one thing may be."""

    name: str
    """``step``, ``exposed communication``, a counter, or a path."""
    limit: int
    """Nanoseconds of a step, or a count."""
    is_time: bool
    is_path: bool = False


def read_budgets(table: Mapping[str, Any], where: str) -> list[Budget]:
    """The budgets of ``[tool.nvprobe.budget]``. Raises UsageError for what is none."""
    out = []
    for key, value in table.items():
        name = key.replace("_", "-")
        if name == _PATHS and isinstance(value, dict):
            out += [Budget(path, _time(f"{where}.paths", path, most), True, True)
                    for path, most in value.items()]  # fmt: skip
        elif name in (_STEP, _EXPOSED):
            known = "step" if name == _STEP else "exposed communication"
            out.append(Budget(known, _time(where, key, value), True))
        elif name in _COUNTS:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"[{where}] {key} = {value!r}: give a whole number")
            out.append(Budget(_COUNTS[name], value, False))
        else:
            known = ", ".join((_STEP, _EXPOSED, *_COUNTS, _PATHS))
            raise UsageError(f"[{where}] has {key!r}, which is not a budget; there are {known}")
    return out


def _time(where: str, key: str, value: object) -> int:
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise UsageError(f'[{where}] {key} = {value!r}: give a time, as in "30 ms"')
    return round(float(found["number"]) * _UNITS[found["unit"]])


def check_budgets(runs: Sequence[Document], budgets: Sequence[Budget]) -> list[Check]:
    """Hold the runs of one program against budgets, counts first."""
    ordered = sorted(budgets, key=lambda budget: budget.is_time)
    return [_time_check(runs, one) if one.is_time else _count_check(runs, one) for one in ordered]


def _count_check(runs: Sequence[Document], budget: Budget) -> Check:
    counts = [_count(run, budget.name) for run in runs]
    limit = f"{budget.limit:,}" + ("" if _of_capture(budget.name) else " per step")
    if None in counts:
        line = f"{budget.name}: cannot tell, the capture has no steps to count in"
        return Check(budget.name, limit, "cannot tell", line)
    most = max(count for count in counts if count is not None)
    outcome: Outcome = "fail" if most > budget.limit else "pass"
    found = f"{most:,.0f}" if most == int(most) else f"{most:,.2f}"
    return Check(budget.name, limit, outcome, f"{budget.name}: {found}, the budget is {limit}")


def _of_capture(name: str) -> bool:
    return name not in STEP_COUNTERS


def _count(run: Document, name: str) -> float | None:
    if name == "graph breaks":
        return breaks(run)
    if name == "recompilations":
        return recompilations(run)
    rows = [row for rows in groups_of(run).values() for row in rows]
    if run.step_parts is None or not rows:
        return None
    counts = [getattr(run.step_parts.counts[row], STEP_COUNTERS[name]) for row in rows]
    return float(sum(counts) / len(rows))


def _time_check(runs: Sequence[Document], budget: Budget) -> Check:
    """Fails where the time less its noise is beyond the budget and the noise floor."""
    what = f"GPU time of {budget.name}" if budget.is_path else f"{budget.name} time"
    what = what.removesuffix(" time") if budget.name == "exposed communication" else what
    limit = duration(budget.limit)
    found = _measured(runs, budget)
    if found is None:
        why = "no step has this path" if budget.is_path else "nothing of it is recorded"
        return Check(what, limit, "cannot tell", f"{what}: cannot tell, {why}")
    outcome: Outcome = "cannot tell"
    if found.low - found.floor > budget.limit:
        outcome = "fail"
    elif found.high <= budget.limit + found.floor:
        outcome = "pass"
    bounds = "noise unknown"
    if math.isfinite(found.high):
        bounds = f"{duration(max(round(found.low), 0))} to {duration(round(found.high))}"
    line = (f"{what}: {duration(round(found.mean))} per step ({bounds}), the budget is {limit} "
            f"(noise floor {duration(round(found.floor))})")  # fmt: skip
    return Check(what, limit, outcome, line)


class _Measured(NamedTuple):
    """A time of a step in ns."""

    mean: float
    low: float
    high: float
    floor: float


def _measured(runs: Sequence[Document], budget: Budget) -> _Measured | None:
    """A time of the steps that most of each run is made of; the step without the profiler."""
    chosen = [Run(run, max(groups_of(run).values(), key=len)) for run in runs]
    names, matrices = columns_of(chosen)
    if budget.name not in names:
        return None
    column = names.index(budget.name)
    some = [matrix[:, [column]] for matrix in matrices]
    means, offs = mean_bounds(some)
    mean, off = float(means[0]), float(offs[0])
    floor = ASSUMED_FLOOR * mean
    if len(runs) > 2:
        floor = float(noise_floor(some, some[:1], np.array([True])).amount[0])
    costs = [run.profiler for run in runs]
    known = [cost for cost in costs if cost is not None]
    if budget.name != "step" or len(known) < len(runs) or not mean:
        return _Measured(mean, mean - off, mean + off, floor)
    bare = sum(cost.unprofiled_step_ns for cost in known) / len(known)
    low, high = (sum(cost.unprofiled_bounds_ns[at] for cost in known) / len(known) for at in (0, 1))
    share = bare / mean
    return _Measured(bare, low - off * share, high + off * share, floor * share)
