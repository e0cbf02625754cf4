"""Captures of the examples on an H200: the first finding is what was planted, and its bound holds.

The archive and the times beside it come from scripts/gpu/examples_capture.py.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import nvprobe
from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.merging.load import load
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
ARCHIVE, TIMES = FIXTURES / "examples.tar.xz", FIXTURES / "examples.json"
PLANTED = {
    "01_sync_in_the_loop": "implicit_sync",
    "02_slow_dataloader": "input_wait",
    "03_pageable_copies": "pageable_copy",
    "04_tiny_kernels": "launch_bound",
    "05_exposed_copy": "exposed_copy",
    "06_graph_break": "graph_break",
    "07_recompile_storm": "recompile",
    "08_cudamalloc_churn": "allocator",
    "09_fp32_gemm": "fp32_gemm",
    "10_unfused_attention": "unfused_attention",
    "12_decode_loop": "launch_bound",
}

pytestmark = pytest.mark.skipif(
    not ARCHIVE.is_file(), reason="no captures of the examples: scripts/gpu/examples_capture.py"
)


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    folder = tmp_path_factory.mktemp("examples")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return {path.stem: analyze(attribute(load(*_inputs(path)))) for path in folder.glob("*.sqlite")}


def _inputs(capture: Path) -> list[Path]:
    sidecar = capture.with_suffix(".sidecar.jsonl")
    return [capture, sidecar] if sidecar.exists() else [capture]


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(TIMES.read_text())["rows"]
    return rows


@pytest.mark.parametrize(("example", "planted"), PLANTED.items())
def test_the_first_finding_is_what_was_planted(
    analyses: dict[str, Analysis], example: str, planted: str
) -> None:
    found = analyses[example].findings or ()
    assert [one.id for one in found][:1] == [planted]


def test_the_healthy_one_has_no_finding(analyses: dict[str, Analysis]) -> None:
    analysis = analyses["11_healthy"]
    assert analysis.findings == ()
    assert analysis.verdict.startswith("GPU-bound, nothing found to gain")


@pytest.mark.parametrize("example", ["01_sync_in_the_loop", "03_pageable_copies", "06_graph_break"])
def test_the_planted_line_is_named(analyses: dict[str, Analysis], example: str) -> None:
    first = (analyses[example].findings or ())[0]
    script = (ROOT / "examples" / f"{example}.py").read_text().splitlines()
    line = next(n for n, text in enumerate(script, 1) if "# planted" in text)
    assert any(f"{example}.py:{line}" in source for source in first.sources)


def test_a_copy_is_held_at_a_line(analyses: dict[str, Analysis]) -> None:
    [found] = analyses["03_pageable_copies"].findings or ()
    line = "examples/03_pageable_copies.py:22"
    assert found.title == f"Copies from pageable memory at {line} hold the host"


@pytest.mark.parametrize("example", PLANTED)
def test_the_measured_gain_lies_within_the_bound(
    analyses: dict[str, Analysis], example: str
) -> None:
    """In percent of the step: milliseconds depend on how the profiler's cost is estimated."""
    rows = {(row["example"], row["fixed"]): row for row in _rows()}
    before, after = rows[example, False], rows[example, True]
    saving = (analyses[example].findings or ())[0].step_saving
    assert saving is not None
    assert saving.low <= 100 * (1 - after["step_ms"] / before["step_ms"]) <= saving.high


def test_the_tutorial_is_of_its_program(tmp_path: Path) -> None:
    """The captures name lines of the file as it is; after the change another cause is first."""
    with tarfile.open(FIXTURES / "tutorial.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    before, after = (nvprobe.analyze(tmp_path / name).analysis for name in ("before", "after"))
    first = (before.findings or ())[0]
    program = (ROOT / "examples" / "tutorial" / "train.py").read_text().splitlines()
    lines = [int(source.rpartition(":")[2]) for source in first.sources]
    assert first.id == "input_wait"
    assert [program[line - 1].split()[0] for line in lines] == ["def", "for"]
    assert "def __getitem__" in program[lines[0] - 1]
    assert after.verdict.startswith("bound by copies")
    runs = [str(tmp_path / name) for name in ("before", "after")]
    held = CliRunner().invoke(cli, ["verify", *runs, "--json"], obj=Settings())
    assert first.step_saving is not None
    found = json.loads(held.output)
    assert (found["schema"], found["low"]) == ("nvprobe.verify/1", first.step_saving.low)
