"""Who is late: the delay that each rank adds by itself, by step.

How much later than the typical member a rank arrives at a collective is not yet its own doing:

* it may have waited for a third rank in another group since (of a tensor-parallel group all members
  are late at the next data-parallel collective, and only one of them is the reason), so what it
  waited elsewhere is taken off;
* it may be the same delay seen again. Where the others had work to do while they waited, a rank
  that is late at one collective is late at the next by as much. So of a delay at one collective,
  what the others hid of it behind compute does not count at the next.

What remains is *added delay*; its sum over a step is how much later the others are for this rank.
Oracle: tests/unit/ranks/test_late.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.overlap.arrivals import Arrivals, arrivals
from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column

START_UP = 3
"""From so many steps on the first one does not count: ranks enter a capture at different times."""
NOTABLE = 0.02
"""Of a step: less communication is not worth a line, nor less per step of one delay."""
_IN_ONE = 0.75
"""Share of all delays that has to lie in one step of a rank for it to have been late once."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Added delay of members of collectives, and by rank and step."""

    arrivals: Arrivals
    added_ns: Column
    """Per member."""
    steps: Column
    """Index of each step; where there are no steps, the number of each collective of its group."""
    by_step: Column
    """int64 (ranks, steps): added delay, -1 where the rank has no collective in the step."""
    by_steps: bool
    """Whether ``steps`` are steps of the program."""

    @property
    def steady(self) -> Column:
        """``by_step`` without the start of the capture."""
        return self.by_step[:, 1:] if self.by_step.shape[1] >= START_UP else self.by_step

    @property
    def steady_steps(self) -> list[int]:
        """``steps`` of the columns of ``steady``."""
        return [int(step) for step in self.steps[-self.steady.shape[1] :]]


def delays(
    rank: Column,
    group: Column,
    step: Column,
    code: Column,
    start: Column,
    end: Column,
    exposed: Column,
    ranks: int,
) -> Delays:
    """Delays of the members of matched collectives, on one clock. One row per member."""
    met = arrivals(code, start, end)
    waited = np.minimum(met.wait_ns, exposed)
    order = np.lexsort((start, group, rank))
    own = start - _elsewhere(rank, group, start, waited)
    late = np.minimum(start - met.meetings.typical[met.meeting], own - _typical(met, own))
    late = np.maximum(late, 0)
    hidden = np.minimum(met.wait_ns, np.maximum(end - start - exposed, 0))
    carried = _before(order, rank, group, np.minimum(late, _behind(met, hidden)))
    added = np.maximum(late - carried, 0)
    by_steps = bool((step >= 0).any())
    unit = step if by_steps else _numbers(met, group)
    steps, place = np.unique(unit[unit >= 0], return_inverse=True)
    table = np.full((ranks, len(steps)), -1, np.int64)
    kept = unit >= 0
    table[rank[kept], place] = 0
    np.add.at(table, (rank[kept], place), added[kept])
    return Delays(met, added, steps, table, by_steps)


def _elsewhere(rank: Column, group: Column, start: Column, waited: Column) -> Column:
    """What each rank waited in other groups since its collective before in this one."""
    order = np.lexsort((start, rank))
    total = np.cumsum(waited[order]) - waited[order]
    before = np.empty(len(order), np.int64)
    first = runs(rank[order])
    size = np.diff(np.append(first, len(order)))
    before[order] = total - np.repeat(total[first] if len(first) else total, size)
    own = np.lexsort((start, group, rank))
    last = _before(own, rank, group, before + waited)
    return np.maximum(before - last, 0)


def _before(order: Column, rank: Column, group: Column, values: Column) -> Column:
    """The value of each rank's collective before in the same group, 0 for the first."""
    out = np.zeros(len(order), np.int64)
    here, there = order[1:], order[:-1]
    same = (rank[here] == rank[there]) & (group[here] == group[there])
    out[here[same]] = values[there[same]]
    return out


def _typical(met: Arrivals, values: Column) -> Column:
    """Lower median of the values of each member's collective."""
    order = np.lexsort((values, met.meeting))
    first = runs(met.meeting[order])
    size = np.diff(np.append(first, len(order)))
    return values[order][first + (size - 1) // 2][met.meeting]


def _behind(met: Arrivals, hidden: Column) -> Column:
    """Upper median of what the members of each collective hid of their waiting."""
    order = np.lexsort((hidden, met.meeting))
    first = runs(met.meeting[order])
    size = np.diff(np.append(first, len(order)))
    return hidden[order][first + size // 2][met.meeting]


def _numbers(met: Arrivals, group: Column) -> Column:
    """Number of each member's collective among those of its group, in the order of time."""
    meetings = met.meetings
    of_group = group[meetings.last]
    order = np.lexsort((meetings.latest, of_group))
    first = runs(of_group[order])
    size = np.diff(np.append(first, len(order)))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, size)
    return number[met.meeting]


def typical(table: Column) -> Column:
    """Upper median of each row over the columns where it is known (not below 0), -1 without any."""
    ordered = np.sort(table, axis=1)
    unknown = (table < 0).sum(axis=1)
    size = table.shape[1]
    if not size:
        return np.full(len(table), -1)
    place = np.minimum(unknown + (size - unknown) // 2, size - 1)
    return ordered[np.arange(len(table)), place]


@dataclass(frozen=True, slots=True)
class Once:
    """A delay of one rank in one step alone."""

    rank: int
    """Row of the ranks."""
    step: int
    """Index of the step."""
    ns: int


def in_one_step(excess: Column, steps: Sequence[int], least_ns: float) -> Once | None:
    """The one step and rank that most of ``excess`` (ranks, steps) is of.

    On average over the steps it is ``least_ns`` at least.
    """
    above = np.maximum(excess, 0)
    if above.shape[1] < START_UP - 1:
        return None
    row, place = divmod(int(above.argmax()), above.shape[1])
    most = int(above[row, place])
    if most < _IN_ONE * above.sum() or most <= least_ns * above.shape[1]:
        return None
    return Once(row, steps[place], most)


def alone_late(delays: Column) -> Column:
    """By rank and step: how much more delay the rank adds than any other, 0 for all but one."""
    if not delays.size:
        return delays
    first = delays.argmax(axis=0)
    columns = np.arange(delays.shape[1])
    most = delays[first, columns]
    rest = delays.copy()
    rest[first, columns] = -1
    alone = np.zeros_like(delays)
    alone[first, columns] = np.maximum(most - np.maximum(rest.max(axis=0), 0), 0)
    return alone
