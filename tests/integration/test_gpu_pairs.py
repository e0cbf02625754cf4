"""Files of pairs list their programs to the script that measures them, and fixes change nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.nvtx_recorder.with_torch import TorchPython

pytest.importorskip("torch")


PROGRAMS = [
    ("judge_programs", 20),
    ("fourth_judge_programs", 12),
    ("fifth_judge_programs", 12),
    ("pair_programs", 30),
    ("third_judge_programs", 12),
]


@pytest.mark.parametrize(("programs", "least"), PROGRAMS)
def test_all_programs_are_listed(
    programs: str, least: int, torch_python: TorchPython, tmp_path: Path
) -> None:
    listed = f"""
import pairs
print(len(pairs.all_of({programs!r}, False)))
"""
    assert int(said(listed, torch_python, tmp_path)) >= least


@pytest.mark.slow
def test_steps_come_to_the_same_with_each_change(torch_python: TorchPython, tmp_path: Path) -> None:
    compared = """
import torch, pair_runner, third_judge_programs
for name, program in pair_runner.PROGRAMS.items():
    if program.changes == ("none",):
        continue
    results = []
    for change in ("", *program.changes):
        step = pair_runner.made(name, change)
        torch.manual_seed(1)
        results.append([step().clone() for _ in range(3)])
    for result in results[1:]:
        torch.testing.assert_close(
            results[0], result, rtol=1e-3, atol=1e-3, msg=lambda text: f"{name}: {text}"
        )
    print(name)
"""
    assert len(said(compared, torch_python, tmp_path).split()) == 10


def said(code: str, torch_python: TorchPython, tmp_path: Path) -> str:
    """What code prints that runs in the folder of these files."""
    script = tmp_path / "code.py"
    script.write_text(f"""
import os, sys
os.chdir({str(ROOT / "scripts" / "gpu")!r})
sys.path[0] = os.getcwd()
sys.path.append({str(ROOT)!r})
{code}""")
    done = torch_python.run(script, (), os.environ, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
