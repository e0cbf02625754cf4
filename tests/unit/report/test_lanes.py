"""Slices of one lane never overlap, and no lane is taken that a lower one could have been."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.report.lanes import lanes, track_order

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=30)


def lanes_by_trying(rows: list[tuple[int, int, int]]) -> list[int]:
    """Each slice takes the lowest lane on which it meets none before it."""
    taken: list[tuple[int, int, int, int]] = []
    out = []
    for track, start, end in rows:
        lane = 0
        while any((t, n) == (track, lane) and start < e for t, n, _, e in taken):
            lane += 1
        taken.append((track, lane, start, max(end, start + 1)))
        out.append(lane)
    return out


@given(SLICES)
def test_every_slice_takes_the_lowest_free_lane(rows) -> None:
    track, start, length = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True))
        if rows
        else [np.empty(0, np.int64)] * 3
    )
    end = start + length
    order = track_order(track, start, end)
    found = lanes(track[order], start[order], end[order])
    ordered = list(
        zip(track[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True)
    )
    assert found.tolist() == lanes_by_trying(ordered)


def test_ranges_that_nest_are_a_stack() -> None:
    start, end = np.array([0, 1, 2, 5, 9]), np.array([10, 6, 4, 6, 10])
    assert lanes(np.zeros(5, np.int64), start, end).tolist() == [0, 1, 2, 2, 1]
