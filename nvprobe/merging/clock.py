"""One process recorded by two tools: how far apart their clocks are, with bounds.

Both say what their time zero is in UTC, yet their times differ by microseconds up to a tenth of a
millisecond. Two facts bound the rest, whatever the program wrote into its traces:

* a call made inside an operator starts and ends inside it, a call made outside lies outside: no
  operator of the same thread begins or ends *during* a call;
* a range that both tools record under one name was opened by two calls, one around the other:
  the longer of the two contains the shorter.

Offsets are what must be added to the second source's times, after the difference of the origins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.merging.drift import Spans, drift
from nvprobe.trace import Column, Ranges, RangeSource, Trace

REACH_NS = 1_000_000
"""Largest offset looked for."""
_COARSE_CALLS = 500
"""Calls used to find the neighbourhood of the offset; all are used to bound it."""
_NEAR_NS = 50_000
_CLOCK_MARK = "nvprobe clock "
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
    starts, ends, edges = _evidence(first, second, shift)
    if sum(map(len, starts)) < _FEW:
        return _by_marks(first, second, shift)
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
    narrowed = (*found, 0) if gain else _bounded_by_pairs(first, second, shift, *found)
    low, high, pairs = narrowed
    return Offset(low, high, sum(map(len, starts)), pairs, gain, since)


def _widely(calls: list[Spans], edges: list[Spans]) -> tuple[int, int] | None:
    return _least_straddled(calls, edges, -REACH_NS, REACH_NS)


def _by_marks(first: Trace, second: Trace, shift: int) -> Offset | None:
    """Bound the offset by marks alone: where no CUDA was used there are no calls to go by.

    ``nvprobe launch --with-torch-trace`` writes each NVTX mark ``nvprobe clock <unix ns>`` inside a
    scope of torch's profiler of that name, at both ends of the window: mark - end of the scope <=
    offset <= mark - start of the scope.
    """
    marks = {
        text: int(time)
        for text, time in zip(first.texts(first.marks.name), first.marks.time, strict=True)
        if text is not None and text.startswith(_CLOCK_MARK)
    }
    low, high, pairs = -REACH_NS, REACH_NS, 0
    scopes = second.ranges.take(second.ranges.source == RangeSource.ANNOTATION)
    texts = second.texts(scopes.name)
    for row in (row for row, text in enumerate(texts) if text in marks):
        mark = marks[str(texts[row])]
        low = max(low, mark - int(scopes.end[row]) - shift)
        high = min(high, mark - int(scopes.start[row]) - shift)
        pairs += 1
    return Offset(low, high, 0, pairs) if pairs and low <= high else None


def thread_rows(first: Trace, second: Trace) -> Column:
    """int32 row in ``first.threads`` of each thread of ``second``: same pid and tid; else -1."""
    pids = {int(pid): row for row, pid in enumerate(first.processes.pid)}
    known = {
        (int(process), int(tid)): row
        for row, (process, tid) in enumerate(
            zip(first.threads.process, first.threads.tid, strict=True)
        )
    }
    rows = [
        known.get((pids.get(int(second.processes.pid[process]), -1), int(tid)), -1)
        for process, tid in zip(second.threads.process, second.threads.tid, strict=True)
    ]
    return np.array(rows, np.int32)


def named_pairs(first: Trace, second: Trace, threads: Column) -> tuple[Column, Column]:
    """Rows of the ranges that both sources have: one name, one thread, as often; k-th to k-th.

    ``threads`` maps threads of ``second`` to those of ``first``. Only what a program writes itself
    (NVTX ranges, ``record_function``) is paired.
    """
    ours, theirs = first.ranges, second.ranges
    rows = np.flatnonzero((theirs.source == RangeSource.ANNOTATION) & (threads[theirs.thread] >= 0))
    code = {text: row for row, text in _names(first, ours)}
    named = [(code.get(text, -1), row) for row, text in _names(second, theirs.take(rows))]
    to_first = np.full(len(second.strings) + 1, -1, np.int64)
    to_first[[row for _, row in named]] = [ours_row for ours_row, _ in named]
    rows = rows[to_first[theirs.name[rows]] >= 0]
    size = len(first.strings) + 1
    key = threads[theirs.thread[rows]].astype(np.int64) * size + to_first[theirs.name[rows]]
    own_key = ours.thread.astype(np.int64) * size + ours.name
    mine = np.flatnonzero(np.isin(own_key, key))
    order = (
        rows[np.lexsort((theirs.start[rows], key))],
        mine[np.lexsort((ours.start[mine], own_key[mine]))],
    )
    keys, counts = np.unique(key, return_counts=True)
    own_keys, own_counts = np.unique(own_key[mine], return_counts=True)
    same = keys[np.isin(keys, own_keys)][counts[np.isin(keys, own_keys)] == own_counts]
    key_sorted, own_sorted = np.sort(key), np.sort(own_key[mine])
    return order[1][np.isin(own_sorted, same)], order[0][np.isin(key_sorted, same)]


def _names(trace: Trace, ranges: Ranges) -> list[tuple[int, str]]:
    used = np.unique(ranges.name[ranges.name >= 0])
    return list(zip(used.tolist(), map(str, trace.texts(used)), strict=True))


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


def _bounded_by_pairs(
    first: Trace, second: Trace, shift: int, low: int, high: int
) -> tuple[int, int, int]:
    """Narrow the bounds by the named pairs, as far as these agree with them."""
    mine, other = named_pairs(first, second, thread_rows(first, second))
    if not len(mine):
        return low, high, 0
    starts = first.ranges.start[mine] - second.ranges.start[other] - shift
    ends = first.ranges.end[mine] - second.ranges.end[other] - shift
    # Where the first source's range is the longer one it contains the other: its start is below.
    outer = ends - starts >= 0
    lows, highs = np.where(outer, starts, ends), np.where(outer, ends, starts)
    agrees = (lows <= high) & (highs >= low)
    if not agrees.any():
        return low, high, 0
    return (
        max(low, int(lows[agrees].max())) if lows[agrees].max() <= high else low,
        min(high, int(highs[agrees].min())) if highs[agrees].min() >= low else high,
        int(agrees.sum()),
    )
