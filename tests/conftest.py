"""What all tests share: where the corpus is, and how a test says that it needs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder, build

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("NVPROBE_SHARED", ROOT.parent / "shared"))
CORPUS = SHARED / "corpus"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real captures; the test is skipped where it is absent."""
    if not CORPUS.is_dir():
        pytest.skip(f"no corpus at {CORPUS} (set NVPROBE_SHARED)")
    return CORPUS


@pytest.fixture(scope="session")
def nvtx_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled NVTX recorder."""
    return build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recorder(nvtx_library: Path, tmp_path: Path) -> Recorder:
    """Runs code in a child process under a real NVTX tool: see tests/nvtx_recorder."""
    return Recorder(nvtx_library, tmp_path)
