"""What a late rank itself does longer, where arrivals alone mislead.

Hosts run ahead of their GPUs. A rank whose host is behind the others' hosts, because it entered the
capture later or for whatever happened before, is last at collective after collective while its host
takes no longer for a step than theirs: the GPUs of the others, whose work is queued, wait each time
for the next launch, and its own GPU waits for its host. So of a delay by the host no more counts
than what the host itself takes longer. And a rank whose GPU has work that the others do not have is
late by it only where nobody else is later: such work is named where arrivals do not show it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.ranks.clock import RankClocks
from nvprobe.ranks.late import NOTABLE, START_UP, Once, in_one_step, typical
from nvprobe.ranks.stragglers import (
    ALONE,
    LIKELY,
    WORTH,
    Excess,
    Straggler,
    beyond_chance,
    of_others,
)
from nvprobe.ranks.summary import Summary
from nvprobe.trace import Column

_OF_THE_HOST = ("host", "input", "other")
"""Causes of a delay that a host which takes no longer cannot have."""
_ONE_BY_ONE = "send_recv"


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that the others wait for, though it does nothing longer than they do."""

    rank: int
    """Row of the ranks."""
    late_ns: int
    """What it is later in a typical step."""
    entered_ns: int | None
    """How much later than the typical other rank it began the first step that all recorded."""
    host_ns: int
    """Its host's own time of a typical step: without waiting for the GPU."""
    usual_host_ns: int
    """Median of the others."""
    stall: Once | None = None
    """A single step in which its host took longer than the others' did."""


def by_own_host(
    ranks: Sequence[Summary], clocks: RankClocks, late: Straggler, cause: Excess | None
) -> tuple[Straggler, Excess | None] | Behind:
    """A straggler whose host causes the delay: by no more than its host takes longer."""
    if cause is None or cause.category not in _OF_THE_HOST:
        return late, cause
    if not all(one.gpu for one in ranks) or not (steps := _shared_steps(ranks)):
        return late, cause
    host = np.array([_host_ns(one, steps) for one in ranks])
    steady = host[:, 1:] if len(steps) >= START_UP else host
    times = typical(steady)
    own, usual = int(times[late.rank]), int(of_others(times[:, None])[late.rank, 0])
    if own - usual > WORTH * usual and beyond_chance(steady, late.rank, LIKELY):
        late = dataclasses.replace(late, late_ns=min(late.late_ns, own - usual))
        in_one_place = cause.in_path_ns >= ALONE * (cause.ns - cause.usual_ns)
        path = cause.path if in_one_place else None  # else it is slower wherever it works
        return late, dataclasses.replace(cause, ns=own, usual_ns=usual, path=path)
    entered = _entered(ranks, clocks, late.rank, steps[0])
    more = (host - of_others(host))[[late.rank]]
    stall = in_one_step(more, steps, NOTABLE * usual)
    return Behind(late.rank, late.late_ns, entered, own, usual, stall)


def _shared_steps(ranks: Sequence[Summary]) -> list[int]:
    """Indices of the steps that all ranks recorded."""
    return sorted(set.intersection(*(set(one.steps.index.tolist()) for one in ranks)))


def _host_ns(rank: Summary, steps: Sequence[int]) -> Column:
    """The host's own time of each of these steps."""
    place = {index: row for row, index in enumerate(rank.steps.index.tolist())}
    rows = [place[index] for index in steps]
    return (rank.steps.end - rank.steps.start - rank.steps.waits_ns)[rows]


def _entered(ranks: Sequence[Summary], clocks: RankClocks, row: int, first: int) -> int:
    """How much later than the others it began a step."""
    began = []
    for place, one in enumerate(ranks):
        start = one.steps.start[one.steps.index == first][:1]
        began.append(int(clocks.corrected(np.full(1, place), start)[0]))
    return began[row] - int(np.median(np.delete(began, row)))


def by_own_kernels(
    ranks: Sequence[Summary], known: Collection[int], least_ns: float
) -> list[tuple[Straggler, Excess | None]]:
    """Ranks with GPU work of ``least_ns`` a step that the others do not have.

    Kernels that they run more often, once a step at least. Not kernels that take longer: beside a
    collective that waits they do. Stages of a pipeline differ by design, and so do ranks of which
    more than a quarter (of a few, more than one) has such work.
    """
    if len(ranks) < 2 or any(_ONE_BY_ONE in one.texts for one in ranks):
        return []
    if min(len(one.steps) for one in ranks) < START_UP:
        return []
    names = sorted({name for one in ranks for name in _texts(one, one.kernels.name)})
    ops, gpu_ns = (
        np.array([_by_name(one, getattr(one.kernels, values), names) for one in ranks])
        for values in ("ops", "gpu_ns")
    )
    steps = np.array([len(one.steps) for one in ranks])[:, None]
    more = np.maximum(ops - of_others(ops), 0)
    per_step = np.where(more >= steps, gpu_ns * more / np.maximum(ops, 1), 0) / steps
    out: list[tuple[Straggler, Excess | None]] = []
    for row in np.flatnonzero(per_step.sum(axis=1) > least_ns).tolist():
        if row in known:
            continue
        most, total = int(per_step[row].argmax()), int(per_step[row].sum())
        own = int(gpu_ns[row, most] / steps[row, 0])
        path, extra = _path(ranks[row], names[most]), int(per_step[row, most])
        late = Straggler(row, total, 1.0, seen_in="GPU work")
        out.append((late, Excess("compute", path, own, own - extra, extra)))
    few = len(out) <= max(1, len(ranks) // 4)
    return sorted(out, key=lambda one: -one[0].late_ns) if few else []


def _path(rank: Summary, kernel: str) -> str | None:
    row = _texts(rank, rank.kernels.name).index(kernel)
    return _texts(rank, rank.kernels.path)[row] or None


def _texts(rank: Summary, rows: Column) -> list[str]:
    return [rank.texts[row] if row >= 0 else "" for row in rows.tolist()]


def _by_name(rank: Summary, values: Column, names: Sequence[str]) -> Column:
    known = dict(zip(_texts(rank, rank.kernels.name), values.tolist(), strict=True))
    return np.array([known.get(name, 0) for name in names], np.float64)
