"""One process recorded by two tools: how far apart their clocks are, with bounds.

Both say what their time zero is in UTC, yet their times differ by microseconds up to a tenth of a
millisecond. Two facts bound the rest, whatever the program wrote into its traces:

* a call made inside an operator starts and ends inside it, a call made outside lies outside: no
  operator of the same thread begins or ends *during* a call;
* a range that both tools record under one name was opened by two calls, one around the other:
  the longer of the two contains the shorter (:mod:`nvprobe.merging.pairs`).

Where calls are few or lie in no operator, the ranges and marks of equal texts decide alone.

Offsets are what must be added to the second source's times, after the difference of the origins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.merging.drift import Spans, drift
from nvprobe.merging.pairs import Pairs, thread_rows
from nvprobe.trace import Column, RangeSource, Trace

REACH_NS = 1_000_000
"""Largest offset looked for."""
_COARSE_CALLS = 500
"""Calls used to find the neighborhood of the offset; all are used to bound it."""
_NEAR_NS = 50_000
_CANDIDATES = 64
"""Stretches of possible offsets that are compared by how many calls lie inside operators."""
_FEW = 20
"""Fewer calls than this bound nothing."""
_TOLERATED = 0.002
"""Share of calls that an operator may straddle: time stamps are taken in interrupted code."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Bounds of the offset between two clocks, in nanoseconds."""

    low: int
    high: int
    calls: int
    """Calls that bound it."""
    pairs: int
    """Pairs of ranges that bound it."""
    drift: float = 0.0
    """What the offset gains per nanosecond after ``since`` (long captures)."""
    since: int = 0

    def moved(self, times: Column) -> Column:
        """Times of the second source (origins already brought together) on the first's clock."""
        gained = np.rint((times - self.since) * self.drift).astype(np.int64)
        return np.asarray(times + self.middle + gained)

    @property
    def middle(self) -> int:
        """The offset to use."""
        return (self.low + self.high) // 2


def clock_offset(first: Trace, second: Trace) -> Offset | None:
    """Bound the offset of ``second``'s clock; None where the two are not of one process.

    ``first`` has the calls (nsys), ``second`` the operators (torch).
    """
    if first.origin_ns is None or second.origin_ns is None:
        return None
    shift = second.origin_ns - first.origin_ns
    pairs = Pairs.of(first, second, shift)
    return _by_calls(first, second, shift, pairs) or _by_pairs(pairs)


def _by_calls(first: Trace, second: Trace, shift: int, pairs: Pairs) -> Offset | None:
    """By the calls that operators surround, narrowed by the pairs that agree with them."""
    starts, ends, edges = _evidence(first, second, shift)
    if sum(map(len, starts)) < _FEW:
        return None
    gain, since = drift(starts, ends, edges, _widely)
    straight = Offset(0, 0, 0, 0, gain, since)
    edges = [(straight.moved(begin), straight.moved(end)) for begin, end in edges]
    near = _least_straddled(_thinned(starts, ends), edges, -REACH_NS, REACH_NS)
    if near is None:
        return None
    middle = (near[0] + near[1]) // 2
    calls = list(zip(starts, ends, strict=True))
    found = _least_straddled(calls, edges, middle - _NEAR_NS, middle + _NEAR_NS)
    if found is None:
        return None
    low, high, agreeing = pairs.without(gain, since).narrowed(*found)
    return Offset(low, high, sum(map(len, starts)), agreeing, gain, since)


def _by_pairs(pairs: Pairs) -> Offset | None:
    """By what the program wrote into both, where there is too little else to go by.

    Clocks that drift are believed in where more pairs agree then.
    """
    best = None
    for gain, since in ((0.0, 0), pairs.drift()):
        near = pairs.without(gain, since).within(-REACH_NS, REACH_NS)
        if len(near):
            low, high, agreeing = near.most()
            if best is None or agreeing > best.pairs:
                best = Offset(low, high, 0, agreeing, gain, since)
    return best if best is not None and 2 * best.pairs >= len(pairs) else None


def _widely(calls: list[Spans], edges: list[Spans]) -> tuple[int, int] | None:
    return _least_straddled(calls, edges, -REACH_NS, REACH_NS)


def _evidence(
    first: Trace, second: Trace, shift: int
) -> tuple[list[Column], list[Column], list[Spans]]:
    """Per common thread: starts and ends of the calls, sorted edges of the operators."""
    starts, ends, edges = [], [], []
    calls, ranges = first.calls, second.ranges
    traced = np.isin(ranges.source, (RangeSource.OPERATOR, RangeSource.ANNOTATION))
    for theirs, ours in enumerate(thread_rows(first, second).tolist()):
        rows = np.flatnonzero(traced & (ranges.thread == theirs))
        if ours < 0 or not len(rows):
            continue
        edge = np.sort(ranges.start[rows]) + shift, np.sort(ranges.end[rows]) + shift
        called = np.flatnonzero(
            (calls.thread == ours)
            & (calls.end > edge[0][0] - REACH_NS)
            & (calls.start < edge[1][-1] + REACH_NS)
        )
        starts.append(calls.start[called])
        ends.append(calls.end[called])
        edges.append(edge)
    return starts, ends, edges


def _thinned(starts: list[Column], ends: list[Column]) -> list[Spans]:
    every = max(1, sum(map(len, starts)) // _COARSE_CALLS)
    return [(start[::every], end[::every]) for start, end in zip(starts, ends, strict=True)]


def _least_straddled(
    calls: list[Spans], edges: list[Spans], low: int, high: int
) -> tuple[int, int] | None:
    """The offsets in ``low … high`` at which fewest edges fall inside a call.

    None where that gives nothing: the sources hardly overlap, or any offset is as good.
    """
    opens, closes, total = [], [], 0
    for (start, end), both in zip(calls, edges, strict=True):
        edge = np.sort(np.concatenate(both))
        first = np.searchsorted(edge, start - high, side="right")
        last = np.searchsorted(edge, end - low, side="left")
        counts = np.maximum(last - first, 0)
        call = np.repeat(np.arange(len(start)), counts)
        at = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        inside = edge[first[call] + at]
        opens.append(start[call] - inside + 1)  # an edge at the very start or end is allowed
        closes.append(end[call] - inside)
        total += len(start)
    begin, finish = np.concatenate(opens), np.concatenate(closes)
    real = begin < finish
    when = np.concatenate([[low], begin[real].clip(low, high), finish[real].clip(low, high)])
    change = np.concatenate([[0], np.ones(real.sum()), -np.ones(real.sum())])
    order = np.lexsort((change, when))
    when, count = when[order], np.cumsum(change[order])
    width = np.diff(np.append(when, high))
    when, count, width = when[width > 0], count[width > 0], width[width > 0]
    if not len(when) or not real.any():
        return None
    allowed = count.min() + _TOLERATED * total
    if np.average(count, weights=width) < 4 * (allowed + 1):
        return None
    runs = _runs(when, width, count <= allowed)
    return max(runs, key=lambda run: (_called_inside(calls, edges, run), run[1] - run[0]))


def _runs(when: Column, width: Column, good: Column) -> list[tuple[int, int]]:
    """Begin and end of the longest stretches of good offsets."""
    begins = np.flatnonzero(good & ~np.append(False, good[:-1]))
    ends = np.flatnonzero(good & ~np.append(good[1:], False))
    low, high = when[begins], when[ends] + width[ends]
    longest = np.argsort(low - high, kind="stable")[:_CANDIDATES]
    return list(zip(low[longest].tolist(), high[longest].tolist(), strict=True))


def _called_inside(calls: list[Spans], edges: list[Spans], run: tuple[int, int]) -> int:
    """Calls that lie inside an operator at the middle of some offsets.

    Where the host is idle between operators, calls fit into the pauses as well; but there they
    were not made.
    """
    inside = 0
    for (start, end), (begins, finishes) in zip(calls, edges, strict=True):
        time = (start + end) // 2 - (run[0] + run[1]) // 2
        begun = np.searchsorted(begins, time, side="right")
        inside += int((begun > np.searchsorted(finishes, time, side="right")).sum())
    return inside
