"""Processes, and what a killed nsys leaves in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvprobe.launch import proc


def test_descendants_at_any_depth() -> None:
    inner = "import subprocess; subprocess.run(['sleep', '30'])"
    with subprocess.Popen([sys.executable, "-c", inner]) as child:
        try:
            while len(found := proc.descendants(os.getpid())) < 2:
                pass
            assert child.pid in {process.pid for process in found}
            assert {process.parent for process in found} >= {os.getpid(), child.pid}
        finally:
            proc.kill([process.pid for process in proc.descendants(os.getpid())], 9)
    proc.kill([child.pid], 9)  # one that has ended is no error


def test_stale_locks_go_only_while_no_nsys_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "NSys-2022.4.2.1"
    lock.touch()
    (tmp_path / "other").touch()
    monkeypatch.setattr(proc, "is_of_nsys", lambda pid: pid == os.getpid())
    assert not proc.clear_stale_locks(tmp_path)
    monkeypatch.setattr(proc, "is_of_nsys", lambda _pid: False)
    assert proc.clear_stale_locks(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
