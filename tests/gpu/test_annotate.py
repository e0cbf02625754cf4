"""Instrumentation on a real GPU: lines of implicit synchronizations, copies, bits, cost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

ROOT = Path(__file__).resolve().parents[2]


def script() -> Any:
    """scripts/gpu/annotate_cost.py, as a module."""
    path = ROOT / "scripts" / "gpu" / "annotate_cost.py"
    spec = importlib.util.spec_from_file_location("annotate_cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code: str, folder: Path, **environment: str) -> str:
    """Run code in a child with this tree's nvprobe."""
    file = folder / "program.py"
    file.write_text(code)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(one) for file in folder.iterdir() for one in file.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_six_implicit_synchronisations_have_their_lines(tmp_path: Path):
    syncs = script().find_syncs(tmp_path)
    assert syncs["found"] == syncs["planted"]
    assert set(syncs["counts"].values()) == {4}


def test_cuda_is_not_initialised_and_warnings_stay(tmp_path: Path):
    code = """
import warnings
import nvprobe
nvprobe.instrument()
import torch
assert not torch.cuda.is_initialized()
x = torch.ones(4, device="cuda")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("error")
    x.sum().item()
assert caught == []
"""
    run(code, tmp_path, NVPROBE_SIDECAR=str(tmp_path / "side"))
    (sync,) = lines_of(tmp_path / "side", "sync")
    assert sync["source"] == "program.py:10"


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_weights_after_training_are_bit_identical(mode: str):
    (row,) = script().step_rows(
        ["--device", "cuda", "--models", "small", "--modes", mode, "--seconds", "0"]
    )
    assert row["same_bits"], row


def test_a_step_costs_little_more():
    (row,) = script().step_rows(["--device", "cuda", "--models", "large", "--modes", "eager"])
    _, low, _, _ = row["instrumented_step"]
    assert low < 1.02, row


def test_the_allocators_counters_are_read_between_steps(tmp_path: Path):
    """A tensor kept each step; a reading costs a small part of a millisecond."""
    code = """
import time
import nvprobe
nvprobe.instrument()
import torch
kept = []
for step in range(6):
    with nvprobe.step():
        kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
        time.sleep(0.5)  # more than the pause after the first reading, which is a cold one
counters = torch.cuda.memory_stats_as_nested_dict
begin = time.process_time_ns()
for _ in range(1000):
    counters(0)
print((time.process_time_ns() - begin) / 1000)
"""
    cost_ns = float(run(code, tmp_path, NVPROBE_SIDECAR=str(tmp_path / "side")))
    rows = [
        dict(zip(line["columns"], row, strict=True))
        for line in lines_of(tmp_path / "side", "allocator")
        for row in line["rows"]
    ]
    level = {row["steps"]: row["allocated"] for row in rows if row["steps"] >= 1}
    assert [level[step] for step in range(1, 7)] == [step * (8 << 20) for step in range(1, 7)]
    assert all(row["device_allocs"] >= 1 for row in rows if row["steps"])
    assert cost_ns < 500_000
