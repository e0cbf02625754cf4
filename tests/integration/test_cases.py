"""Every case of the corpus, run as its sidecar says and judged by the corpus's own check.

A case that waits for a later part of nvprobe stands in ``WAITING`` with the field it waits for:
a strict xfail, so that it is noticed when it passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CORPUS, ROOT

pytestmark = pytest.mark.slow

CASES = CORPUS / "cases"

WAITING = {}


def sidecars() -> list[object]:
    """One parameter a case; a single skipped one where the corpus is absent."""
    paths = sorted(CASES.glob("*.expect.json"))
    if not paths:
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no corpus at {CORPUS}"))]
    out = []
    for path in paths:
        name = path.name.removesuffix(".expect.json")
        marks = []
        if name in WAITING:
            marks = [pytest.mark.xfail(strict=True, reason=f"waits for {WAITING[name]}")]
        out.append(pytest.param(path, id=name, marks=marks))
    return out


@pytest.mark.parametrize("sidecar", sidecars())
def test_case(sidecar: Path, tmp_path: Path) -> None:
    case = json.loads(sidecar.read_text())
    done = run(case["run"], tmp_path)
    (tmp_path / "answer.txt").write_text(done.stdout + done.stderr)
    judge = [sys.executable, str(CASES / "check.py"), str(sidecar)]
    if done.returncode == 0 and done.stdout.lstrip().startswith("{"):
        (tmp_path / "answer.json").write_text(done.stdout)
        judge.append(str(tmp_path / "answer.json"))
    judge += ["--text", str(tmp_path / "answer.txt"), "--exit", str(done.returncode)]
    verdict = subprocess.run(judge, capture_output=True, text=True, check=False)
    failed = [line for line in verdict.stdout.splitlines() if not line.startswith("ok")]
    assert verdict.returncode == 0, "\n".join([*failed, verdict.stderr, done.stderr[-500:]])
    leaks(case, tmp_path)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A case's command line, with its inputs linked into an empty folder."""
    for path in CASES.iterdir():
        if not path.name.endswith((".expect.json", ".py")):
            (folder / path.name).symlink_to(path)
    line = line.replace("nvprobe ", f"{sys.executable} -m nvprobe ")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def leaks(case: dict[str, object], folder: Path) -> None:
    """Nothing that must be absent stands in any byte of what was written."""
    forbidden = case.get("bytes_absent", [])
    for path in folder.iterdir():
        if not path.is_symlink() and path.is_file():
            content = path.read_bytes()
            found = [text for text in forbidden if text.encode() in content]
            assert not found, f"{path.name} holds {found}"
