"""The offset between two clocks that drift, from calls and operators alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.merging.clock import clock_offset
from nvprobe.trace import Calls, Devices, Processes, Ranges, RangeSource, Source, Threads, Trace

COUNT, BURST = 20_000, 100


def base(start: np.ndarray, end: np.ndarray, origin: int) -> tuple[Trace, np.ndarray]:
    one, zero = np.zeros(1, np.int64), np.zeros(len(start), np.int32)
    trace = Trace(
        strings=pa.array(["call", "op"], pa.string()),
        sources=(Source("test", "t", None, None, {}),),
        processes=Processes(key=one, pid=one + 7, name=one - 1, rank=one - 1),
        threads=Threads(process=one, tid=one + 7, name=one - 1),
        devices=Devices.empty(),
        end_ns=int(end.max()),
        origin_ns=origin,
    )
    return trace, zero


def two_traces(seconds: int, drift: float, offset: int) -> tuple[Trace, Trace]:
    """Bursts of operators of 20 to 60 µs, a call inside each; torch's clock is off and drifts."""
    random = np.random.default_rng(3)
    length = random.integers(20_000, 60_000, COUNT)
    pause = np.where(np.arange(COUNT) % BURST, 2000, seconds * 10**9 * BURST // COUNT)
    start = 10**6 + np.cumsum(pause) + np.cumsum(length) - length
    call = start + random.integers(1000, 15_000, COUNT)
    first, zero = base(start, start, 10**18)
    first = dataclasses.replace(
        first,
        calls=Calls(
            process=zero,
            thread=zero,
            correlation=np.arange(COUNT),
            start=call,
            end=call + 4000,
            name=zero,
        ),
    )
    begin, finish = (
        (t - offset - np.rint(t * drift)).astype(np.int64) for t in (start, start + 20_000)
    )
    second, _ = base(begin, finish, 10**18)
    second = dataclasses.replace(
        second,
        ranges=Ranges(
            process=zero,
            thread=zero,
            start=begin,
            end=finish,
            name=zero + 1,
            domain=zero - 1,
            category=zero - 1,
            source=np.full(COUNT, RangeSource.OPERATOR),
        ),
    )
    return first, second


@pytest.mark.parametrize(
    ("seconds", "drift", "offset"),
    [
        (1, 0.0, 40_000),
        (30, 0.0, -90_000),
        (60, 8e-6, 20_000),
        (120, -3e-6, 5_000),
    ],
)
def test_operators_land_around_their_calls(seconds: int, drift: float, offset: int) -> None:
    first, second = two_traces(seconds, drift, offset)
    found = clock_offset(first, second)
    assert found is not None
    start, end = (found.moved(t) for t in (second.ranges.start, second.ranges.end))
    inside = (start <= first.calls.start) & (first.calls.end <= end)
    assert inside.mean() > 0.995
    assert found.high - found.low < 3000
    assert found.drift == pytest.approx(drift, abs=2e-7)
