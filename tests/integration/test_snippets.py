"""The Python of README and docs runs as a reader pastes it, on the demo and a small model."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import nvprobe
from nvprobe.demo import unpacked
from tests.conftest import ROOT
from tests.nvtx_recorder.with_torch import TorchPython

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
BEFORE = """
import warnings
warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
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
def test_a_snippet_runs(block: str, folder: Path, torch_python: TorchPython) -> None:
    for name in re.findall(r"^from (lightning|transformers)\b", block, re.MULTILINE):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    script = folder / "snippet.py"
    script.write_text(BEFORE + block)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
    done = torch_python.run(script, (), environment, timeout=240)
    assert done.returncode == 0, done.stderr


def test_there_are_snippets() -> None:
    assert len(BLOCKS) >= 5
