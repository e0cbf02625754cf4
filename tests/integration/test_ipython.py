"""``%%nvprobe`` in a real IPython shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("IPython")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CELLS = """
%load_ext nvprobe
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
get_ipython().run_cell_magic("nvprobe", "run", "kept = model(torch.ones(1, 2))")
print("paths", [path for path in run.ranges.index if "Sequential" in path][:1], tuple(kept.shape))
result = get_ipython().run_cell_magic("nvprobe", "", "raise ValueError('of the cell')")
print("result", result)
print("html", "<" in run._repr_html_())
"""


def test_a_cell_is_recorded_and_keeps_its_names(tmp_path: Path):
    script = tmp_path / "cells.ipy"
    script.write_text(CELLS)
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "Sequential" in done.stdout, done.stdout + done.stderr
    assert "(1, 2)" in done.stdout
    assert "of the cell" in done.stdout + done.stderr
    assert "result None" in done.stdout
    assert "html True" in done.stdout
