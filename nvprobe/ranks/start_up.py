"""Ranks that arrive late only because they entered the capture late.

Hosts run ahead of their GPUs. Where one rank's host entered the capture later than the others' and
nothing makes the others wait on the host, it stays behind by as much: the GPUs of the others, whose
work is queued already, wait for it in every collective, and its own GPU waits for its host. None of
that is the rank's own doing if its host takes no longer for a step than theirs. Arrivals then show
nothing of what else ranks do longer; work that only one rank has does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.ranks.clock import RankClocks
from nvprobe.ranks.late import START_UP, typical
from nvprobe.ranks.stragglers import EXPLAINS, WORTH, Excess, Straggler
from nvprobe.ranks.summary import Summary
from nvprobe.trace import Column

_OF_THE_HOST = ("host", "input", "other")
"""Causes that the delay of a rank whose host takes no longer cannot have."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that the others wait for, though it does nothing longer than they do."""

    rank: int
    """Row of the ranks."""
    late_ns: int
    """What it is later in a typical step."""
    entered_ns: int
    """How much later than the typical other rank it began the first step that all recorded."""
    host_ns: int
    """Its host's own time of a typical step: without waiting for the GPU."""
    usual_host_ns: int
    """Median of the others."""


def behind(
    ranks: Sequence[Summary], clocks: RankClocks, late: Straggler, cause: Excess | None
) -> Behind | None:
    """Whether a straggler is late only from the start on."""
    if cause is None or cause.category not in _OF_THE_HOST:
        return None
    if not all(one.gpu and len(one.steps) for one in ranks):
        return None
    host = np.array([_host_ns(one) for one in ranks])
    usual = int(np.median(np.delete(host, late.rank)))
    entered = _entered(ranks, clocks, late.rank)
    if entered is None or entered < late.late_ns:
        return None
    if host[late.rank] - usual >= EXPLAINS * late.late_ns:
        return None
    return Behind(late.rank, late.late_ns, entered, int(host[late.rank]), usual)


def _host_ns(rank: Summary) -> int:
    steps = rank.steps
    own = steps.end - steps.start - steps.waits_ns
    return int(typical((own[1:] if len(own) >= START_UP else own)[None, :])[0])


def _entered(ranks: Sequence[Summary], clocks: RankClocks, row: int) -> int | None:
    """How much later than the others it began their first common step; None without one."""
    shared: set[int] = set.intersection(*(set(one.steps.index.tolist()) for one in ranks))
    if not shared:
        return None
    first, began = min(shared), []
    for place, one in enumerate(ranks):
        start = one.steps.start[one.steps.index == first][:1]
        began.append(int(clocks.corrected(np.full(1, place), start)[0]))
    return began[row] - int(np.median(np.delete(began, row)))


def by_own_kernels(
    ranks: Sequence[Summary], late: Sequence[Behind], least_ns: float
) -> list[tuple[Straggler, Excess]]:
    """Ranks with GPU work that the others do not have, a step: kernels they run more often.

    Not kernels that take longer: beside a collective that waits they do.
    """
    out, entered = [], {one.rank for one in late}
    names = sorted({name for one in ranks for name in _texts(one, one.kernels.name)})
    counts = np.array([_by_name(one, one.kernels.ops, names) for one in ranks])
    for row, one in enumerate(ranks):
        if row in entered:
            continue
        usual = np.median(np.delete(counts, row, axis=0), axis=0)
        whole = _by_name(one, one.kernels.gpu_ns, names)
        more = whole * np.maximum(counts[row] - usual, 0) / np.maximum(counts[row], 1)
        per_step = more / len(one.steps)
        if per_step.sum() <= max(least_ns, WORTH * _host_ns(one)):
            continue
        most = int(per_step.argmax())
        path = _texts(one, one.kernels.path)[_texts(one, one.kernels.name).index(names[most])]
        own, total = int(whole[most] / len(one.steps)), int(per_step.sum())
        cause = Excess("compute", path or None, own, int(own - per_step[most]), int(per_step[most]))
        out.append((Straggler(row, total, 1.0), cause))
    return sorted(out, key=lambda one: -one[0].late_ns)


def _texts(rank: Summary, rows: Column) -> list[str]:
    return [rank.texts[row] if row >= 0 else "" for row in rows.tolist()]


def _by_name(rank: Summary, values: Column, names: Sequence[str]) -> Column:
    known = dict(zip(_texts(rank, rank.kernels.name), values.tolist(), strict=True))
    return np.array([known.get(name, 0) for name in names], np.float64)
