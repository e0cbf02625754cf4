"""Every file of the corpus with secrets planted in it: a copy holds none, and analyzes the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nvprobe.errors import NvprobeError
from nvprobe.sharing.copies import redact
from tests.conftest import CORPUS
from tests.unit.sharing.test_copies import (
    analysis,
    clean,
    numbers,
    plant_in_export,
    plant_in_trace,
)

pytestmark = pytest.mark.slow

EXPORTS = sorted([*CORPUS.glob("nsys/*/*.sqlite"), *CORPUS.glob("cases/*.sqlite")])
TRACES = sorted([*CORPUS.glob("kineto/*/*.json*"), *CORPUS.glob("cases/k*.json*")])
TRACES = [path for path in TRACES if not path.name.endswith(".expect.json")]
FOLDERS = sorted([*CORPUS.glob("runs/*/run.json"), *CORPUS.glob("*/*/rank*/run.json"),
                  *CORPUS.glob("pairs/*/run.json")])  # fmt: skip


def answer(path: Path) -> object:
    """The analysis in numbers, or None for what is not a capture."""
    try:
        return numbers(analysis(path))
    except NvprobeError:
        return None


@pytest.mark.parametrize("source", EXPORTS, ids=lambda path: path.stem)
def test_exports(source: Path, tmp_path: Path) -> None:
    given, copy = tmp_path / "given.sqlite", tmp_path / "copy.sqlite"
    shutil.copyfile(source, given)
    before = answer(given)
    if before is None:
        with pytest.raises(NvprobeError):
            redact(given, copy)
        assert not copy.exists()
        return
    plant_in_export(given)
    redact(given, copy)
    clean(copy)
    assert answer(copy) == before


@pytest.mark.parametrize("source", TRACES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_traces(source: Path, tmp_path: Path) -> None:
    given, copy = tmp_path / "given.json", tmp_path / "copy.json.gz"
    try:
        plant_in_trace(source, given)
    except (ValueError, OSError, EOFError, StopIteration, AttributeError, KeyError, TypeError):
        given = tmp_path / source.name  # damaged, or not a trace: as it is
        shutil.copyfile(source, given)
    before = answer(given)
    try:
        redact(given, copy)
    except NvprobeError:
        assert before is None
        assert not copy.exists()
        return
    clean(copy)
    assert answer(copy) == before


@pytest.mark.parametrize("source", FOLDERS, ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
def test_run_folders(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    redact(source.parent, copy)
    assert answer(copy) == answer(source.parent)
    assert "command" not in json.loads((copy / "run.json").read_text())
