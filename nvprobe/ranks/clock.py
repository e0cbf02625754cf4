"""The clocks of the ranks laid on one, by the ends of their collectives.

Members of a collective end it together, within what the network needs to pass on the last piece. So
of each rank an offset (and, over long captures, a drift) is found such that the ends of each
collective meet: medians, which a few late ends do not move. Groups that share ranks place one
after the other; then offsets and common ends are refined in turn.

The *error* is the 95th percentile of how far an end lies from its collective's common end after
that: no skew below it is evidence. Oracle: tests/unit/ranks/test_clock.py.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column

_ROUNDS = 3
_FOR_DRIFT = 60
"""Fewer collectives than this do not show how fast a clock runs."""
_CHANCE = 10.0
"""Five standard deviations of the difference of two medians, in median deviations."""
_FASTEST_CLOCK = 1e-4
"""Clocks of computers differ by less: what looks like more is ends that do not agree."""


@dataclass(frozen=True, slots=True)
class RankClocks:
    """What brings each rank's times onto the clock of the first one that is known."""

    offset: Column
    """int64 ns by which each rank's clock is ahead at ``zero``."""
    drift: Column
    """float64 ns per ns."""
    zero: int
    known: Column
    """bool per rank: it shares collectives with the others."""
    error_ns: int | None
    """None where no collective has two members."""

    def corrected(self, rank: Column, time: Column) -> Column:
        """Times on the common clock, int64 ns."""
        drifted = np.rint(self.drift[rank] * (time - self.zero)).astype(np.int64)
        return time - self.offset[rank] - drifted


def align(rank: Column, group: Column, code: Column, end: Column, ranks: int) -> RankClocks:
    """Fit the clocks to the ends of matched collectives.

    One row per member: its rank, its group, the collective's code and the end by its own clock.
    Clocks stay as they are where moving them brings the ends together by less than they scatter.
    """
    zero = int(end.min()) if len(end) else 0
    time = end - zero
    fitted = _fitted(rank, group, code, time, ranks, zero)
    plain = RankClocks(np.zeros(ranks, np.int64), np.zeros(ranks), zero, fitted.known, None)
    plain = _with_error(plain, rank, code, end)
    if plain.error_ns is None or fitted.error_ns is None:
        return plain
    agree = np.abs(fitted.offset[fitted.known]).max(initial=0) <= fitted.error_ns
    return plain if agree and not fitted.drift.any() else fitted


def _with_error(clocks: RankClocks, rank: Column, code: Column, end: Column) -> RankClocks:
    left = (clocks.corrected(rank, end) - clocks.zero).astype(np.float64)
    off = np.abs(left - _medians(code, left)[code])
    error = int(np.ceil(np.percentile(off, 95))) if len(off) else None
    return dataclasses.replace(clocks, error_ns=error)


def _fitted(
    rank: Column, group: Column, code: Column, time: Column, ranks: int, zero: int
) -> RankClocks:
    offset, known = _placed(rank, group, code, time, ranks)
    drift = np.zeros(ranks)
    for again in range(2):
        for _ in range(_ROUNDS):
            left = time - offset[rank] - drift[rank] * time
            common = _medians(code, left)
            offset = offset + _of_rank(rank, left - common[code], ranks)
        if not again:
            left = time - offset[rank]
            drift = _drifts(rank, time, left - _medians(code, left)[code], ranks)
    first = int(np.argmax(known)) if known.any() else 0
    offset, drift = offset - offset[first], drift - drift[first]
    clocks = RankClocks(np.rint(offset).astype(np.int64), drift, zero, known, None)
    return _with_error(clocks, rank, code, time + zero)


def _placed(
    rank: Column, group: Column, code: Column, time: Column, ranks: int
) -> tuple[Column, Column]:
    """(first offset of each rank, whether it has one): from group to group over shared ranks."""
    rows = _by(group)
    groups_of = [np.unique(group[own]) for own in _by(rank, ranks)]
    offset, known, done = np.zeros(ranks), np.zeros(ranks, bool), set()
    for start in sorted(range(len(rows)), key=lambda one: -len(rows[one])):
        if not len(rows[start]) or start in done:
            continue
        anchor = rank[rows[start]].min()
        known[anchor] = True
        waiting = deque([start])
        while waiting:
            one = waiting.popleft()
            if one in done:
                continue
            done.add(one)
            new = _place_group(rank[rows[one]], code[rows[one]], time[rows[one]], offset, known)
            waiting.extend(g for r in new for g in groups_of[r].tolist() if g not in done)
    return offset, known


def _place_group(
    rank: Column, code: Column, time: Column, offset: Column, known: Column
) -> list[int]:
    """Offsets of a group's members that have none yet, from those that have; all its members."""
    placed = known[rank]
    _, local = np.unique(code, return_inverse=True)
    common = _medians(local[placed], (time - offset[rank])[placed], int(local.max()) + 1)
    members, member = np.unique(rank, return_inverse=True)
    off = time - common[local]
    seen = ~np.isnan(off)
    middle = _medians(member[seen], off[seen], len(members))
    new = ~known[members] & ~np.isnan(middle)
    offset[members[new]], known[members[new]] = middle[new], True
    return list(members[known[members]].tolist())


def _by(codes: Column, size: int | None = None) -> list[Column]:
    """Rows of each code."""
    order = np.argsort(codes, kind="stable")
    size = int(codes.max(initial=-1)) + 1 if size is None else size
    return np.split(order, np.searchsorted(codes[order], np.arange(1, size))) if size else []


def _medians(code: Column, values: Column, size: int | None = None) -> Column:
    """float64 median of the values of each code, NaN where there are none."""
    size = int(code.max(initial=-1)) + 1 if size is None else size
    out = np.full(size, np.nan)
    order = np.lexsort((values, code))
    ordered, held = values[order], code[order]
    first = runs(held)
    count = np.diff(np.append(first, len(held)))
    middle = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    out[held[first]] = middle
    return out


def _of_rank(rank: Column, off: Column, ranks: int) -> Column:
    return np.nan_to_num(_medians(rank, off, ranks))


def _drifts(rank: Column, time: Column, off: Column, ranks: int) -> Column:
    """ns per ns by which each clock runs ahead, 0 where the captures do not show it.

    The slope between the medians of the first and the last third; it counts only where it moves the
    ends by more than they scatter, and by more than medians of so few values differ by chance.
    """
    drift = np.zeros(ranks)
    for one, rows in enumerate(_by(rank, ranks)):
        if len(rows) < _FOR_DRIFT:
            continue
        rows = rows[np.argsort(time[rows], kind="stable")]
        third = len(rows) // 3
        early, late = rows[:third], rows[-third:]
        span = np.median(time[late]) - np.median(time[early])
        moved = np.median(off[late]) - np.median(off[early])
        line = off[rows] - moved / max(span, 1) * time[rows]
        scatter = np.median(np.abs(line - np.median(line)))
        least = scatter * max(2.0, _CHANCE / third**0.5)
        if least < abs(moved) < _FASTEST_CLOCK * span:
            drift[one] = moved / span
    return drift
