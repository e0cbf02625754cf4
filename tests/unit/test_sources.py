"""Paths and lines as they are shown to others."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from nvprobe.instrumentation import sources
from nvprobe.instrumentation.sources import short_path, source_line, user_stack


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    short_path.cache_clear()
    yield tmp_path
    short_path.cache_clear()


def test_paths_are_relative_to_the_working_folder_the_package_or_cut(project: Path):
    stdlib = Path(sysconfig.get_path("stdlib"))
    assert short_path(str(project / "pkg" / "train.py")) == "pkg/train.py"
    assert short_path("/opt/venv/lib/python3.11/site-packages/torch/nn/x.py") == "torch/nn/x.py"
    assert short_path("/usr/lib/python3/dist-packages/thing.py") == "thing.py"
    assert short_path(str(stdlib / "json" / "decoder.py")) == "json/decoder.py"
    assert short_path("/home/ann/secret/project/src/model.py") == "project/src/model.py"
    assert short_path("/a.py") == "a.py"
    assert short_path("<stdin>") == "<stdin>"
    assert short_path("train.py") == "train.py"
    assert short_path("../../ann/train.py") == "../ann/train.py"


def test_stacks_begin_at_the_users_innermost_line(project: Path):
    def inner() -> list[str]:
        return user_stack(sys._getframe(), 2)

    first, second = inner(), inner()
    assert len(first) == 2
    name, line = first[0].rsplit(":", 1)
    assert name.endswith("test_sources.py")
    assert int(line) == inner.__code__.co_firstlineno + 1
    assert first[1].endswith(f":{int(line) + 2}")
    assert second[0] == first[0]


def test_only_library_frames_still_give_a_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "is_library", lambda _path: True)
    assert user_stack(frame := sys._getframe(), 1) == [source_line(frame)]


def test_frames_of_wrappers_are_a_library():
    assert sources.is_library("/home/ann/train.py (as importlib._bootstrap)")
    assert not sources.is_library("/home/ann/train.py")
