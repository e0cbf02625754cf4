"""Counters of a real capture with 20 kHz samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_dict


@pytest.fixture(scope="module")
def found(corpus: Path) -> dict:
    trace = load(corpus / "nsys" / "h200" / "gpu_metrics_pqtdir")
    return to_dict(analyze(attribute(trace)))


def test_paths_have_counters_and_their_samples(found: dict) -> None:
    step = next(row for row in found["ranges"] if row["path"] == "step")
    counters = step["counters"]
    # 28.4 ms at 20 kHz are 570 samples; those that the path's busy time touches count once.
    assert 150 < counters["samples"] < 570
    assert counters["sampled_ns"] <= step["gpu_busy_ns"]
    assert counters["sm_active"] > 80
    assert counters["tensor_active"] < 1  # FP32 products, off the tensor cores
    assert counters["bound"] == "issue"  # but near the peak of what can be issued
    by_path = {row["path"]: row["counters"] for row in found["ranges"]}
    assert by_path["step/forward"]["bound"] == "issue"
    assert by_path["step/opt"]["bound"] == "latency"
    assert by_path["step/cub::DeviceSelect::Flagged"]["bound"] == "idle"


def test_kernels_have_them_too_and_clocks_are_told(found: dict) -> None:
    kernels = found["counters"]["kernels"]
    first = found["kernels"][0]["name"]
    assert kernels[0]["name"] == first
    assert found["counters"]["period_ns"] == pytest.approx(50_000, rel=0.01)
    low, high = found["counters"]["clock_mhz"]
    assert 300 < low <= high <= 2000


def test_an_average_is_the_integral_over_busy_time(corpus: Path, found: dict) -> None:
    trace = load(corpus / "nsys" / "h200" / "gpu_metrics_pqtdir")
    samples, ops = trace.counters, trace.ops
    assert samples.recorded
    names = trace.texts(samples.metric)
    rows = [i for i, name in enumerate(names) if name == "SMs Active [Throughput %]"]
    time, value = samples.time[rows], samples.value[rows]
    name = found["kernels"][0]["name"]
    mine = np.flatnonzero(np.array(trace.texts(ops.name)) == name)
    total = length = 0.0
    for low, high in zip(ops.start[mine], ops.end[mine], strict=True):
        shared = np.minimum(high, time[1:]) - np.maximum(low, time[:-1])
        shared = np.maximum(shared, 0)
        total += float((shared * value[1:]).sum())
        length += float(shared.sum())
    assert found["counters"]["kernels"][0]["sm_active"] == pytest.approx(total / length)
