"""Clocks brought together by few ranges and marks of equal texts; the oracle tries every offset."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.merging.clock import REACH_NS, clock_offset
from nvprobe.merging.pairs import Pairs
from nvprobe.trace import (
    Devices,
    Marks,
    Processes,
    Ranges,
    RangeSource,
    Source,
    Threads,
    Trace,
)
from tests.conftest import examples

Span = tuple[str, int, int]
UTC = 10**18


def source(
    spans: list[Span], marks: list[tuple[str, int]] = (), pid: int = 7, origin: int = UTC
) -> Trace:
    """A trace of one thread (tid = pid) with ranges that the program wrote, and marks."""
    texts = [*dict.fromkeys([*(s[0] for s in spans), *(m[0] for m in marks)])]
    row = {text: i for i, text in enumerate(texts)}
    zero, none = np.zeros(len(spans), np.int64), np.full(len(spans), -1)
    return Trace(
        strings=pa.array(texts, pa.string()),
        sources=(Source("test", "t", None, None, {}),),
        processes=Processes(key=[pid], pid=[pid], name=[-1], rank=[-1]),
        threads=Threads(process=[0], tid=[pid], name=[-1]),
        devices=Devices.empty(),
        ranges=Ranges(
            process=zero,
            thread=zero,
            start=np.array([s[1] for s in spans], np.int64),
            end=np.array([s[2] for s in spans], np.int64),
            name=np.array([row[s[0]] for s in spans], np.int64),
            domain=none,
            category=none,
            source=np.full(len(spans), RangeSource.ANNOTATION),
        ),
        marks=Marks(
            process=np.zeros(len(marks), np.int64),
            thread=np.zeros(len(marks), np.int64),
            time=np.array([m[1] for m in marks], np.int64),
            name=np.array([row[m[0]] for m in marks], np.int64),
            domain=np.full(len(marks), -1),
            category=np.full(len(marks), -1),
        ),
        end_ns=10**12,
        origin_ns=origin,
    )


def test_two_ranges_of_the_programs_own_are_enough() -> None:
    """By hand: of load the profile's range is outside, by 300 ns and 100 ns; of run inside."""
    profile = source([("load", 1_000, 9_000), ("run", 20_000, 30_000)])
    torch = source([("load", 1_300 - 5_000, 8_900 - 5_000), ("run", 14_600, 25_250)])
    found = clock_offset(profile, torch)
    assert found is not None
    # load: 4,700 to 5,100; run: 20,000 - 14,600 = 5,400 and 30,000 - 25,250 = 4,750.
    assert (found.low, found.high, found.pairs, found.drift) == (4_750, 5_100, 2, 0.0)


def test_marks_are_written_beside_their_scopes() -> None:
    profile = source([], [("epoch 1", 50_000), ("epoch 2", 90_000)])
    torch = source([("epoch 1", 51_000, 53_000), ("epoch 2", 91_000, 93_000), ("other", 1, 2)])
    found = clock_offset(profile, torch)
    assert found is not None
    # A mark lies up to 200 µs before or after: -3,000 - 200,000 to -1,000 + 200,000.
    assert (found.low, found.high, found.middle) == (-203_000, 199_000, -2_000)


def test_another_process_or_another_time_is_another_run() -> None:
    spans = [("load", 1_000, 9_000), ("run", 20_000, 30_000)]
    assert clock_offset(source(spans), source(spans, pid=8)) is None
    assert clock_offset(source(spans), source(spans, origin=UTC + 2 * REACH_NS)) is None
    assert clock_offset(source(spans), source([("eat", 1, 2), ("go", 5, 9)])) is None


@pytest.mark.parametrize("gain", [0.0, 40e-6, -15e-6])
def test_drift_is_the_line_through_all_pairs(gain: float) -> None:
    """Twelve ranges in 22 s; the first pair and one other belong to something else."""
    steps = [(f"item {n}", n * 2 * 10**9, n * 2 * 10**9 + 10**7) for n in range(12)]
    offset = 30_000
    theirs = [
        (name, round((s - offset) / (1 + gain)) - 500, round((e - offset) / (1 + gain)) + 700)
        for name, s, e in steps
    ]
    theirs[0] = (theirs[0][0], theirs[0][1] + 600_000, theirs[0][2] + 600_000)
    theirs[5] = (theirs[5][0], theirs[5][1] - 400_000, theirs[5][2] - 400_000)
    found = clock_offset(source(steps), source(theirs))
    assert found is not None
    assert found.pairs == 10
    assert found.drift == pytest.approx(gain, abs=1e-9)
    times = np.array([theirs[n][1] for n in range(12) if n not in (0, 5)])
    begins = np.array([steps[n][1] for n in range(12) if n not in (0, 5)])
    # Torch's range is the outer one: 500 ns before and 700 behind, which leaves 1,200 of doubt.
    assert np.abs(found.moved(times) - begins + 500).max() <= 601


intervals = st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 15)), min_size=1, max_size=12)


@examples(200)
@given(intervals)
def test_most_pairs_decide(rows: list[tuple[int, int]]) -> None:
    low = np.array([low for low, _ in rows])
    high = low + np.array([width for _, width in rows])
    begin, end, count = Pairs(np.zeros(len(rows), np.int64), low, high).most()
    allowed = {at: int(((low <= at) & (at <= high)).sum()) for at in range(-60, 61)}
    assert count == max(allowed.values())
    assert all(allowed[at] == count for at in range(begin, end + 1))


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(-1000, 1000)), min_size=3, max_size=9)
)
def test_the_slope_is_the_median_of_all_slopes(rows: list[tuple[int, int]]) -> None:
    time, middle = np.array([t for t, _ in rows]), np.array([m for _, m in rows])
    slope, since = Pairs(time, middle, middle).drift()
    apart = (max(time) - min(time)) / 10
    slopes = [
        (middle[j] - middle[i]) / (time[j] - time[i])
        for i in range(len(rows))
        for j in range(i)
        if abs(int(time[j]) - int(time[i])) > apart
    ]
    assert since == min(time)
    assert slope == pytest.approx(statistics.median(slopes) if slopes else 0.0)


def test_one_pid_is_enough_for_load_to_take_both_as_one_run() -> None:
    """A mark on another thread than the scope is a pair too; a range is not."""
    profile = source([], [("go 17", 5_000)])
    threads = Threads(process=[0, 0], tid=[7, 9], name=[-1, -1])
    torch = source([("go 17", 5_100, 5_200)])
    torch = dataclasses.replace(
        torch,
        threads=threads,
        ranges=dataclasses.replace(torch.ranges, thread=np.array([1])),
    )
    found = clock_offset(profile, torch)
    assert found is not None
    assert found.middle == -150
