"""Which processes use the GPU and were recorded: on real spawned and forked children.

There is no GPU here: a process "uses" it that has mapped the math library.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from nvprobe.launch.gpu_processes import GpuProcesses

STAND_IN = "libc"


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
    seen = GpuProcesses(os.getpid(), STAND_IN)
    seen.look()
    assert process.pid in seen.seen
    mine = [line for line in seen.lines({process.pid}) if f" {process.pid} " in line]
    assert [line.rpartition(": ")[2] for line in mine] == ["recorded"]
    (missing,) = [line for line in seen.lines(set()) if f" {process.pid} " in line]
    assert "NOT recorded" in missing
    assert ("forked" in missing) == (method == "fork")


def test_processes_that_use_no_gpu_are_not_listed() -> None:
    seen = GpuProcesses(os.getpid(), "libcuda-of-no-machine")
    seen.look()
    assert not seen.seen
