"""GPU metrics of 2020 to 2022: JSON in generic events."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_dict
from nvprobe.trace import Trace
from tests.unit.readers.exports import Row, kernel, launch, pushed, strings, write

DDL = {
    "GENERIC_EVENTS": "rawTimestamp INTEGER NOT NULL, timestamp INTEGER, typeId INTEGER NOT NULL, "
    "data TEXT NOT NULL",
    "GENERIC_EVENT_SOURCES": "sourceId INTEGER NOT NULL PRIMARY KEY, data TEXT NOT NULL",
    "GENERIC_EVENT_TYPES": "typeId INTEGER NOT NULL PRIMARY KEY, sourceId INTEGER NOT NULL, "
    "data TEXT NOT NULL",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER NOT NULL, metricId INTEGER NOT NULL, "
    "value INTEGER NOT NULL",
}
TYPE = 281479271677952
SOURCES = [
    {"sourceId": 1, "data": '{"Name": "GpuMetrics", "TimeSource": "ClockMonotonicRaw"}'},
    {"sourceId": 2, "data": '{"Name": "FTrace"}'},
]
TYPES = [
    {"typeId": TYPE, "sourceId": 1, "data": '{"Name": "GPU Metrics [GPU 0]"}'},
    {"typeId": TYPE + 1, "sourceId": 1, "data": "no JSON"},
    {"typeId": 77, "sourceId": 2, "data": "{}"},
]


def _sample(time: int | None, kind: int = TYPE, raw: int = 5, **metrics: object) -> Row:
    data = json.dumps({name.replace("_", " "): value for name, value in metrics.items()})
    return {"rawTimestamp": raw, "timestamp": time, "typeId": kind, "data": data}


def _load(tmp_path: Path, events: list[Row], **more: list[Row]) -> Trace:
    tables = {
        "StringIds": strings("cudaLaunchKernel", "gemm"),
        "NVTX_EVENTS": [pushed("step", 1, 900)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 10, 20)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 100, 900)],
        "GENERIC_EVENT_SOURCES": SOURCES,
        "GENERIC_EVENT_TYPES": TYPES,
        "GENERIC_EVENTS": events,
    }
    return load(write(tmp_path / "x.sqlite", tables | more, DDL))


def _counters(trace: Trace) -> list[tuple[object, ...]]:
    table = trace.counters
    names = trace.texts(table.metric)
    device = trace.devices.id[table.device].tolist()
    return list(zip(device, table.time.tolist(), names, table.value.tolist(), strict=True))


def test_samples_become_counters(tmp_path: Path) -> None:
    """Numbers or texts, each GPU by its type, the raw time where no other is told."""
    events = [
        _sample(10, SM_Active="55", GPC_Clock_Frequency=1_410_000_000, Name="x"),
        _sample(None, raw=20, SM_Active="60.5"),
        _sample(30, TYPE + 1, SM_Active="7"),
        _sample(40, 77, SM_Active="99"),
        _sample(2**62, SM_Active="1"),
    ]
    trace = _load(tmp_path, events)
    assert _counters(trace) == [
        (0, 10, "SM Active", 55.0),
        (0, 10, "GPC Clock Frequency", 1.41e9),
        (0, 20, "SM Active", 60.5),
        (1, 30, "SM Active", 7.0),
    ]
    assert trace.warnings == ()


@pytest.mark.parametrize("damage", ["{", "", "[1]", '{"SM Active": "1"'])
def test_a_damaged_sample_costs_no_other(tmp_path: Path, damage: str) -> None:
    events = [_sample(10, SM_Active=1), {**_sample(20), "data": damage}, _sample(30, SM_Active="3")]
    trace = _load(tmp_path, events)
    assert [row[1:] for row in _counters(trace)] == [(10, "SM Active", 1.0), (30, "SM Active", 3.0)]
    assert trace.warnings == ("1 samples of GPU metrics are not JSON and are left out",)


def test_beside_a_damaged_sample_each_value_is_kept_once(tmp_path: Path) -> None:
    """Not a column as long as the capture for every value, which takes hours and gigabytes."""
    count = 2000
    events = [_sample(t, **{f"m{t}": t}) for t in range(1, count + 1)]
    tracemalloc.start()
    try:
        trace = _load(tmp_path, [{**_sample(0), "data": "{"}, *events])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row[3] for row in _counters(trace)] == list(range(1, count + 1))
    assert peak < count * count * 4


def test_its_own_table_stands_before_generic_events(tmp_path: Path) -> None:
    metrics = [{"timestamp": 50, "typeId": TYPE, "metricId": 0, "value": 9}]
    trace = _load(tmp_path, [_sample(10, SM_Active=1)], GPU_METRICS=metrics)
    assert [row[1] for row in _counters(trace)] == [50]


def test_without_samples_there_are_none(tmp_path: Path) -> None:
    assert not _load(tmp_path, [_sample(10, 77, SM_Active=1)]).counters.recorded
    assert not _load(tmp_path / "..", [], GENERIC_EVENT_SOURCES=[]).counters.recorded


def test_metrics_without_any_range(tmp_path: Path) -> None:
    """Nothing has a path then; kernels have their averages all the same."""
    events = [_sample(t, SM_Active=80) for t in range(0, 1001, 100)]
    found = to_dict(analyze(attribute(_load(tmp_path, events, NVTX_EVENTS=[]))))
    assert found["ranges"] == []
    assert found["counters"]["samples"] == 11


def test_metrics_without_names(tmp_path: Path) -> None:
    """An export that lacks TARGET_INFO_GPU_METRICS: nobody can tell what was sampled."""
    metrics = [{"timestamp": t, "typeId": TYPE, "metricId": 0, "value": 9} for t in (50, 60, 70)]
    found = to_dict(analyze(attribute(_load(tmp_path, [], GPU_METRICS=metrics))))
    assert found["counters"]["samples"] == 3
    assert all(
        row["counters"] is None or row["counters"]["bound"] is None for row in found["ranges"]
    )


def test_their_averages_need_no_unit(tmp_path: Path) -> None:
    events = [
        _sample(t, SM_Active=80, Tensor_Active=50, DRAM_Read_Throughput=3,
                DRAM_Write_Throughput="2", GPC_Clock_Frequency=1_500_000_000)
        for t in range(0, 1001, 100)
    ]  # fmt: skip
    found = to_dict(analyze(attribute(_load(tmp_path, events))))
    (row,) = (row for row in found["ranges"] if row["path"] == "step")
    assert row["counters"]["sm_active"] == pytest.approx(80)
    assert row["counters"]["bound"] == "tensor"
    assert row["counters"]["clock_mhz"] == pytest.approx(1500)
