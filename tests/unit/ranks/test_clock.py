"""Clocks laid on one: synthetic clocks with known offsets and drift."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvprobe.ranks.clock import align
from nvprobe.trace import Column

STEP_NS = 2_000_000


def members(
    groups: list[list[int]], collectives: int, jitter: int, seed: int
) -> tuple[Column, Column, Column, Column]:
    """(rank, group, code, true end) of so many collectives of every group."""
    random = np.random.default_rng(seed)
    rows = []
    for group, ranks in enumerate(groups):
        for number in range(collectives):
            end = number * STEP_NS + 1_000 * group
            for rank in ranks:
                late = int(random.integers(0, jitter + 1))
                rows.append((rank, group, group * collectives + number, end + late))
    rank, group_of, code, end = (np.array(values, np.int64) for values in zip(*rows, strict=True))
    return rank, group_of, code, end


@settings(deadline=None)
@given(
    offsets=st.lists(st.integers(-(10**10), 10**10), min_size=2, max_size=9),
    jitter=st.integers(0, 5_000),
    seed=st.integers(0, 99),
)
def test_offsets_of_one_group(offsets: list[int], jitter: int, seed: int) -> None:
    ranks = len(offsets)
    rank, group, code, true = members([list(range(ranks))], 30, jitter, seed)
    clocks = align(rank, group, code, true + np.array(offsets)[rank], ranks)
    wanted = np.array(offsets) - offsets[0]
    assert np.abs(clocks.offset - wanted).max() <= 2 * jitter + 1
    assert clocks.known.all()
    assert clocks.error_ns is not None
    assert clocks.error_ns <= 2 * jitter + 1


@settings(deadline=None)
@given(seed=st.integers(0, 99), step=st.integers(-(10**9), 10**9))
def test_a_chain_of_pairs_reaches_every_rank(seed: int, step: int) -> None:
    """Stages of a pipeline: each group shares one rank with the next."""
    ranks = 24
    rank, group, code, true = members([[r, r + 1] for r in range(ranks - 1)], 8, 50, seed)
    offsets = np.arange(ranks, dtype=np.int64) * step
    clocks = align(rank, group, code, true + offsets[rank], ranks)
    assert np.abs(clocks.offset - offsets).max() <= 50 * ranks
    assert clocks.known.all()


def test_drift_over_a_long_capture() -> None:
    rank, group, code, true = members([[0, 1, 2]], 2_000, 500, 1)
    drift = np.array([0.0, 3e-5, -2e-5])
    own = true + np.rint(drift[rank] * true).astype(np.int64) + np.array([0, 7_000_000, -40])[rank]
    clocks = align(rank, group, code, own, 3)
    back = clocks.corrected(rank, own)
    common = np.zeros(code.max() + 1)
    np.maximum.at(common, code, back)
    assert np.abs(back - common[code]).max() < 3_000  # the drift alone moves ends by 120 µs
    assert clocks.drift[1] == pytest.approx(3e-5, rel=0.05)


def test_a_few_late_ends_move_nothing() -> None:
    rank, group, code, true = members([[0, 1, 2, 3]], 40, 100, 2)
    own = true + np.array([0, 5_000_000, 0, 0])[rank]
    own[(rank == 2) & (code % 10 == 0)] += 9_000_000
    clocks = align(rank, group, code, own, 4)
    assert np.abs(clocks.offset - [0, 5_000_000, 0, 0]).max() <= 200


def test_clocks_that_agree_as_well_as_ends_do_stay_as_they_are() -> None:
    rank, group, code, true = members([[0, 1]], 40, 4_000, 3)
    clocks = align(rank, group, code, true, 2)
    assert clocks.offset.tolist() == [0, 0]
    assert (clocks.corrected(rank, true) == true).all()


def test_ends_that_do_not_agree_are_no_drift() -> None:
    """In a short capture a late rank ends a few microseconds later: no clock is that wrong."""
    rank, group, code, true = members([[0, 1]], 90, 0, 4)
    true //= 100  # 20 µs apart
    own = true + np.where(rank == 1, np.where(code < 30, -10_000, 10_000), 0)
    assert align(rank, group, code, own, 2).drift.tolist() == [0.0, 0.0]


def test_ranks_without_collectives_are_unknown() -> None:
    rank, group, code, true = members([[0, 2]], 5, 0, 5)
    clocks = align(rank, group, code, true, 3)
    assert clocks.known.tolist() == [True, False, True]
    nothing = np.empty(0, np.int64)
    assert align(nothing, nothing, nothing, nothing, 2).error_ns is None
