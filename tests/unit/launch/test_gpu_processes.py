"""Which processes use the GPU and were recorded: on real spawned and forked children.

There is no GPU here: a process "uses" it that has mapped the C library and opened a file. What a
worker inherits when it is forked is not its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from nvprobe.launch.finish import recorded_pids
from nvprobe.launch.gpu_processes import GpuProcesses

MAPPED = "libc"


def _wait(parent: Connection, device: str) -> None:
    with open(device) if device else contextlib.nullcontext():  # noqa: PTH123
        parent.send("ready")
        parent.recv()


@contextlib.contextmanager
def started(method: str, device: str) -> Iterator[int]:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=_wait, args=(there, device), daemon=True)
    process.start()
    assert here.recv() == "ready"
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        here.send("end")
        process.join(60)
        resource_tracker._resource_tracker._stop()  # a child that other tests would count


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "device0"
    path.touch()
    return str(path)


def looked(mapped: str, device: str) -> GpuProcesses:
    seen = GpuProcesses(os.getpid(), mapped, (device,))
    seen.look()
    return seen


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_every_worker_is_listed_as_recorded_or_with_a_remedy(method: str, device: str) -> None:
    with started(method, device) as pid:
        seen = looked(MAPPED, device)
        assert pid in seen.seen
        mine = [line for line in seen.lines({pid}) if f" {pid} " in line]
        assert [line.rpartition(": ")[2] for line in mine] == ["recorded"]
        (missing,) = [line for line in seen.lines(set()) if f" {pid} " in line]
        assert "NOT recorded" in missing
        assert ("forked" in missing) == (method == "fork")


def test_processes_that_use_no_gpu_are_not_listed(device: str) -> None:
    with started("fork", device):
        assert not looked("libcuda-of-no-machine", device).seen


def test_a_process_that_only_maps_the_driver_uses_no_gpu(device: str) -> None:
    with started("fork", ""):
        assert not looked(MAPPED, device).seen


def test_compile_workers_are_not_listed(tmp_path: Path, device: str) -> None:
    """They open the GPU to ask what it is, and would be missing from every capture."""
    program = tmp_path / "compile_worker" / "__main__.py"
    program.parent.mkdir()
    program.write_text("import sys; file = open(sys.argv[1]); print(1, flush=True); input()")
    command = [sys.executable, str(program), device]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid not in looked(MAPPED, device).seen
        process.kill()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_a_forked_worker_inherits_is_not_its_own(method: str, device: str) -> None:
    """Workers of a DataLoader, say: their parent has the GPU open."""
    with open(device), started(method, "") as pid:  # noqa: PTH123
        assert pid not in looked(MAPPED, device).seen


def test_nothing_is_called_missing_where_the_export_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvprobe.readers", None)  # as where its libraries are missing
    assert recorded_pids(tmp_path / "report.sqlite") is None
