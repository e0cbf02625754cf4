"""Which processes use the GPU and were recorded: on real spawned and forked children.

There is no GPU here: a process "uses" it that has mapped the C library and opened a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from nvprobe.launch.finish import recorded_pids
from nvprobe.launch.gpu_processes import GpuProcesses

STAND_IN = "libc", ("pipe:", "socket:")


def _wait(parent: Connection) -> None:
    parent.send("ready")
    parent.recv()


@pytest.fixture(params=["spawn", "fork"])
def worker(request: pytest.FixtureRequest) -> Iterator[tuple[str, BaseProcess]]:
    context = multiprocessing.get_context(request.param)
    here, there = context.Pipe()
    process = context.Process(target=_wait, args=(there,))
    process.start()
    assert here.recv() == "ready"
    yield request.param, process
    here.send("end")
    process.join(60)
    resource_tracker._resource_tracker._stop()  # a child that other tests would count


def test_every_worker_is_listed_as_recorded_or_with_a_remedy(
    worker: tuple[str, BaseProcess],
) -> None:
    method, process = worker
    assert process.pid is not None
    seen = GpuProcesses(os.getpid(), *STAND_IN)
    seen.look()
    assert process.pid in seen.seen
    mine = [line for line in seen.lines({process.pid}) if f" {process.pid} " in line]
    assert [line.rpartition(": ")[2] for line in mine] == ["recorded"]
    (missing,) = [line for line in seen.lines(set()) if f" {process.pid} " in line]
    assert "NOT recorded" in missing
    assert ("forked" in missing) == (method == "fork")


def test_processes_that_use_no_gpu_are_not_listed() -> None:
    seen = GpuProcesses(os.getpid(), "libcuda-of-no-machine", STAND_IN[1])
    seen.look()
    assert not seen.seen


def test_a_process_that_only_maps_the_driver_uses_no_gpu(
    worker: tuple[str, BaseProcess],
) -> None:
    seen = GpuProcesses(os.getpid(), STAND_IN[0], ("/dev/nvidia-of-no-machine",))
    seen.look()
    assert not seen.seen


def test_nothing_is_called_missing_where_the_export_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvprobe.readers", None)  # as where its libraries are missing
    assert recorded_pids(tmp_path / "report.sqlite") is None
