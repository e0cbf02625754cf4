"""Who is named from delays by step, and who is not: chance, and ranks that entered late."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.overlap.arrivals import arrivals
from nvprobe.ranks.clock import RankClocks
from nvprobe.ranks.late import Delays, Once, in_one_step
from nvprobe.ranks.own_work import Behind, by_own_host, by_own_kernels
from nvprobe.ranks.stragglers import Excess, Straggler, Work, by_own_time, stragglers
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
    """0.6, 1.6, 1.6 ms: 3% of noise would do as much, so a cause must be recorded besides."""
    assert named([2.7, 0, 0, 0], [0, 0.6, 1.57, 1.56]) == [(1, False)]


def test_two_ranks_of_one_step_show_nothing() -> None:
    assert named([0], [5]) == []


def test_a_rank_that_is_late_now_and_then_by_much_is_named() -> None:
    """In ten of fifteen steps, and the others never: no chance of two ranks."""
    delays = [0.0, *[5.0, 5.0, 0.0] * 5]
    assert named(delays, [0.0] * 16) == [(0, True)]


@pytest.mark.parametrize(
    ("delays_ms", "once"),
    [
        ([[0, 0, 0, 0], [0, 0, 8, 1]], Once(1, 7, 8 * MS)),
        ([[0, 0, 0, 0], [0, 3, 8, 1]], None),  # twice
        ([[0, 3, 0, 0], [0, 0, 8, 1]], None),  # the other one as well
        ([[0, 0, 0, 0], [0, 0, 0.7, 0]], None),  # 2% of four steps of 10 ms are 0.8 ms
        ([[-MS, 5]], Once(0, 6, 5 * MS)),
        ([[5]], None),
    ],
)
def test_a_delay_in_one_step_alone(delays_ms: list[list[float]], once: Once | None) -> None:
    excess = (np.array(delays_ms) * MS).astype(np.int64)
    assert in_one_step(excess, range(5, 9), 0.02 * 10 * MS) == once


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("steps", [4, 16])
def test_noise_is_rarely_a_straggler(ranks: int, steps: int) -> None:
    """Arrivals by chance alone, far beyond the clock's error: each rank by one in two hundred."""
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


def two(first_host: list[int], second_host: list[int], *, enters: int = 200) -> list[Summary]:
    """Two ranks by the length of their hosts' steps in ms; the first one begins later."""
    ranks = [rank(0, enters=enters * MS, host=56 * MS, waits=0, spins=0, idle=True),
             rank(1, enters=0, host=56 * MS, waits=0, spins=0, idle=False)]  # fmt: skip
    lengths = (first_host, second_host)
    return [
        dataclasses.replace(
            one,
            steps=one.steps.with_columns(end=one.steps.start + np.array(own) * MS),
        )
        for one, own in zip(ranks, lengths, strict=True)
    ]


def test_who_arrives_last_while_its_host_takes_no_longer_is_behind() -> None:
    found = by_own_host(two([56, 56, 55, 57], [55, 55, 56, 57]), SAME, LATE, HOST)
    assert isinstance(found, Behind)
    assert (found.rank, found.entered_ns) == (0, 200 * MS)


def test_a_host_that_stalled_once_is_behind_since_then() -> None:
    found = by_own_host(two([55, 56, 96, 57], [55, 55, 56, 57], enters=0), SAME, LATE, HOST)
    assert isinstance(found, Behind)
    assert found.stall == Once(0, 2, 40 * MS)
    slow = by_own_host(two([56, 56, 55, 59], [55, 55, 56, 57]), SAME, LATE, HOST)
    assert isinstance(slow, Behind)
    assert slow.stall is None


def test_a_slower_host_is_late_by_what_it_takes_longer() -> None:
    """It is last by 20 ms a step; its host takes 8 ms longer than the other, which is ahead."""
    judged = by_own_host(two([60, 56, 56, 56], [40, 48, 48, 49]), SAME, LATE, HOST)
    assert not isinstance(judged, Behind)
    late, cause = judged
    assert cause is not None
    assert (late.late_ns, cause.ns, cause.usual_ns) == (8 * MS, 56 * MS, 48 * MS)
    assert cause.path is None  # a third of its idle time is there: it is slower everywhere
    one_place = dataclasses.replace(HOST, in_path_ns=20 * MS)
    judged = by_own_host(two([60, 56, 56, 56], [40, 48, 48, 49]), SAME, LATE, one_place)
    assert not isinstance(judged, Behind)
    assert judged[1] is not None
    assert judged[1].path == "step/forward"


def test_a_host_that_is_slower_now_and_then_is_not() -> None:
    judged = by_own_host(two([25, 25, 23, 21], [25, 26, 24, 25], enters=0), SAME, LATE, HOST)
    assert isinstance(judged, Behind)


def test_what_the_other_host_waits_for_its_gpu_is_not_its_own_time() -> None:
    ranks = two([56] * 4, [56] * 4)
    steps = ranks[1].steps.with_columns(waits_ns=np.full(4, 15 * MS))
    judged = by_own_host([ranks[0], dataclasses.replace(ranks[1], steps=steps)], SAME, LATE, HOST)
    assert not isinstance(judged, Behind)
    assert judged[0].late_ns == 15 * MS


@pytest.mark.parametrize("category", ["compute", "sync"])
def test_other_causes_stay_as_they_are(category: str) -> None:
    cause = dataclasses.replace(HOST, category=category)
    assert by_own_host(two([56] * 4, [56] * 4), SAME, LATE, cause) == (LATE, cause)


def test_kernels_that_only_one_rank_runs_in_each_step() -> None:
    ranks = [rank(0, enters=0, host=56 * MS, waits=0, spins=0, idle=True),
             rank(1, enters=0, host=56 * MS, waits=0, spins=4, idle=False)]  # fmt: skip
    ((late, cause),) = by_own_kernels(ranks, (), MS)
    assert (late.rank, late.late_ns, late.seen_in) == (1, 2 * MS, "GPU work")
    assert cause is not None
    assert (cause.category, cause.path, cause.usual_ns) == ("compute", "step", 0)
    assert by_own_kernels(ranks, (), 3 * MS) == []  # not worth it
    assert by_own_kernels(ranks, (1,), MS) == []  # named already
    assert by_own_kernels(ranks[:1] * 2, (), MS) == []
    seldom = [ranks[0], rank(1, enters=0, host=56 * MS, waits=0, spins=3, idle=False)]
    assert by_own_kernels(seldom, (), MS) == []  # not in each step
    stages = [dataclasses.replace(one, texts=(*one.texts, "send_recv")) for one in ranks]
    assert by_own_kernels(stages, (), MS) == []


def by_host(paths: tuple[str, ...], *ranks: list[float]) -> list[tuple[int, str | None]]:
    """(rank, path) of the stragglers of host times in milliseconds, a row of paths by rank."""
    spent = Work(paths, ("host",) * len(paths), (np.array(ranks) * MS).astype(np.int64))
    return [(late.rank, cause.path) for late, cause in by_own_time(spent, 20 * MS)]


def test_a_backward_pass_that_waits_for_another_rank_is_not_late() -> None:
    paths = ("step", "step/backward")
    assert by_host(paths, [1, 17], [11, 6]) == [(1, "step")]
    assert by_host(paths, [1, 17], [1, 17], [11, 6], [1, 17]) == [(2, "step")]


def test_of_two_ranks_that_differ_in_their_own_work_either_may_wait() -> None:
    assert by_host(("step/data", "step"), [1, 17], [11, 6]) == []
