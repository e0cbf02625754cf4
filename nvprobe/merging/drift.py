"""How fast two clocks of one machine drift apart over a long run: a line through short pieces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvprobe.trace import Column

LONG_NS = 5_000_000_000
"""Shorter captures are taken at one offset: 1 part in a million is 5 µs of it."""
_PIECE_CALLS = 200
_PIECES = 24
_ENOUGH = 4

Spans = tuple[Column, Column]
"""Starts and ends, each sorted."""
Bound = Callable[[list[Spans], list[Spans]], "tuple[int, int] | None"]
"""Offsets that some calls and operators, thread by thread, allow; None if any does."""
_AROUND_NS = 2_000_000


def drift(
    starts: list[Column], ends: list[Column], edges: list[Spans], bound: Bound
) -> tuple[float, int]:
    """(ns of offset gained per ns, the instant it counts from); no drift in short captures.

    Each piece of some calls in a row bounds the offset at its time; the line is the median of the
    slopes between pieces (Theil and Sen), which some wrong pieces do not move.
    """
    first = min(int(start.min()) for start in starts if len(start))
    last = max(int(end.max()) for end in ends if len(end))
    if last - first < LONG_NS:
        return 0.0, first
    when, offset = [], []
    for start, end, edge in zip(starts, ends, edges, strict=True):
        order = np.argsort(start, kind="stable")
        for at in np.unique(np.linspace(0, max(len(order) - _PIECE_CALLS, 0), _PIECES).astype(int)):
            rows = order[at : at + _PIECE_CALLS]
            found = bound([(start[rows], end[rows])], [_near(edge, start[rows])])
            if found is not None and len(rows) == _PIECE_CALLS:
                when.append(float(np.median(start[rows])))
                offset.append((found[0] + found[1]) / 2)
    if len(when) < _ENOUGH:
        return 0.0, first
    return median_slope(np.array(when), np.array(offset)), first


def median_slope(x: Column, y: Column) -> float:
    """Slope of the line that some wrong points do not move, 0 where all are close together.

    The median over all pairs of points some way apart (Theil and Sen).
    """
    i, j = np.triu_indices(len(x), 1)
    apart = np.abs(x[j] - x[i]) > np.ptp(x) / 10
    if not apart.any():
        return 0.0
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))


def _near(edge: Spans, when: Column) -> Spans:
    """The edges around some calls; a pause between calls keeps those in it too."""
    low, high = int(when[0]) - _AROUND_NS, int(when[-1]) + _AROUND_NS
    begins, ends = (side[slice(*np.searchsorted(side, [low, high]))] for side in edge)
    return begins, ends
