"""How it is told whether nsys still works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvprobe.launch.process import _bytes_below


def test_folders_that_nsys_removes_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It clears its temporary folder while it ends, which is when it is watched."""
    scan = os.scandir
    for name in ("gone", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report").write_bytes(b"x" * 100)

    def removed(path: str | os.PathLike[str] = ".") -> object:
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert _bytes_below(tmp_path) == 100
