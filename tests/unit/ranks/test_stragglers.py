"""Who is named from delays by step, and who is not: chance, and ranks that entered late."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.overlap.arrivals import arrivals
from nvprobe.ranks.clock import RankClocks
from nvprobe.ranks.late import Delays
from nvprobe.ranks.start_up import behind, by_own_kernels
from nvprobe.ranks.stragglers import Excess, Straggler, stragglers
from nvprobe.ranks.summary import Collectives, Groups, Identity, Kernels, Spent, Steps, Summary

MS = 1_000_000


def named(*delays_ms: list[float], step_ms: float = 10) -> list[tuple[int, bool]]:
    """(rank, sure) of the stragglers of these delays: a row of steps by rank."""
    none = np.empty(0, np.int64)
    table = np.array(delays_ms) * MS
    whole = np.where(table < 0, -1, table).astype(np.int64)
    steps = np.arange(whole.shape[1])
    found = Delays(arrivals(none, none, none), none, steps, whole, True)
    return [(one.rank, one.sure) for one in stragglers(found, 1000, int(step_ms * MS))]


def test_a_rank_that_is_late_in_each_step_is_named() -> None:
    assert named([2.7, 0, 0, 0], [0, 1.55, 1.57, 1.56]) == [(1, True)]


def test_chance_names_nobody() -> None:
    """Of two ranks one is always the later one, here in two of three steps and in 8 of 11."""
    assert named([0, 4.7, 0, 7.1], [0, 0, 0.3, 0]) == []
    often = [1.3, 0, 0, 0, 0, 0.25, 0.4, 0.65, 0, 7, 0, 3.5, 3, 1.7, 0.2]
    rarely = [0, 0, 0.8, 0.4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]
    assert named(often, rarely, step_ms=19) == []


def test_three_steps_that_differ_are_not_sure() -> None:
    """0.6, 1.6, 1.6 ms: 3 % of noise would do as much, so a cause must be recorded besides."""
    assert named([2.7, 0, 0, 0], [0, 0.6, 1.57, 1.56]) == [(1, False)]


def test_two_ranks_of_one_step_show_nothing() -> None:
    assert named([0], [5]) == []


def test_a_rank_that_is_late_now_and_then_by_much_is_named() -> None:
    """In ten of fifteen steps, and the others never: no chance of two ranks."""
    delays = [0.0, *[5.0, 5.0, 0.0] * 5]
    assert named(delays, [0.0] * 16) == [(0, True)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("steps", [4, 16])
def test_noise_is_rarely_a_straggler(ranks: int, steps: int) -> None:
    """Arrivals by chance alone, far beyond the clock's error: each rank by one in a hundred."""
    draw, sure, tries = np.random.default_rng(ranks * 100 + steps), 0, 250
    for _ in range(tries):
        arrive = draw.normal(0, 2, (ranks, steps))
        middle = np.sort(arrive, axis=0)[(ranks - 1) // 2]
        late = np.maximum(arrive - middle, 0)
        sure += any(certain for _, certain in named(*late.tolist()))
    assert sure <= 0.02 * tries * ranks


def rank(number: int, *, enters: int, host: int, waits: int, spins: int, idle: bool) -> Summary:
    """Four steps of a rank whose host begins at ``enters``."""
    start = enters + np.arange(4) * host
    texts = ("gemm", "spin", "step")
    kernels = Kernels(
        name=np.array([0, 1][: 1 + bool(spins)], np.int32),
        path=np.array([2, 2][: 1 + bool(spins)], np.int32),
        ops=np.array([40, spins][: 1 + bool(spins)]),
        gpu_ns=np.array([40 * MS, spins * 2 * MS][: 1 + bool(spins)]),
    )
    steps = Steps(
        index=np.arange(4),
        start=start,
        end=start + host,
        busy_ns=np.full(4, host),
        idle_ns=np.full(4, idle * host // 2),
        waits_ns=np.full(4, waits),
    )
    return Summary(
        Identity(f"rank{number}", number), texts, steps, Spent.empty(), Collectives.empty(),
        Groups.empty(), kernels,
    )  # fmt: skip


SAME = RankClocks(np.zeros(2, np.int64), np.zeros(2), 0, np.ones(2, bool), 0)
LATE = Straggler(0, 20 * MS, 1.0)
HOST = Excess("host", "step/forward", 25 * MS, 0, 8 * MS)


def test_who_entered_late_and_is_no_slower_is_behind() -> None:
    ranks = [rank(0, enters=200 * MS, host=56 * MS, waits=0, spins=0, idle=True),
             rank(1, enters=0, host=55 * MS, waits=0, spins=4, idle=False)]  # fmt: skip
    found = behind(ranks, SAME, LATE, HOST)
    assert found is not None
    assert (found.rank, found.entered_ns, found.host_ns) == (0, 200 * MS, 56 * MS)
    ((late, cause),) = by_own_kernels(ranks, [found], 1000)
    assert (late.rank, late.late_ns) == (1, 2 * MS)
    assert (cause.category, cause.path, cause.usual_ns) == ("compute", "step", 0)
    alike = [ranks[0], dataclasses.replace(ranks[1], kernels=ranks[0].kernels)]
    assert by_own_kernels(alike, [found], 1000) == []


def test_a_slower_host_is_a_straggler_also_where_the_other_waits() -> None:
    """Both steps take 56 ms, of which the host of rank 1 waits 20 for its GPU."""
    ranks = [rank(0, enters=200 * MS, host=56 * MS, waits=0, spins=0, idle=True),
             rank(1, enters=0, host=56 * MS, waits=20 * MS, spins=0, idle=False)]  # fmt: skip
    assert behind(ranks, SAME, LATE, HOST) is None


def test_who_entered_with_the_others_is_not_behind() -> None:
    ranks = [rank(0, enters=MS, host=56 * MS, waits=0, spins=0, idle=True),
             rank(1, enters=0, host=56 * MS, waits=0, spins=0, idle=False)]  # fmt: skip
    assert behind(ranks, SAME, LATE, HOST) is None


def test_gpu_work_makes_late_whoever_entered_first() -> None:
    ranks = [rank(0, enters=200 * MS, host=56 * MS, waits=0, spins=4, idle=True),
             rank(1, enters=0, host=56 * MS, waits=0, spins=0, idle=False)]  # fmt: skip
    assert behind(ranks, SAME, LATE, dataclasses.replace(HOST, category="compute")) is None
