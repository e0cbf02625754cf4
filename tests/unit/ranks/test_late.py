"""Added delays against a slow, obvious program, and what they mean in known situations."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nvprobe.ranks.late import delays, typical


class Member(NamedTuple):
    rank: int
    group: int
    step: int
    code: int
    start: int
    end: int
    exposed: int


def oracle(members: list[Member]) -> list[int]:
    """Added delay of each member, one at a time."""
    latest = {m.code: max(o.start for o in members if o.code == m.code) for m in members}
    wait = [min(latest[m.code], m.end) - m.start for m in members]
    late, hidden, out = [], [], []
    before: list[int | None] = []
    for m in members:
        same = [i for i, o in enumerate(members) if (o.rank, o.group) == (m.rank, m.group)]
        same.sort(key=lambda i: members[i].start)
        place = [members[i].code for i in same].index(m.code)
        before.append(same[place - 1] if place else None)

    def elsewhere(row: int) -> int:
        m, since = members[row], before[row]
        begin = members[since].start if since is not None else -(10**9)
        return sum(
            min(wait[i], o.exposed)
            for i, o in enumerate(members)
            if o.rank == m.rank and o.group != m.group and begin < o.start < m.start
        )

    for row, m in enumerate(members):
        peers = [i for i, o in enumerate(members) if o.code == m.code]
        usual = statistics.median_low(members[i].start for i in peers)
        usual_own = statistics.median_low(members[i].start - elsewhere(i) for i in peers)
        late.append(max(min(m.start - usual, m.start - elsewhere(row) - usual_own), 0))
        gone = [min(wait[i], members[i].end - members[i].start - members[i].exposed) for i in peers]
        hidden.append(statistics.median_high(gone))
    for row in range(len(members)):
        since = before[row]
        carried = 0 if since is None else min(late[since], hidden[since])
        out.append(max(late[row] - carried, 0))
    return out


@st.composite
def jobs(draw: st.DrawFn) -> list[Member]:
    """Up to four ranks in two groups; the collectives of a rank follow one another."""
    ranks = draw(st.integers(2, 4))
    time, members = dict.fromkeys(range(ranks), 0), []
    for code in range(draw(st.integers(1, 6))):
        group = draw(st.integers(0, 1))
        inside = list(range(ranks)) if group == 0 else [0, 1]
        starts = {rank: time[rank] + draw(st.integers(1, 50)) for rank in inside}
        end = max(starts.values()) + draw(st.integers(1, 20))
        for rank in inside:
            exposed = draw(st.integers(0, end - starts[rank]))
            members.append(Member(rank, group, code // 2, code, starts[rank], end, exposed))
            time[rank] = end
    return members


@settings(deadline=None)
@given(jobs())
def test_against_the_oracle(members: list[Member]) -> None:
    found = delays(*(np.array(column, np.int64) for column in zip(*members, strict=True)), 4)
    assert found.added_ns.tolist() == oracle(members)
    total = {(m.rank, m.step): 0 for m in members}
    for member, added in zip(members, oracle(members), strict=True):
        total[member.rank, member.step] += added
    for (rank, step), ns in total.items():
        assert found.by_step[rank, found.steps.tolist().index(step)] == ns


def found_in(members: list[Member], ranks: int) -> list[list[int]]:
    columns = (np.array(column, np.int64) for column in zip(*members, strict=True))
    return delays(*columns, ranks).by_step.tolist()


def test_a_delay_that_others_hide_counts_once() -> None:
    """DDP's buckets: rank 1 is 10 behind at each of them, the other computes meanwhile."""
    members = []
    for number in range(4):
        begin = 100 * number
        members += [Member(0, 0, 0, number, begin, begin + 12, 0),
                    Member(1, 0, 0, number, begin + 10, begin + 12, 0)]  # fmt: skip
    assert found_in(members, 2) == [[0], [10]]


def test_delays_that_nothing_hides_add_up() -> None:
    """Tensor parallelism: after each collective the ranks begin together again."""
    members = []
    for number in range(4):
        begin = 100 * number
        members += [Member(0, 0, 0, number, begin, begin + 12, 12),
                    Member(1, 0, 0, number, begin + 10, begin + 12, 2)]  # fmt: skip
    assert found_in(members, 2) == [[0], [40]]


def test_who_waited_for_another_rank_is_not_late() -> None:
    """Ranks 0 and 1 share a tensor-parallel group; 1 is late there, both at the world's."""
    members = [
        Member(0, 0, 0, 0, 100, 160, 60), Member(1, 0, 0, 0, 150, 160, 10),
        Member(0, 1, 0, 1, 200, 260, 60), Member(1, 1, 0, 1, 200, 260, 60),
        Member(2, 1, 0, 1, 150, 260, 110), Member(3, 1, 0, 1, 150, 260, 110),
        Member(4, 1, 0, 1, 150, 260, 110),
    ]  # fmt: skip
    by_rank = [row[0] for row in found_in(members, 5)]
    assert by_rank[0] == 0
    assert by_rank[2:] == [0, 0, 0]
    assert by_rank[1] == 50 + 50  # at each of the two


def test_typical() -> None:
    table = np.array([[5, -1, 1, 3], [-1, -1, -1, -1], [4, 2, -1, -1]])
    assert typical(table).tolist() == [3, -1, 4]
