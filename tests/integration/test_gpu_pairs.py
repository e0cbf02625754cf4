"""Both files of pairs list their programs to the script that measures them on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.nvtx_recorder.with_torch import TorchPython

pytest.importorskip("torch")


@pytest.mark.parametrize(("programs", "least"), [("judge_programs", 20), ("pair_programs", 30)])
def test_all_programs_are_listed(
    programs: str, least: int, torch_python: TorchPython, tmp_path: Path
) -> None:
    script = tmp_path / "listed.py"
    script.write_text(f"""
import os, sys
os.chdir({str(ROOT / "scripts" / "gpu")!r})
sys.path[0] = os.getcwd()
import pairs
print(len(pairs.all_of({programs!r}, False)))
""")
    done = torch_python.run(script, (), os.environ, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least
