"""Waiting and transfer of collectives against a slow, obvious program."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.overlap.arrivals import arrivals

MEMBERS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-50, 50), st.integers(0, 40)), min_size=1, max_size=40
)


@given(MEMBERS)
def test_against_the_oracle(members: list[tuple[int, int, int]]) -> None:
    code, start, length = (np.array(values, np.int64) for values in zip(*members, strict=True))
    found = arrivals(code, start, start + length)
    for row, (own, begin, lasts) in enumerate(members):
        others = sorted(s for c, s, _ in members if c == own)
        wait = min(max(others), begin + lasts) - begin
        assert found.wait_ns[row] == wait
        assert found.transfer_ns[row] == lasts - wait
        meeting = found.meetings.take(found.meeting[[row]])
        assert meeting.code[0] == own
        assert meeting.ranks[0] == len(others)
        assert (meeting.first[0], meeting.latest[0]) == (others[0], others[-1])
        assert meeting.typical[0] == others[(len(others) - 1) // 2]
        assert meeting.second[0] == others[max(len(others) - 2, 0)]
        assert members[meeting.last[0]][:2] == (own, others[-1])


def test_no_collectives() -> None:
    nothing = np.empty(0, np.int64)
    assert len(arrivals(nothing, nothing, nothing).meetings) == 0
