"""Laying one run over another: fixed points, monotone times, edges that cross nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.merging.alignment import _mapped, monotone
from nvprobe.merging.overlay import snapped
from nvprobe.trace import Ranges

points = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=40)


@given(points, st.lists(st.integers(-(10**6), 2 * 10**6), min_size=2))
def test_mapped_times_keep_their_order(fixed: list[tuple[int, int]], times: list[int]) -> None:
    x, y = monotone(*(np.array([p[axis] for p in fixed], np.int64) for axis in (0, 1)))
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) >= 0).all()
    mapped = _mapped(np.sort(np.array(times, np.int64)), x, y)
    assert (np.diff(mapped) >= 0).all()
    if len(x):
        assert (_mapped(x, x, y) == y).all()


def test_outside_of_the_points_distances_stay() -> None:
    x, y = np.array([100, 200]), np.array([1000, 1400])
    assert _mapped(np.array([90, 100, 150, 200, 230]), x, y).tolist() == [
        990,
        1000,
        1200,
        1400,
        1430,
    ]


def table(spans: list[tuple[int, int]]) -> Ranges:
    start, end = (np.array([span[axis] for span in spans], np.int64) for axis in (0, 1))
    zero = np.zeros(len(spans), np.int32)
    return Ranges(
        process=zero,
        thread=zero,
        start=start,
        end=end,
        name=zero,
        domain=zero - 1,
        category=zero - 1,
        source=zero,
    )


def snap(spans: list[tuple[int, int]], start: int, end: int, error: int) -> tuple[int, int]:
    zero = np.zeros(1, np.int32)
    s, e = snapped(table(spans), zero, np.array([start]), np.array([end]), error)
    return int(s[0]), int(e[0])


def test_an_edge_just_outside_moves_inside() -> None:
    assert snap([(100, 200)], 98, 150, 2) == (100, 150)
    assert snap([(100, 200)], 150, 203, 2) == (150, 200)


def test_a_tail_just_inside_moves_out() -> None:
    assert snap([(100, 200)], 20, 102, 2) == (20, 100)
    assert snap([(100, 200)], 198, 260, 2) == (200, 260)


def test_what_is_far_off_or_nests_stays() -> None:
    assert snap([(100, 200)], 20, 150, 2) == (20, 150)
    assert snap([(100, 200)], 90, 210, 50) == (90, 210)
    assert snap([(100, 200)], 120, 180, 50) == (120, 180)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 300), st.integers(1, 300))
def test_with_enough_reach_nothing_crosses(low: int, width: int, at: int, size: int) -> None:
    high = low + width
    start, end = snap([(low, high)], at, at + size, 1000)
    assert start <= end
    apart = end <= low or start >= high
    assert apart or low <= start <= end <= high or start <= low <= high <= end
