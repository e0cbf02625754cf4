"""Look-ups of open ranges against looking at every range; one crossing does not spoil a thread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.attribution.nesting import nest
from tests.conftest import examples

rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(-1, 12)), min_size=1, max_size=14
)


def nested(rows):
    thread = np.array([t for t, _, _ in rows], np.int64)
    start = np.array([s for _, s, _ in rows], np.int64)
    return nest(thread, start, start + np.array([n for _, _, n in rows], np.int64), 2)


@examples(1500)
@given(rows)
def test_open_ranges_at_every_instant(rows) -> None:
    nesting = nested(rows)
    for thread in range(2):
        time = np.arange(-1, 34)
        last = nesting.last_started(np.full(len(time), thread), time)
        query, position = nesting.open_chains(last, time)
        inner = nesting.innermost_open(last, time)
        for at, now in enumerate(time.tolist()):
            found = nesting.row[position[query == at]].tolist()
            wanted = [row for row, (t, s, n) in enumerate(rows) if t == thread and s <= now < s + n]
            wanted.sort(key=lambda row: (rows[row][1], -rows[row][2], row))
            assert found == wanted, now
            innermost = nesting.row[inner[at]] if inner[at] >= 0 else None
            assert innermost == (wanted[-1] if wanted else None), now


@examples(1500)
@given(rows)
def test_zones_are_where_ranges_that_cross_are_open(rows) -> None:
    nesting = nested(rows)
    for thread in range(2):
        mine = [(s, s + n) for t, s, n in rows if t == thread and n > 0]
        crossed = [(a, b) for a, b in mine if any(a < c < b < d or c < a < d < b for c, d in mine)]
        time = np.arange(-1, 34)
        last = nesting.last_started(np.full(len(time), thread), time)
        got = nesting.in_crossing(last, time).tolist()
        assert got == [any(a <= now < b for a, b in crossed) for now in time.tolist()]


def test_ranges_after_a_crossing_are_plain_again() -> None:
    nesting = nested([(0, 0, 100), (0, 1, 4), (0, 3, 4), (0, 20, 10), (0, 25, 2)])
    assert nesting.crossing.tolist() == [False, True, True, False, False]
    assert nesting.parent.tolist() == [-1, 0, 0, 0, 3]
