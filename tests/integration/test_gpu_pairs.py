"""Both files of pairs list their programs to the script that measures them on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")


@pytest.mark.parametrize(("programs", "least"), [("judge_programs", 20), ("pair_programs", 30)])
def test_all_programs_are_listed(programs: str, least: int) -> None:
    code = f"import pairs; print(len(pairs.all_of({programs!r}, False)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts" / "gpu", check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert int(done.stdout) >= least
