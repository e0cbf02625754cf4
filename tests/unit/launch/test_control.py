"""A server that does not end by itself, or answers something else, with real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nvprobe.launch import control
from nvprobe.launch.options import Window

SERVER = """
import multiprocessing, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)      # and SIGTERM ends it before it ends its worker
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
worker.start()
print(worker.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("window", "before", "opens", "closes"),
    [
        (Window(3, 5, "requests"), "90 2 2", "91 2 3", "95 2 5"),
        (Window(3, 5), "2 9 9", "3 9 9", "5 9 9"),
        (Window(0, 8, at_least=4), "2 3 9", "3 4 9", "8 1 9"),
    ],
)
def test_what_processes_count_opens_and_closes_the_window(
    tmp_path: Path, window: Window, before: str, opens: str, closes: str
) -> None:
    one = control.Control(["true"], ["true"], window, tmp_path, tmp_path, os.environ, print)
    states = []
    (tmp_path / "progress.1").write_text("1 1 0")  # a worker that does less
    for progress in (before, opens, opens, closes):
        (tmp_path / "progress.2").write_text(progress)
        one.tick(0)
        states.append(one.state)
    assert states == ["waiting", "recording", "recording", "closed"]


def test_workers_end_with_a_server_that_only_sigterm_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "_GRACE_S", 1.0)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    one = control.Control(
        [], [], Window(), tmp_path, tmp_path, os.environ, print, ends_program=True
    )
    one.state = "closed"
    deadline = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < deadline:
        one.tick(server.pid)
        time.sleep(0.05)
    assert server.wait(1) == -15
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    server.stdout.close()
    assert not Path(f"/proc/{worker}").exists()


def test_a_server_that_answers_in_another_protocol_is_not_ready_yet(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-another\r\n")

        threading.Thread(target=answer, daemon=True).start()
        health = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        asks = control.Control(
            [], [], Window(), tmp_path, tmp_path, os.environ, print, client=["true"], health=health
        )
        asks.tick(os.getpid())
    assert asks.state == "waiting"


@pytest.mark.parametrize(
    ("code", "said"), [("exit(0)", None), ("exit(3)", "exit code 3"), ("kill(9)", "signal 9")]
)
def test_a_client_that_fails_says_how(tmp_path: Path, code: str, said: str | None):
    lines: list[str] = []
    program = f"import os; kill = lambda number: os.kill(os.getpid(), number); {code}"
    client = [sys.executable, "-c", program]
    one = control.Control(
        ["true"], ["true"], Window(), tmp_path, tmp_path, os.environ, lines.append, client=client
    )
    one.tick(0)
    assert one.client is not None
    one.client.wait()
    one.tick(0)
    assert one.state == "closed"
    ended = [line for line in lines if line.startswith("--client ")]
    assert ended == ([] if said is None else [f"--client {sys.executable} ended with {said}"])
