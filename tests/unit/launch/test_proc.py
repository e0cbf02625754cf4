"""Processes, and what a killed nsys leaves in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from nvprobe.launch import proc
from nvprobe.launch.proc import Turn


def test_descendants_at_any_depth() -> None:
    inner = "import subprocess; subprocess.run(['sleep', '30'])"
    with subprocess.Popen([sys.executable, "-c", inner]) as child:
        try:
            while not proc.descendants(child.pid):
                pass
            found = proc.descendants(os.getpid())
            assert child.pid in {process.pid for process in found}
            assert {process.parent for process in found} >= {os.getpid(), child.pid}
        finally:
            proc.kill([child.pid, *(process.pid for process in proc.descendants(child.pid))], 9)
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


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_turns_come_one_after_another(scratch: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with Turn("test", 60):
            order.append("second")

    waiting = threading.Thread(target=second)
    with Turn("test", 60) as turn:
        waiting.start()
        order.append("first")
        turn.over()
        turn.over()  # again, at the latest when the block ends
        waiting.join()
        order.append("third")
    assert order == ["first", "second", "third"]
    assert [path.stat().st_mode & 0o777 for path in scratch.iterdir()] == [0o600]


def test_nobody_waits_for_ever_for_a_turn(scratch: Path) -> None:
    with Turn("test", 60), Turn("test", 0), Turn("other", 0):
        pass


def test_a_turn_that_cannot_be_taken_is_none_to_wait_for(scratch: Path) -> None:
    link = scratch / f"nvprobe-test-{os.geteuid()}.lock"
    link.symlink_to(scratch / "of somebody else")  # in a folder that all may write
    with Turn("test", 60):
        pass
    assert list(scratch.iterdir()) == [link]
    with Turn("no folder/of that name", 60):
        pass
