"""Lines of synchronizations that have no mark of their own, against a loop."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.waiting.syncs import carried

WAITS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(-1, 2)), min_size=1, max_size=40
)


def by_loop(waits: list[tuple[int, int, int]]) -> list[int]:
    """What `carried` promises, one wait after another: (step, site, line)."""
    sequences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for step, site, line in waits:
        sequences[site, step].append(line)
    out, seen = [], defaultdict(int)
    for step, site, line in waits:
        place = seen[site, step]
        seen[site, step] += 1
        first = sequences[site, min(s for x, s in sequences if x == site)]
        known = {one for two, _, one in ((b, a, c) for a, b, c in waits) if two == site} - {-1}
        if line < 0 and len(first) == len(sequences[site, step]):
            line = first[place]
        if line < 0 and len(known) == 1 and -1 not in first:
            line = known.pop()
        out.append(line)
    return out


@given(WAITS)
def test_waits_without_a_mark(waits: list[tuple[int, int, int]]):
    waits = sorted(waits, key=lambda wait: wait[0])
    step, site, line = (np.array(column, np.int64) for column in zip(*waits, strict=True))
    assert carried(line, step, site).tolist() == by_loop(waits)


def test_two_lines_by_turns_keep_their_order():
    step = np.repeat([0, 1, 2], [4, 4, 3])
    line = np.array([5, 6, 5, 6, 5, 6, -1, -1, 5, 6, -1])
    found = carried(line, step, np.zeros(11, np.int64)).tolist()
    assert found == [5, 6, 5, 6, 5, 6, 5, 6, 5, 6, -1], "the third step waits less often"
