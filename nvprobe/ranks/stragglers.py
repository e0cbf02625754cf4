"""Which ranks are stragglers, and what they do longer than the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nvprobe.analysis.student import t_quantile
from nvprobe.ranks.late import Delays, typical
from nvprobe.ranks.map import GPU, HOST, IDLE, INPUT
from nvprobe.ranks.summary import Summary
from nvprobe.trace import Column

_MOST = 0.5
"""Share of steps in which a straggler adds a delay."""
LIKELY, _SURE = 0.95, 0.995
"""Of chance alone, how often a delay varies more: enough with a cause that is recorded; without."""
_APART = 5.0
"""Scatters (1.4826 × median absolute deviation) by which it stands out from the others,"""
_FOR_SCATTER = 4
"""where there are as many ranks as this."""
WORTH = 0.01
"""Of a step: less is not worth a name."""
_BY_HOST_TIME = 0.1
"""Of a step: host times of ranks differ by less for no reason."""
EXPLAINS = 0.3
"""Share of the delay that what a rank does longer must reach to count as its cause."""
ALONE = 0.5
"""Share that what it does longer in one path must reach to be named without the other paths."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others wait for, step after step."""

    rank: int
    """Row of the ranks."""
    late_ns: int
    """Delay it adds in a typical step."""
    share: float
    """Of the steps, those in which it adds one worth a name."""
    sure: bool = True
    """Whether its delays differ too little from step to step for chance, whatever their cause."""
    seen_in: str = "collectives"
    """What shows it: ``collectives``, ``GPU work`` or ``host time``."""


@dataclass(frozen=True)
class Work:
    """Time of each rank in a typical step, by path and kind (without communication)."""

    path: tuple[str | None, ...]
    kind: tuple[str, ...]
    ns: Column
    """int64 (ranks, paths): median over its steps, the upper one of an even number."""

    @cached_property
    def of_others(self) -> Column:
        """float64 (ranks, paths): median of all ranks but the row's own; two ranks at least."""
        return of_others(self.ns)


def of_others(table: Column) -> Column:
    """float64 of the same shape: the median of each column without the row's own value."""
    size = len(table)
    place = np.argsort(np.argsort(table, axis=0, kind="stable"), axis=0)
    ordered = np.sort(table, axis=0)
    low, high = (size - 2) // 2, (size - 1) // 2
    below = np.where(place > low, ordered[low], ordered[min(low + 1, size - 1)])
    above = np.where(place > high, ordered[high], ordered[min(high + 1, size - 1)])
    return (below + above) / 2


@dataclass(frozen=True, slots=True)
class Excess:
    """What a rank does longer than the other ranks do."""

    category: str
    """``compute``, ``input``, ``sync``, ``host`` or ``other``."""
    path: str | None
    """Where most of the difference lies."""
    ns: int
    """Its time of this category in a typical step."""
    usual_ns: int
    """Median of the others."""
    in_path_ns: int
    """Difference in ``path`` alone."""


def stragglers(found: Delays, error_ns: int, step_ns: int | None) -> list[Straggler]:
    """The ranks that add a delay in most steps, beyond the clock's error, the latest first."""
    steady = found.steady
    if not steady.size:
        return []
    late, known = typical(steady), steady >= 0
    least = max(error_ns, WORTH * (step_ns or 0), 1)
    share = ((steady > least) & known).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    some = late[late >= 0]
    middle = np.median(some) if len(some) else 0.0
    scatter = 1.4826 * np.median(np.abs(some - middle)) if len(some) >= _FOR_SCATTER else 0.0
    chosen = (late > least) & (share > _MOST) & (late > middle + _APART * scatter)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(-late[rows], kind="stable")]
    return [
        Straggler(int(row), int(late[row]), float(share[row]), beyond_chance(steady, row, _SURE))
        for row in rows.tolist()
        if beyond_chance(steady, row, LIKELY)
    ]


def beyond_chance(delays: Column, row: int, confidence: float) -> bool:
    """Whether a rank adds more delay than the others by more than steps vary (Student's t).

    Of two ranks one always is the later one: in three steps by chance the same one twice. A single
    step shows nothing by itself; there four ranks or more have shown how far apart they are.
    """
    known = delays[row] >= 0
    others = np.delete(delays[:, known], row, axis=0)
    more = delays[row, known] - np.maximum(others, 0).mean(axis=0)
    if len(more) < 2:
        return len(delays) >= _FOR_SCATTER and confidence < _SURE
    error = more.std(ddof=1) / len(more) ** 0.5
    return bool(more.mean() > t_quantile(len(more) - 1, confidence) * error)


def work(ranks: Sequence[Summary]) -> Work:
    """A typical step of each rank, by path and kind."""
    keys: dict[tuple[str | None, str], int] = {}
    parts = [_of_rank(rank, keys) for rank in ranks]
    table = np.zeros((len(ranks), len(keys)), np.int64)
    for row, (key, ns) in enumerate(parts):
        table[row, key] = ns
    return Work(tuple(path for path, _ in keys), tuple(kind for _, kind in keys), table)


def _of_rank(rank: Summary, keys: dict[tuple[str | None, str], int]) -> tuple[Column, Column]:
    """(key, ns of a typical step); without steps, of the whole capture."""
    spent, size = rank.spent, len(rank.steps)
    rows = np.flatnonzero(spent.step >= 0) if size else np.arange(len(spent))
    pair = (spent.path[rows].astype(np.int64) + 1) << 32 | spent.kind[rows]
    pairs, code = np.unique(pair, return_inverse=True)
    step = spent.step[rows] if size else np.zeros(len(rows), np.int64)
    table = np.zeros((len(pairs), max(size, 1)), np.int64)
    np.add.at(table, (code, step), spent.ns[rows])
    steady = table[:, 1:] if size >= 3 else table
    texts = rank.texts
    named = [
        (texts[(p >> 32) - 1] if p >> 32 else None, texts[p & 0xFFFFFFFF]) for p in pairs.tolist()
    ]
    return np.array([keys.setdefault(one, len(keys)) for one in named], np.int64), typical(steady)


def excess(found: Work, rank: int, late_ns: int) -> Excess | None:
    """What explains a delay: one path, else the kind of time of which the rank has most more."""
    if found.ns.shape[0] < 2 or not found.ns.shape[1]:
        return None
    others = found.of_others[rank]
    more = found.ns[rank] - others
    most = int(np.argmax(more))
    if more[most] >= ALONE * late_ns:
        return _in_path(found, rank, most, int(others[most]))
    categories = np.array([_category(kind) for kind in found.kind])
    totals = {one: float(more[categories == one].sum()) for one in np.unique(categories).tolist()}
    category = max(totals, key=lambda one: totals[one])
    if totals[category] <= 0 or totals[category] < EXPLAINS * late_ns:
        return None
    most = int(np.argmax(np.where(categories == category, more, -np.inf)))
    usual = int(others[categories == category].sum())
    return Excess(
        category=category,
        path=found.path[most],
        ns=usual + int(totals[category]),
        usual_ns=usual,
        in_path_ns=int(more[most]),
    )


def _in_path(found: Work, rank: int, row: int, usual_ns: int) -> Excess:
    own = int(found.ns[rank][row])
    return Excess(_category(found.kind[row]), found.path[row], own, usual_ns, own - usual_ns)


def _category(kind: str) -> str:
    """``compute``, ``input``, ``sync``, ``host`` or ``other`` of a kind of time."""
    cause = kind.removeprefix(IDLE)
    if kind in (GPU, HOST):
        return "compute" if kind == GPU else "host"
    if cause in (INPUT, "sync"):
        return cause
    return "other" if cause in ("device_wait", "unknown", "collective") else "host"


def by_own_time(found: Work, step_ns: int | None) -> list[tuple[Straggler, Excess]]:
    """Stragglers of ranks whose collectives were not recorded, by host time alone.

    All ranks of a synchronous program take equally long for a step: what one spends longer in its
    own work the others spend waiting. So a straggler spends longer in some paths, and at least half
    as much less in others. What is longer in a backward pass is such waiting: collectives that
    nothing records are those of DDP and FSDP there. Of two ranks that remain either may wait for
    the other.
    """
    size, out = found.ns.shape[0], []
    if size < 2 or not found.ns.shape[1] or not step_ns:
        return []
    more = found.ns - found.of_others
    gained, lost = np.maximum(more, 0).sum(axis=1), np.maximum(-more, 0).sum(axis=1)
    spread = _APART * 1.4826 * np.median(np.abs(gained - np.median(gained))) if size >= 4 else 0
    least = max(_BY_HOST_TIME * step_ns, np.median(gained) + spread if size >= 4 else 0)
    for rank in np.argsort(-gained, kind="stable").tolist():
        if gained[rank] > least and lost[rank] >= gained[rank] / 2:
            most = int(np.argmax(more[rank]))
            if "backward" in (found.path[most] or "").split("/"):
                continue
            usual = int(found.ns[rank][most] - more[rank][most])
            cause = _in_path(found, rank, most, usual)
            late = Straggler(rank, int(gained[rank]), 1.0, seen_in="host time")
            out.append((late, cause))
    return out if size > 2 or len(out) < 2 else []
