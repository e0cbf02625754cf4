"""Findings, traits, counters and memory in the JSON and on the terminal."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers.memory_snapshot import load_memory_snapshot
from nvprobe.report.console.advice import first_findings, memory_peak
from nvprobe.report.console.view import View
from nvprobe.report.document import to_dict
from nvprobe.trace import MemoryEvents
from tests.unit.analysis.scenes import ALL_REDUCE, BF16_GEMM, Scene, analysis_of, loop


def body(scene: Scene) -> None:
    scene.inside("data", lambda: scene.host(3_000_000))
    scene.launch(BF16_GEMM, 300_000)
    scene.launch(ALL_REDUCE, 100_000)


def shown(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=False).print(renderable)
    return out.getvalue()


def test_findings_in_json_are_those_of_the_schema() -> None:
    found = to_dict(analysis_of(loop(body)))["findings"]
    assert json.loads(json.dumps(found)) == found
    assert set(found[0]) == {
        "id", "title", "severity", "path", "sources", "source_roles", "evidence", "saves_ns",
        "step_saving", "try",
    }  # fmt: skip
    assert (found[0]["id"], found[0]["path"]) == ("input_wait", "step/data")


def test_kernels_tell_class_family_and_fit() -> None:
    rows = {row["name"]: row for row in to_dict(analysis_of(loop(body)))["kernels"]}
    gemm, reduce = rows[BF16_GEMM], rows[ALL_REDUCE]
    assert (gemm["class"], gemm["family"]) == ("compute", "gemm")
    assert (gemm["precision"], gemm["tensor_cores"]) == ("bf16", True)
    assert (gemm["occupancy"], gemm["waves"], gemm["limiter"]) == (1.0, 1.0, "warps")
    assert (reduce["class"], reduce["precision"]) == ("communication", None)


def test_what_was_not_recorded_is_null() -> None:
    found = to_dict(analysis_of(loop(body)))
    assert found["memory"] is None
    assert found["counters"] is None
    assert {row["work"] for row in found["ranges"]} == {None}


def test_memory_is_told_by_device_step_and_path() -> None:
    scene = loop(body)
    zero = np.zeros(1, np.int64)
    events = MemoryEvents(zero, zero, zero + 2000, zero, zero, zero + 64, zero + 64, zero - 1)
    memory = to_dict(analysis_of(scene, memory=events))["memory"]
    assert memory["from_zero"] is True
    assert memory["devices"][0]["peak_bytes"] == 64
    assert memory["devices"][0]["peak_reserved_bytes"] is None
    assert memory["steps"][0]["growth_bytes"] == 64
    assert {row["path"] for row in memory["paths"]} == {"step", "step/data"}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    frames = [{"filename": "/home/ann/\x1b[31mmodel.py", "line": 31, "name": "forward"}]
    events = [
        {"action": action, "addr": 5, "size": 2 << 30, "frames": frames, "time_us": 1}
        for action in ("alloc", "free_completed")
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    return path


def test_a_snapshot_stands_beside_the_capture(snapshot: Path) -> None:
    attribution = attribute(loop(body).trace())
    analysis = analyze(attribution, load_memory_snapshot(snapshot))
    told = to_dict(analysis)["memory"]["snapshot"]
    assert told["file"] == "snapshot.pickle"
    (device,) = told["devices"]
    assert device["peak_bytes"] == device["holders"][0]["passing_bytes"] == 2 << 30
    text = shown(memory_peak(analysis, View(), 100))
    assert "model.py:31 forward  (passing: activation checkpointing would free it)" in text
    assert "\x1b" not in text


def test_the_terminal_shows_what_is_saved_and_what_to_try() -> None:
    text = shown(first_findings(analysis_of(loop(body)), View(), 100))
    assert "1. The GPU waits for data in step/data" in text
    assert "saves about " in text
    assert "→ DataLoader(num_workers" in text
