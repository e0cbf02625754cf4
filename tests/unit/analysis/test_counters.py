"""Averages of counters, nanosecond by nanosecond against a plain loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.kernels.counters import Averages, Bound, counter_use
from nvprobe.attribution import attribute
from nvprobe.trace import Counters, Devices, Trace
from tests.conftest import examples
from tests.random_traces import END, traces

SM, TENSOR, READ, WRITE, ISSUE = (
    "SMs Active [Throughput %]", "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]",
    "SM Issue [Throughput %]",
)  # fmt: skip
OTHER = "Pixel Warps in Flight [Avg]"


def _sampled(trace: Trace, rows: list[tuple[int, int, int, float]]) -> Trace:
    """Samples (device, time, metric, value) added to a trace of two devices."""
    unknown = {f.name: np.full(2, -1) for f in dataclasses.fields(Devices)}
    names = [SM, TENSOR, READ, WRITE, ISSUE, OTHER]
    first = len(trace.strings)
    counters = Counters(
        device=np.array([r[0] for r in rows]), time=np.array([r[1] for r in rows]),
        metric=np.array([first + r[2] for r in rows]), value=np.array([r[3] for r in rows]),
    )  # fmt: skip
    strings = pa.concat_arrays([trace.strings, pa.array(names)])
    devices = Devices(**{**unknown, "id": np.arange(2)})
    return dataclasses.replace(trace, strings=strings, counters=counters, devices=devices)


INSTANTS = st.lists(st.integers(0, END), min_size=0, max_size=8, unique=True).map(sorted)


@examples(120)
@given(traces(), INSTANTS, INSTANTS, st.integers(0, 7))
def test_averages_are_those_of_a_loop_over_nanoseconds(
    trace: Trace, first: list[int], second: list[int], salt: int
) -> None:
    value = {(d, t): float((t * 7 + d * 3 + salt) % 50) for d, ts in ((0, first), (1, second))
             for t in ts}  # fmt: skip
    trace = _sampled(trace, [(d, t, 0, v) for (d, t), v in value.items()])
    attribution = attribute(trace)
    use = counter_use(attribution)
    found = {} if use is None else {
        int(k): (int(n), int(ns), float(v)) for k, n, ns, v in zip(
            use.paths.key, use.paths.samples, use.paths.sampled_ns, use.paths.sm_active,
            strict=True)
    }  # fmt: skip
    want: dict[int, tuple[int, int, float]] = {}
    ops = trace.ops
    for path in range(len(attribution.paths.parent)):
        total, length, touched = 0.0, 0, set()
        for device, times in ((0, first), (1, second)):
            busy = {
                ns for op in range(len(ops))
                if attribution.valid[op] and ops.device[op] == device
                and _under(attribution.paths.parent, attribution.owner[op], path)
                for ns in range(ops.start[op], ops.end[op])
            }  # fmt: skip
            for begin, end in zip(times, times[1:], strict=False):
                shared = sum(begin <= ns < end for ns in busy)
                total += shared * value[device, end]
                length += shared
                if shared:
                    touched.add((device, end))
        if length:
            want[path] = (len(touched), length, total / length)
    assert found.keys() == want.keys()
    for path, (samples, length, mean) in want.items():
        assert found[path][:2] == (samples, length)
        assert found[path][2] == pytest.approx(mean)


def _under(parent: np.ndarray, path: int, above: int) -> bool:
    while path >= 0 and path != above:
        path = int(parent[path])
    return path == above


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ((95, 70, 10, 5), Bound.TENSOR),
        ((95, 2, 40, 30), Bound.DRAM),
        ((95, 90, 40, 30), Bound.TENSOR),
        ((60, 5, 10, 5), Bound.LATENCY),
        ((9, 0, 1, 1), Bound.IDLE),
        ((95, 70, 10, None), Bound.UNKNOWN),
        ((95, 5, 10, 5, 80), Bound.ISSUE),
        ((95, 5, 40, 30, 80), Bound.DRAM),
        ((95, 70, 10, 5, 80), Bound.TENSOR),
        ((95, 5, 10, 5, 40), Bound.LATENCY),
    ],
)
def test_what_bounds_a_path(values: tuple[int | None, ...], bound: Bound) -> None:
    averages = _averages_of(values, samples=9)
    assert averages.bound.tolist() == [bound]


def test_few_samples_tell_nothing() -> None:
    assert _averages_of((95, 70, 10, 5), samples=2).bound.tolist() == [Bound.UNKNOWN]


def _averages_of(values: tuple[int | None, ...], samples: int) -> Averages:
    """One kernel that runs through a number of equal samples."""
    from nvprobe.trace import OpKind
    from tests.random_traces import build

    calls = [(0, 1, 1, 2, 0)]
    ops = [(OpKind.KERNEL, 0, 0, 1, 5, 5 + samples, 0, -1)]
    trace = build([0], [100], [100], [(0, 1, 30, 2)], calls, ops, [])
    rows = [(0, 5 + i, metric, float(v)) for i in range(samples + 1)
            for metric, v in enumerate(values) if v is not None]  # fmt: skip
    use = counter_use(attribute(_sampled(trace, rows)))
    assert use is not None
    assert use.paths.samples.tolist() == [samples]
    return use.kernels if len(use.kernels) else use.paths


def test_without_samples_there_are_no_counters() -> None:
    from tests.random_traces import build

    assert counter_use(attribute(build([0], [100], [100], [], [], [], []))) is None
