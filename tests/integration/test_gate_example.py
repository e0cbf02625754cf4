"""The example of a gate: on this machine's CPU, with the torch backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def test_the_gate_of_the_examples(tmp_path: Path) -> None:
    """However busy the machine: no change never fails, a step three times as long never passes."""
    pytest.importorskip("torch")
    environment = {**os.environ, "NVPROBE": f"{sys.executable} -m nvprobe", "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        gate = [str(ROOT / "examples" / "gate" / "gate"), str(tmp_path), *words]
        (tmp_path / "summary.md").unlink(missing_ok=True)
        return subprocess.run(
            gate, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    same = run()
    assert same.returncode in (0, 4), same.stdout[-3000:] + same.stderr[-2000:]
    slow = run("--slow")
    assert slow.returncode in (3, 4), slow.stdout[-3000:] + slow.stderr[-2000:]
    summary = (tmp_path / "summary.md").read_text()
    assert len(summary.splitlines()) <= 25
    assert "step" in summary
