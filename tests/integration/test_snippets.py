"""The Python of README and docs runs as a reader pastes it, on the demo and a small model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import nvprobe
from nvprobe.demo import unpacked
from tests.conftest import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
BEFORE = """
import pandas
import torch

import nvprobe

model, loader, i = torch.nn.Linear(2, 2), [1, 2], 3
"""
"""What the pages take for granted."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report and its tables, under the names that the pages use."""
    folder = tmp_path_factory.mktemp("snippets")
    with unpacked() as path:
        shutil.copyfile(path, folder / "report.sqlite")
    nvprobe.analyze(folder / "report.sqlite").to_parquet(folder / "run.tables")
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_a_snippet_runs(block: str, folder: Path) -> None:
    for name in re.findall(r"^from (lightning|transformers)\b", block, re.MULTILINE):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", BEFORE + block],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_there_are_snippets() -> None:
    assert len(BLOCKS) >= 5
