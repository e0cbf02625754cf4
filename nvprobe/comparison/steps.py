"""Steps of one kind before and after: times with bounds, parts that add up, paths, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.comparison.alignment import above
from nvprobe.comparison.counters import step_counters
from nvprobe.comparison.model import Amount, Part, PathChange, StepComparison, Time
from nvprobe.comparison.samples import (
    GPU,
    Group,
    Run,
    Samples,
    groups_of,
    samples,
    step_count,
    work_of,
)
from nvprobe.comparison.statistics import Estimate, Floor, Matrix, estimate, noise_floor
from nvprobe.report.document import Document

EXPOSED = "exposed communication"

LEAST_SHARE = 0.01
"""Paths with a hundredth of the step or more, on either side, are tested."""
_NOT_IDLE = (GPU, "overlap", "host_time")


@dataclass(frozen=True, slots=True)
class _Columns:
    """All columns that are estimated together: parts first, then sums of them."""

    amounts: Sequence[str]
    """``step``, ``busy``, ``idle``, ``idle: sync``, …: columns after those of the parts."""
    paths: Sequence[str]
    """The columns after those."""
    weights: Matrix
    """(parts, columns): which parts a column sums."""


def compare_steps(group: Group, before: Sequence[Run], after: Sequence[Run]) -> StepComparison:
    """Everything about steps of one kind; those are known by the group that they have before."""
    found = samples(before, after)
    columns = _columns(found)
    sides = [_with_sums(columns, found.before, before), _with_sums(columns, found.after, after)]
    tested = _tested(columns, sides)
    was, now = sides
    guess, floor = estimate(was, now, tested), noise_floor(was, now, tested)
    times = _times(guess, floor)
    first = len(found.keys)
    step, inside = times[first], first + len(columns.amounts)
    named = zip(columns.amounts[1:], times[first + 1 : inside], strict=True)
    amounts = [Amount(*_fields(time), name)
               for name, time in (*named, (EXPOSED, times[-1]))]  # fmt: skip
    unprofiled, source = _unprofiled(before, after, step)
    return StepComparison(
        path=group.path,
        unit=group.unit,
        phase=group.phase,
        batch=group.batch,
        steps=(sum(len(run) for run in found.before), sum(len(run) for run in found.after)),
        step=step,
        unprofiled=unprofiled,
        unprofiled_source=source,
        amounts=[one for one in amounts if one.before_ns or one.after_ns],
        counters=step_counters(before, after),
        parts=_parts(found, times[: len(found.keys)], step),
        paths=_paths(found, before, after,
                     dict(zip(columns.paths, times[inside:-1], strict=True))),
        kernels=_kernels(before, after, floor, step),
    )  # fmt: skip


def _columns(found: Samples) -> _Columns:
    """Parts, then what they sum up to."""
    keys = found.keys
    causes = sorted({what for _, what in keys if what not in _NOT_IDLE})
    named = {"step": [True] * len(keys)}
    named["busy"] = [what in (GPU, "overlap") for _, what in keys]
    named["idle"] = [what in causes for _, what in keys]
    for cause in causes:
        named[f"idle: {cause}"] = [what == cause for _, what in keys]
    spent = GPU if any(what == GPU for _, what in keys) else "host_time"
    paths = _with_above([path for path, what in keys if what == spent])
    below = [[what == spent and (own == path or own.startswith(f"{path}/")) for own, what in keys]
             for path in paths]  # fmt: skip
    sums = np.array([*named.values(), *below], np.float64).reshape(-1, len(keys)).T
    return _Columns(list(named), paths, np.column_stack((np.eye(len(keys)), sums)))


def _with_sums(columns: _Columns, matrices: Sequence[Matrix], runs: Sequence[Run]) -> list[Matrix]:
    """Parts, sums and exposed communication of each run."""
    return [
        np.column_stack((matrix @ columns.weights, _exposed(run)))
        for matrix, run in zip(matrices, runs, strict=True)
    ]


def columns_of(runs: Sequence[Run]) -> tuple[list[str], list[Matrix]]:
    """Amounts and paths of the runs of one side by name, in ns per step."""
    found = samples(runs, runs)
    columns = _columns(found)
    names = [*columns.amounts, *columns.paths, EXPOSED]
    matrices = _with_sums(columns, found.before, runs)
    return names, [matrix[:, len(found.keys) :] for matrix in matrices]


def _with_above(paths: Sequence[str]) -> list[str]:
    """Paths and those around them, in order."""
    out = set()
    for path in paths:
        while path:
            out.add(path)
            path = above(path)
    return sorted(out)


def _tested(columns: _Columns, sides: list[list[Matrix]]) -> Matrix:
    """The step, exposed communication, and paths, where a hundredth of the step or more."""
    mean = np.max([np.mean([run.mean(axis=0) for run in side], axis=0) for side in sides], axis=0)
    step = len(columns.weights)
    tested = mean >= LEAST_SHARE * mean[step]
    tested[:step] = False
    tested[step + 1 : step + len(columns.amounts)] = False
    tested[-1] = mean[-1] >= LEAST_SHARE * mean[step]
    return tested


def _times(guess: Estimate, floor: Floor) -> list[Time]:
    """Each column as whole nanoseconds."""
    out = []
    columns = (guess.before, guess.after, guess.surely_low, guess.surely_high, floor.amount)
    for before, after, low, high, least in zip(*(c.tolist() for c in columns), strict=True):
        known = np.isfinite(low)
        change = round(after) - round(before)
        outside = known and (min(low, change) > least or max(high, change) < -least)
        out.append(Time(round(before), round(after), change,
                        (round(low), round(high)) if known else None, round(least),
                        bool(outside) and change != 0))  # fmt: skip
    return out


def _fields(time: Time) -> tuple[int, int, int, tuple[int, int] | None, int, bool]:
    return (time.before_ns, time.after_ns, time.change_ns, time.bounds_ns, time.floor_ns,
            time.changed)  # fmt: skip


def _parts(found: Samples, times: Sequence[Time], step: Time) -> list[Part]:
    """The parts, rounded so that they add up to the step on both sides."""
    before = _rounded([side.mean(axis=0) for side in found.before], step.before_ns)
    after = _rounded([side.mean(axis=0) for side in found.after], step.after_ns)
    parts = [
        Part(was, now, now - was, time.bounds_ns, time.floor_ns, time.changed, path or None, what)
        for (path, what), was, now, time in zip(found.keys, before, after, times, strict=True)
        if was or now
    ]
    return sorted(parts, key=lambda part: -abs(part.change_ns))


def _rounded(means: list[Matrix], total: int) -> list[int]:
    """Means of runs as integers whose sum is ``total``: the sums so far are rounded."""
    sums = np.rint(np.cumsum(np.mean(means, axis=0))).astype(np.int64)
    if len(sums):
        sums[-1] = total
    whole: list[int] = np.diff(sums, prepend=0).tolist()
    return whole


def _exposed(run: Run) -> Matrix:
    """Communication without compute beside it in each step."""
    out = np.zeros(len(run.rows))
    overlap = run.document.overlap
    if overlap is None:
        return out
    own = {row: place for place, row in enumerate(run.rows)}
    place_of = {run.document.steps[row].index: place for row, place in own.items()}
    for one in overlap.by_step:
        if one.index in place_of:
            out[place_of[one.index]] += sum(
                ns for classes, ns in one.classes.items()
                if "communication" in classes and "compute" not in classes
            )  # fmt: skip
    return out


def _unprofiled(
    before: Sequence[Run], after: Sequence[Run], step: Time
) -> tuple[Time | None, str | None]:
    """The step without the profiler, where all steps are of one kind: measured, or estimated."""
    costs = [[run.document.profiler for run in side] for side in (before, after)]
    known = [cost for side in costs for cost in side if cost is not None]
    sources = {cost.source for cost in known}
    several = any(len(groups_of(run.document)) > 1 for run in (*before, *after))
    if len(known) < len(before) + len(after) or len(sources) > 1 or several:
        return None, None
    was, now = (
        round(sum(cost.unprofiled_step_ns for cost in side if cost) / len(side)) for side in costs
    )
    return _scaled(step, was, now), known[0].source


def _scaled(step: Time, was: int, now: int) -> Time:
    """The step without the profiler: as uncertain as the profiled one, in percent."""
    share = (was + now) / max(step.before_ns + step.after_ns, 1)
    least, bounds = round(step.floor_ns * share), None
    if step.bounds_ns is not None:
        low, high = (round(now - was + (one - step.change_ns) * share) for one in step.bounds_ns)
        bounds = low, high
    changed = bounds is not None and (bounds[0] > least or bounds[1] < -least)
    return Time(was, now, now - was, bounds, least, changed)


def _paths(
    found: Samples, before: Sequence[Run], after: Sequence[Run],
    times: dict[str, Time],
) -> list[PathChange]:  # fmt: skip
    """Paths of both sides with a time, then those that only one side has."""
    alignment = found.alignment
    after_names = {old: new for new, old in alignment.names.items()}
    renamed = dict(alignment.renamed)
    out = [
        PathChange(path, after_names.get(path, path), "renamed" if path in renamed else "same",
                   time, None)
        for path, time in times.items()
    ]  # fmt: skip
    out += [PathChange(path, after_names[path], "renamed", None, None)
            for path in renamed if path not in times]  # fmt: skip
    out.sort(key=lambda one: -abs(one.gpu.change_ns) if one.gpu else 0)
    was, now = work_of(before[0].document), work_of(after[0].document)
    gone = [PathChange(path, None, "gone", None, round(was[path].gpu_ns))
            for path in alignment.gone]  # fmt: skip
    new = [PathChange(None, path, "new", None, round(now[path].gpu_ns)) for path in alignment.new]
    return out + sorted([*gone, *new], key=lambda one: -(one.gpu_ns or 0))


def _kernels(before: Sequence[Run], after: Sequence[Run], floor: Floor, step: Time) -> list[Amount]:
    """GPU time of a step by class and family; totals of captures, so without bounds."""
    sides = [[_families(run.document) for run in side] for side in (before, after)]
    names = sorted({name for side in sides for run in side for name in run})
    out = []
    for name in names:
        was, now = (round(sum(run.get(name, 0) for run in side) / len(side)) for side in sides)
        least = round(floor.amount.max(initial=0) / max(step.before_ns, 1) * max(was, now))
        out.append(Amount(was, now, now - was, None, least, abs(now - was) > least, name))
    return sorted(out, key=lambda one: -abs(one.change_ns))


def _families(document: Document) -> dict[str, float]:
    out: dict[str, float] = {}
    for kernel in document.kernels:
        name = f"{kernel.class_ or kernel.kind}: {kernel.family or 'other'}"
        out[name] = out.get(name, 0) + kernel.gpu_ns / step_count(document)
    return out
