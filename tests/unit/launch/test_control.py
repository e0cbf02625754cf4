"""Ending a server that does not end by itself, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvprobe.launch import control
from nvprobe.launch.options import Window

SERVER = """
import multiprocessing, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)      # and SIGTERM ends it before it ends its worker
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
worker.start()
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_workers_end_with_a_server_that_only_sigterm_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "_GRACE_S", 0.2)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    one = control.Control(
        [], [], Window(), tmp_path, tmp_path, os.environ, print, ends_program=True
    )
    one.state = "closed"
    deadline = time.monotonic() + 20
    while server.poll() is None and time.monotonic() < deadline:
        one.tick(server.pid)
        time.sleep(0.05)
    assert server.wait(1) == -15
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    server.stdout.close()
    assert not Path(f"/proc/{worker}").exists()
