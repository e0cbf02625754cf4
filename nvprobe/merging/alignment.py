"""The time of one run as the time of another: between the calls that started the same kernels.

No time stamps of two runs are compared. The calls (and the ranges of one name) that correspond are
fixed points, in order, thread by thread; what lies between two of them is stretched to fit. Ranges
that nest still nest, and a call inside an operator stays inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.attribution.model import Attribution
from nvprobe.merging.pairs import named_pairs
from nvprobe.merging.sequence import Match
from nvprobe.trace import NO_ROW, Calls, Column, Trace
from nvprobe.trace.cuda_calls import COPIES, LAUNCHES, SETS, CallRole, calls_with

_STARTING = (*LAUNCHES, CallRole.HOST_FUNCTION, *COPIES, *SETS)


@dataclass(frozen=True, slots=True)
class Alignment:
    """How times on each thread of the second run become times of the first."""

    threads: Column
    """Thread of the first run for each of the second, -1."""
    _from: list[Column]
    _to: list[Column]

    def times(self, thread: Column, times: Column) -> Column:
        """int64 times in the first run; a thread without fixed points borrows the main one's."""
        out = np.zeros(len(times), np.int64)
        most = int(np.argmax([len(points) for points in self._from]))
        for row in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == row)
            at = row if row >= 0 and len(self._from[row]) else most
            out[rows] = _mapped(times[rows], self._from[at], self._to[at])
        return out


def align(first: Attribution, second: Attribution, match: Match) -> Alignment:
    """Fixed points from matched kernels' calls, ranges of one name, and launches between those."""
    ours, theirs = first.trace.calls, second.trace.calls
    assert ours is not None
    assert theirs is not None
    call_a, call_b = first.call[match.first], second.call[match.second]
    threads = _partners(ours.thread[call_a], theirs.thread[call_b], len(second.trace.threads))
    pairs = named_pairs(first.trace, second.trace, threads)
    launches = _launches(first.trace), _launches(second.trace)
    points: list[tuple[Column, Column]] = []
    for row, partner in enumerate(threads.tolist()):
        here = np.flatnonzero((theirs.thread[call_b] == row) & (ours.thread[call_a] == partner))
        fixed = monotone(
            *_edges(theirs, call_b[here], ours, call_a[here]),
            *_range_edges(first, second, pairs, row),
        )
        a, b = (
            rows[calls.thread[rows] == at]
            for rows, calls, at in ((launches[0], ours, partner), (launches[1], theirs, row))
        )
        more_b, more_a = _between(fixed, (theirs, b, second.trace), (ours, a, first.trace))
        points.append(monotone(*fixed, *_edges(theirs, more_b, ours, more_a)))
    return Alignment(threads, [point[0] for point in points], [point[1] for point in points])


def _edges(theirs: Calls, b: Column, ours: Calls, a: Column) -> tuple[Column, Column]:
    """Starts and ends of calls that correspond."""
    return (
        np.concatenate([theirs.start[b], theirs.end[b]]),
        np.concatenate([ours.start[a], ours.end[a]]),
    )


def _range_edges(
    first: Attribution, second: Attribution, pairs: tuple[Column, Column], thread: int
) -> tuple[Column, Column]:
    ours, theirs = first.trace.ranges, second.trace.ranges
    here = theirs.thread[pairs[1]] == thread
    a, b = pairs[0][here], pairs[1][here]
    return (
        np.concatenate([theirs.start[b], second.tree.end[b]]),
        np.concatenate([ours.start[a], first.tree.end[a]]),
    )


def _launches(trace: Trace) -> Column:
    """Rows of the calls that start GPU work, in order; also those of a graph being captured."""
    rows = np.flatnonzero(calls_with(trace, _STARTING))
    return rows[np.argsort(trace.calls.start[rows], kind="stable")]


def _between(
    fixed: tuple[Column, Column],
    theirs: tuple[Calls, Column, Trace],
    ours: tuple[Calls, Column, Trace],
) -> tuple[Column, Column]:
    """Launches that correspond because both runs make the same ones between two fixed points."""
    gaps, names, rows = [], [], []
    for (calls, launch, trace), edge in zip((theirs, ours), fixed, strict=True):
        gap = np.searchsorted(edge, calls.start[launch], side="right")
        at_edge = (gap > 0) & (edge[np.maximum(gap - 1, 0)] == calls.start[launch])
        gaps.append(gap[~at_edge])
        rows.append(launch[~at_edge])
        names.append(trace.strings.take(pa.array(calls.name[launch[~at_edge]])).to_pylist())
    size = len(fixed[0]) + 1
    counts = [np.bincount(gap, minlength=size) for gap in gaps]
    same = counts[0] == counts[1]
    kept = [same[gap] for gap in gaps]
    b_names, a_names = (np.array(n, object)[k] for n, k in zip(names, kept, strict=True))
    differs = np.zeros(size, bool)
    differs[gaps[0][kept[0]][b_names != a_names]] = True
    agrees = ~differs[gaps[0][kept[0]]]
    return rows[0][kept[0]][agrees], rows[1][kept[1]][agrees]


def _partners(ours: Column, theirs: Column, count: int) -> Column:
    """For each thread of the second run the thread of the first that called most of its kernels."""
    out = np.full(count, NO_ROW, np.int32)
    pairs, votes = np.unique(np.stack([theirs, ours], axis=1), axis=0, return_counts=True)
    for row in np.argsort(votes, kind="stable").tolist():
        out[pairs[row, 0]] = pairs[row, 1]
    return out


def monotone(*points: Column) -> tuple[Column, Column]:
    """Points (sources, targets, sources, targets, …) sorted, without those that go back in time."""
    source, target = np.concatenate(points[::2]), np.concatenate(points[1::2])
    order = np.lexsort((target, source))
    x, y = source[order], target[order]
    while True:
        back = np.flatnonzero(np.diff(y) < 0)
        if not len(back):
            break
        keep = np.ones(len(x), bool)
        keep[back] = keep[back + 1] = False
        x, y = x[keep], y[keep]
    first = np.append(True, np.diff(x) > 0) if len(x) else np.zeros(0, bool)
    return x[first], y[first]


def _mapped(times: Column, source: Column, target: Column) -> Column:
    """Linear between fixed points, with the same distance as before outside of them."""
    if not len(source):
        return times
    at = np.searchsorted(source, times, side="right") - 1
    low, high = np.maximum(at, 0), np.minimum(at + 1, len(source) - 1)
    width = np.maximum(source[high] - source[low], 1)
    # Whole nanoseconds: float64 holds a fraction of a gap exactly enough, never an absolute time.
    part = (times - source[low]) / width
    inside = target[low] + np.rint(part * (target[high] - target[low])).astype(np.int64)
    return np.where((at < 0) | (at >= len(source) - 1), target[low] + times - source[low], inside)
