"""Interval algebra against painting single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.attribution.intervals import gaps, merged, running_max, union_length

rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(-3, 12)), max_size=25
)


def columns(rows):
    group = np.array([g for g, _, _ in rows], np.int64)
    start = np.array([s for _, s, _ in rows], np.int64)
    return group, start, start + np.array([n for _, _, n in rows], np.int64)


def painted(rows, group):
    return {t for g, s, n in rows if g == group for t in range(s, s + n)}


@given(rows)
def test_union_is_what_is_painted(rows) -> None:
    group, start, end = merged(*columns(rows))
    for g in range(4):
        mine = group == g
        cells = [set(range(s, e)) for s, e in zip(start[mine], end[mine], strict=True)]
        assert set().union(*cells) == painted(rows, g)
        assert sum(map(len, cells)) == len(painted(rows, g))
        assert all(a < b for a, b in zip(end[mine], start[mine][1:], strict=False))
    length = union_length(*columns(rows), 4)
    assert length.tolist() == [len(painted(rows, g)) for g in range(4)]


@given(rows)
def test_gaps_are_what_is_not_painted_between_first_and_last(rows) -> None:
    group, start, end = gaps(*columns(rows))
    for g in range(4):
        paint = painted(rows, g)
        hull = set(range(min(paint), max(paint) + 1)) if paint else set()
        mine = group == g
        found = [set(range(s, e)) for s, e in zip(start[mine], end[mine], strict=True)]
        assert set().union(*found) == hull - paint


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_running_max_of_any_int64(rows) -> None:
    rows.sort(key=lambda row: row[0])
    group = np.array([g for g, _ in rows], np.int64)
    values = np.array([v for _, v in rows], np.int64)
    got = running_max(group, values).tolist()
    assert got == [max(v for g2, v in rows[: i + 1] if g2 == g) for i, (g, _) in enumerate(rows)]
