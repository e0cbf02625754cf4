"""The pytest plugin in processes of its own, with real torch on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
import torch

@torch.compile(backend="eager")
def whole(x):
    return x + 1

@torch.compile(backend="eager")
def broken(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2

@pytest.mark.nvprobe(max_graph_breaks=0, max_recompilations=0)
def test_whole():
    whole(torch.ones(2))

@pytest.mark.nvprobe(max_graph_breaks=0)
def test_broken():
    broken(torch.ones(2))

@pytest.mark.nvprobe(max_recompilations=0)
def test_compiled_again():
    torch._dynamo.reset()
    for size in (2, 3):
        whole(torch.ones(size))

@pytest.mark.nvprobe(max_operators=2, max_syncs=0)
def test_operators():
    torch.ones(2).add_(1).mul_(2)

@pytest.mark.nvprobe(max_syncs=0)
def test_on_a_gpu():
    torch.ones(2).sum().item()

@pytest.mark.nvprobe(max_graph_breaks=0)
def test_raises():
    raise ValueError("the test's own")

@pytest.mark.nvprobe(max_sync=0)
def test_unknown_limit():
    pass

def test_fixture(nvprobe_record):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with nvprobe_record() as recording:
        model(torch.ones(1, 2))
    assert recording.operators >= 2
    assert "Sequential" in " ".join(recording.results.ranges.index)

def test_unmarked():
    torch.ones(2)
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    installed = any(one.name == "nvprobe" for one in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "nvprobe.integrations.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *plugin, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_marked_tests_are_held_against_their_limits(tmp_path: Path, options: tuple[str, ...]):
    shown = run(tmp_path, *options)
    outcomes = {
        line.split("::")[1].split()[0]: line.split()[0]
        for line in shown.splitlines()
        if line.startswith(("PASSED", "FAILED", "SKIPPED test")) and "::" in line
    }
    failed = {"test_broken", "test_compiled_again", "test_operators", "test_raises"}
    passed = {"test_whole", "test_fixture", "test_unmarked"}
    assert {name for name, how in outcomes.items() if how == "PASSED"} == passed, shown
    assert {name for name, how in outcomes.items() if how == "FAILED"} >= failed, shown
    assert "1 graph breaks (at most 0)" in shown
    (at,) = [i for i, line in enumerate(TESTS.splitlines(), 1) if "graph_break()" in line]
    assert f"test_it.py:{at}: Call to" in shown
    assert "recompilations (at most 0)" in shown
    assert "size mismatch" in shown  # the guard that did not hold
    assert "3 operators (at most 2)" in shown
    assert "max_syncs: not checked, there is no GPU" in shown
    assert "max_sync=0; give numbers for max_graph_breaks" in shown
    assert "1 skipped" in shown


def test_nothing_is_imported_for_tests_that_ask_for_nothing(tmp_path: Path):
    code = (
        "import sys; import nvprobe.integrations.pytest_plugin; "
        "print([name for name in ('torch', 'pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[]", done.stderr
