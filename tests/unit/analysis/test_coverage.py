"""Covered lengths against counting nanoseconds one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.attribution.intervals import Coverage, Instants, expand

END = 30
interval = st.tuples(st.integers(0, 2), st.integers(0, END), st.integers(0, END))
intervals = st.lists(interval, max_size=12)
instants = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, END), st.integers(0, END)), min_size=1, max_size=8
)


def columns(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, width).T)


def covered(rows: list[tuple[int, int, int]], group: int, instant: int) -> bool:
    return any(g == group and s <= instant < e for g, s, e in rows)


@given(intervals, instants)
def test_lengths(rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    coverage = Coverage.of(*columns(rows, 3), groups=3)
    group, low, high = columns([(g, min(a, b), max(a, b)) for g, a, b in asked], 3)
    wanted = [
        sum(covered(rows, g, t) for t in range(a, b))
        for g, a, b in zip(group.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    assert coverage.between(group, low, high).tolist() == wanted
    whole = [sum(covered(rows, g, t) for t in range(END)) for g in range(3)]
    assert [coverage.length(g) for g in range(3)] == whole
    here = [covered(rows, g, t) for g, t in zip(group.tolist(), low.tolist(), strict=True)]
    assert coverage.contains(group, low).tolist() == here


@given(intervals, instants)
def test_first_instant_with_so_much_uncovered_behind(
    rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    coverage = Coverage.of(*columns(rows, 3), groups=3)
    group, start, length = columns(asked, 3)
    found = coverage.after_uncovered(group, start, length)
    for g, s, wanted, end in zip(*(c.tolist() for c in (group, start, length, found)), strict=True):
        if wanted:
            assert sum(not covered(rows, g, t) for t in range(s, end)) == wanted
            assert not covered(rows, g, end - 1)


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, END)), max_size=12), instants)
def test_instants_before(times: list[tuple[int, int]], asked: list[tuple[int, int, int]]) -> None:
    lanes = Instants.of(*columns(times, 2), groups=3)
    lane, time, _ = columns(asked, 3)
    before, up_to = (lanes.count_before(lane, time, side) for side in ("left", "right"))
    for row, (g, t) in enumerate(zip(lane.tolist(), time.tolist(), strict=True)):
        lower = sum(0 <= h < g for h, _ in times)
        assert before[row] == lower + sum(h == g and at < t for h, at in times)
        assert up_to[row] == lower + sum(h == g and at <= t for h, at in times)


def test_expanding_slices() -> None:
    row, position = expand(np.array([2, 5, 7]), np.array([4, 5, 8]))
    assert row.tolist() == [0, 0, 2]
    assert position.tolist() == [2, 3, 7]
