"""Inference loops captured on an H200 with a planted cause each, and what their fixes saved.

Programs and times: scripts/gpu/inference_captures.py. Seven to thirteen steps each.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.attribution.engines import StepPhase
from nvprobe.merging.load import load
from tests.conftest import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "inference_h200.tar.xz"
SAVED = {
    "read_back": ("implicit_sync", 5.8),
    "host": ("host_work", 64.9),
    "beyond": ("graph_missed", 74.6),
}
"""First finding, and percent of the step that the program without the plant saved."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inference")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("plant", SAVED)
def test_the_planted_cause_is_first_and_its_fix_within_the_bounds(plant: str, runs: Path) -> None:
    first = found(runs / plant).findings[0]
    expected, saved = SAVED[plant]
    assert first.id == expected
    assert first.step_saving is not None
    assert first.step_saving.low <= saved <= first.step_saving.high


def test_a_prefill_between_tokens_is_first(runs: Path) -> None:
    assert found(runs / "prefill").findings[0].id == "prefill_stall"


@pytest.mark.parametrize("plant", ["read_back", "host", "prefill"])
def test_steps_phases_and_replays_by_module(plant: str, runs: Path) -> None:
    analysis = found(runs / plant)
    steps = analysis.steps.take(analysis.steps.ops > 0)
    phases = Counter(StepPhase(one).name for one in steps.phase.tolist())
    decode = {"DECODE": 11, "MIXED": 2} if plant == "prefill" else {"DECODE": 7}
    assert phases == decode
    replayed = analysis.attribution.trace.ops.graph_node != 0
    modules = Counter(analysis.attribution.paths.text(int(one)).split("/")[-1]
                      for one in analysis.attribution.owner[replayed].tolist())  # fmt: skip
    assert modules["head"] >= len(steps)
    assert modules["blocks.11.mlp.2"] == 2 * len(steps)  # a product in parts, and their sum


def test_generate_with_a_static_cache_replays_modules_of_its_compiled_graph(runs: Path) -> None:
    """Captured before the window, without any range inside: the manifest names the modules."""
    analysis = found(runs / "generate-fixed")
    replayed = int((analysis.attribution.trace.ops.graph_node != 0).sum())
    assert analysis.module_ledger["manifest"]["ops"] == replayed == 620
    by_module = {one["module"]: one["ops"] for one in analysis.modules}
    for layer in range(4):
        assert by_module[f"model.layers.{layer}.mlp.down_proj"] == len(analysis.steps) == 10
    assert "ranges inside CUDA graphs" not in {one.what for one in analysis.missing}
    assert "cache_implementation" not in " ".join(analysis.findings[0].advice)


def found(folder: Path) -> Analysis:
    """All of a capture, steady or not."""
    return analyze(attribute(load(folder)))
