"""What all tests share: where the corpus is, and how a test says that it needs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.nvtx_recorder import Recorder, build
from tests.nvtx_recorder.with_torch import TorchPython

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("NVPROBE_SHARED", ROOT.parent / "shared"))
CORPUS = SHARED / "corpus"

# The same examples in every run, so that a change is judged and not the dice: all in CI, the first
# quarter in scripts/check without --all; `pytest --hypothesis-profile=explore` looks for new ones.
# How long it takes to make one says how busy the machine is.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=25)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("steady")


def examples(number: int, **options: Any) -> settings:
    """Settings of a property test: ``number`` examples where the profile has 100, else in ratio."""
    share = settings.get_profile(settings.get_current_profile_name()).max_examples / 100
    return settings(max_examples=max(1, round(number * share)), **options)


def mostly_slow(captures: Iterable[Path], *quick: str) -> list[Any]:
    """Captures to parametrize with: those whose stems are ``quick``, and slow ones."""
    return [
        path if path.stem in quick else pytest.param(path, marks=pytest.mark.slow)
        for path in captures
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist a file stays on one worker, and everything that starts nsys on one, too.

    Two nsys 2022.4 that begin at one moment can fail to find each other's agents.
    """
    for item in items:
        launches = item.path.parent.name == "launch" or item.get_closest_marker("nsys")
        item.add_marker(pytest.mark.xdist_group("nsys" if launches else str(item.path)))


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


@pytest.fixture(scope="session")
def torch_python() -> Iterator[TorchPython]:
    """Runs scripts in forks of a process that has imported torch."""
    pytest.importorskip("torch")
    python = TorchPython()
    yield python
    python.stop()


@pytest.fixture
def torch_recorder(nvtx_library: Path, torch_python: TorchPython, tmp_path: Path) -> Recorder:
    """As `recorder`, for programs that import torch and need nothing of a process's start."""
    return Recorder(nvtx_library, tmp_path, torch_python)
