"""Files beside torch traces are refused by name; traces of counters and of other makers are read.

Every value was worked out by hand from the events of the test.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.errors import InputError
from nvprobe.readers import load
from nvprobe.readers.kineto import load_kineto
from tests.unit.test_kineto import document, event, write

EXECUTION = {
    "schema": "1.0.2-chakra.0.0.4",
    "pid": 7,
    "nodes": [{"id": 1, "name": "aten::mm", "attrs": [{"name": "rf_id", "value": 1}]}],
}
JAX: dict[str, Any] = {
    "traceEvents": [
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 1.5, "dur": 2.0, "name": "fusion.1"},
        {},
    ]
}
OTHERS = {
    "execution trace": json.dumps(EXECUTION),
    "memory timeline": "[[1785000000, 'create', 512, 3]]".replace("'", '"'),
    "memory timeline (export_memory_timeline)": "[[1.5, 2.5], [[0, 512], [0, 1024]]]",
    "trace of JAX or XProf": json.dumps(JAX),
    "without a category": json.dumps({"traceEvents": [JAX["traceEvents"][1]]}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("what", OTHERS)
def test_another_format_is_refused_by_name(tmp_path: Path, what: str, packed: bool) -> None:
    text = OTHERS[what].encode()
    path = write(tmp_path, gzip.compress(text) if packed else text)
    with pytest.raises(InputError) as refusal:
        load_kineto(path)
    line = str(refusal.value)
    assert what in line
    assert not any(wrong in line for wrong in ("empty", "cut off", "export the trace again", "\n"))


def test_pages_and_planes_are_refused_by_name(tmp_path: Path) -> None:
    page = "<html>\n<head><title>GPU Memory Timeline HTML</title></head></html>"
    with pytest.raises(InputError, match="memory timeline"):
        load(write(tmp_path, page, "memory.html"))
    with pytest.raises(InputError, match="JAX or XProf"):
        load(write(tmp_path, b"\n\x05\x00host", "host.xplane.pb"))


@pytest.mark.parametrize(
    "text", ['{"name": "not a trace", "items": [1, 2]}', "[1, 2, 3]", '[{"a": 1}]']
)
def test_json_of_something_else_is_not_called_cut_off(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"is JSON, but not a trace of torch\.profiler; give the"):
        load_kineto(write(tmp_path, text))


def test_an_empty_list_is_still_called_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="event list is empty"):
        load_kineto(write(tmp_path, document()))


def counted_launches(kernels: int) -> tuple[str, ...]:
    launches = (
        event("cuda_runtime", "cudaLaunchKernel", f"{10 + row}.000", correlation=row + 1)
        for row in range(kernels)
    )
    ranges = (
        event("cuda_profiler_range", "gemm", f"{100 + row}.000", **{"sm__cycles.sum": 12.5})
        for row in range(kernels)
    )
    return (*launches, *ranges)


@pytest.mark.parametrize("kernels", [1, 3])
def test_counters_are_no_lost_kernels(tmp_path: Path, kernels: int) -> None:
    trace = load_kineto(write(tmp_path, document(*counted_launches(kernels))))
    assert not trace.ops.recorded
    assert "CUPTI" in trace.missing[0].why
    assert not any("lost" in text for text in analyze(attribute(trace)).warnings)


def test_launches_without_kernels_or_counters_are_lost(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(counted_launches(1)[0])))
    assert any(
        "1 launch call has no GPU record" in text for text in analyze(attribute(trace)).warnings
    )


@pytest.mark.parametrize(("cat", "count"), [("mtia_runtime", 3), ("hpu_op", 1)])
def test_what_is_left_out_counts_once(tmp_path: Path, cat: str, count: int) -> None:
    """Absolute times with decimals make the reader decode a piece a second time."""
    times = [f"{1_785_000_000_000_000 + row}.125" for row in range(count)]
    unknown = (event(cat, "x", time) for time in times)
    frame = event("python_function", "train.py(1): main", "1785000000000009.125")
    trace = load_kineto(write(tmp_path, document(*unknown, frame)))
    noun = "event" if count == 1 else "events"
    assert any(f"left out {count} {noun} of categories" in text for text in trace.warnings)


COPIES = {
    "Memcpy M2D (Memory -> Device)": ("Memcpy HtoD", 1, 1, 3),
    "Memcpy D2H (Device -> Host)": ("Memcpy DtoH", 2, 3, 2),
    "Memcpy D2D (Device -> Device)": ("Memcpy DtoD", 8, 3, 3),
    "Memcpy S2M (Shared -> Memory)": ("Memcpy DtoH", 2, 5, 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_intel_gpus_have_directions(tmp_path: Path, name: str) -> None:
    queue: dict[str, Any] = {"sycl queue": 65, "context": "0x000055d0c0de0000"}
    copy = event("gpu_memcpy", name, "20.000", device=0, correlation=5, bytes=64, **queue)
    ops = load_kineto(write(tmp_path, document(copy))).ops
    found = ops.copy_kind[0], ops.source_memory[0], ops.target_memory[0]
    assert found == COPIES[name][1:]
    assert (ops.stream[0], ops.bytes[0]) == (65, 64)


def test_waits_of_intel_gpus_are_sync_rows(tmp_path: Path) -> None:
    wait = event("xpu_sync", "zeCommandListHostSynchronize", "20.000", "386.000", correlation=9)
    trace = load_kineto(write(tmp_path, document(wait, wait.replace("20.000", "900.000"))))
    assert (trace.syncs.end - trace.syncs.start).tolist() == [386_000, 386_000]
    assert not trace.warnings
