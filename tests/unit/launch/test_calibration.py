"""What a record costs on this machine: differences of loops, kept for later launches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvprobe.cli import main
from nvprobe.errors import ToolError
from nvprobe.launch import calibration
from nvprobe.nsys import Nsys

ALONE = {
    "operator": 2_000.0,
    "range": 100.0,
    "call": 300.0,
    "launch": 7_000.0,
    "item": 11_000.0,
    "module": 800.0,
    "graph_node": 890.0,
    "instrumented_module": 900.0,
    "instrumented_item": 11_500.0,
}
SLOWER = {name: 2 * value for name, value in ALONE.items()}
BY_NODE = SLOWER | {"graph_node": 2_290.0, "call": 9e9}
READY = ALONE | {"graph_node": 960.0, "call": 9e9}
NSYS = Nsys(Path("/x/nsys"), (2025, 3), "2025.3", {})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A machine with a GPU whose loops take what is written above; the runs that were made."""
    runs: list[str] = []
    loops = {"alone": ALONE, "torch": SLOWER, "whole": SLOWER, "nodes": BY_NODE, "ready": READY}

    def run(_folder: Path, name: str, _command: object, *_words: str, **_named: str) -> object:
        runs.append(name)
        return loops[name]

    monkeypatch.setenv("NVPROBE_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "cuda_present", lambda: True)
    monkeypatch.setattr(calibration, "_run", run)
    return runs


def test_the_cost_of_a_record_is_a_difference_of_loops() -> None:
    assert calibration.costs(ALONE, SLOWER, BY_NODE, READY) == {
        "call_ns": 300.0,
        "launch_ns": 5_000.0,  # the operator that launches is torch's record, not the launch's
        "range_ns": 100.0,
        "module_ns": 1_000.0,
        "mark_ns": 1_000.0,
        "graph_node_ns": 1_400.0,
        "operator_ns": 2_000.0,
        "ready_node_ns": 70.0,
    }
    assert set(calibration.costs(SLOWER, ALONE, ALONE).values()) == {0.0, 500.0}, "none below 0"


def test_what_was_measured_goes_into_the_runs_of_this_machine(measured: list[str]) -> None:
    assert calibration.for_run(NSYS, "nsys") is None
    calibration.measure(NSYS)
    assert sorted(measured) == ["alone", "nodes", "ready", "torch", "whole"]
    section = calibration.for_run(NSYS, "nsys")
    assert section is not None
    assert (section["call_ns"], section["machine"]["nsys"]) == (300.0, "2025.3")
    assert calibration.for_run(NSYS, "torch") is not None
    another = Nsys(NSYS.path, (2026, 1), "2026.1", {})
    assert calibration.for_run(another, "nsys") is None, "another nsys costs something else"


def test_without_nsys_only_torch_is_measured(measured: list[str]) -> None:
    assert "nsys" not in calibration.measure(None)
    assert sorted(measured) == ["alone", "torch"]


def test_a_kept_file_that_is_damaged_is_as_good_as_none(
    measured: list[str], tmp_path: Path
) -> None:
    calibration.measure(None)
    (file,) = tmp_path.rglob("*.json")
    file.write_text("[", "utf-8")
    assert calibration.for_run(None, "torch") is None


def test_a_machine_without_a_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "cuda_present", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--measure"])
    assert ended.value.code == 1
    assert "nothing to measure" in capsys.readouterr().err


def test_loops_that_fail_say_what_they_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "cuda_present", lambda: True)
    monkeypatch.setattr(calibration, "_LOOPS", [sys.executable, "-c", "raise ValueError('no')"])
    with pytest.raises(ToolError, match=r"the loops failed \(alone\): ValueError: no"):
        calibration.measure(None)


def test_the_loops_run_on_a_processor_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = tmp_path / "loops.json"
    subprocess.run([*calibration._LOOPS, str(result)], check=True, timeout=240)
    found = json.loads(result.read_text("utf-8"))
    assert set(found) >= {"operator", "range", "module", "instrumented_module"}
    assert all(value > 0 for value in found.values())
