"""Servers with workers, under the real nsys: windows from outside, clients, triggers, ends.

The servers are stand-ins, scripts named like an engine with the process tree of one: a front that
answers ``/health`` and never ends by itself, and workers that it spawns or forks, each with steps.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.launch.conftest import PATIENCE_S, Launcher, left_after_a_while

pytestmark = [pytest.mark.nsys, pytest.mark.slow]
pytest.importorskip("torch")

SERVER = """
import itertools, multiprocessing, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

def work(rank, ready):
    import torch, nvprobe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as engines do: the front ends them
    net = torch.nn.Linear(2, 2)
    for step in itertools.count():
        with nvprobe.step(), nvprobe.range(f"{'early ' if step < 10 else ''}of rank {rank}"):
            time.sleep(0.05)
        if step == 10:
            ready.set()

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if all(one.is_set() for one in events) else 503)
        self.end_headers()
    def log_message(self, *_):
        pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    events = [context.Event() for _ in range(2)]
    workers = [context.Process(target=work, args=(rank, events[rank]), daemon=True)
               for rank in range(2)]
    for one in workers:
        one.start()
    server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health)
    print("serving", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        for one in workers:
            one.kill()  # engines kill theirs
        print("ended", flush=True)
        sys.exit(3)
"""


def engine(launch: Launcher) -> Path:
    """The stand-in, as an executable named ``vllm``."""
    script = launch.folder / "vllm"
    script.write_text(f"#!{sys.executable}\n{SERVER}")
    script.chmod(0o755)
    return script


def ranges(folder: Path) -> dict[str, int]:
    """Ranges of the report in a run folder, by name and how often."""
    with closing(sqlite3.connect(folder / "report.sqlite")) as data:
        rows = data.execute(
            "SELECT COALESCE(text, value), COUNT(*) FROM NVTX_EVENTS "
            "LEFT JOIN StringIds ON textId = id WHERE eventType = 59 GROUP BY 1"
        ).fetchall()
    return dict(rows)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_client_is_recorded_with_all_workers_and_the_server_ends(
    launch: Launcher, method: str, port: int
) -> None:
    client = f"{sys.executable} -c 'import time; time.sleep(3); print(\"asked\")'"
    result = launch(
        "--client", client, "--no-analyze", str(engine(launch)), "serve", method,
        "--port", str(port),
    )  # fmt: skip
    assert result.code == 0, "the end was asked for, whatever the server makes of it"
    assert {"asked", "serving", "ended"} <= set(result.out.split())
    found = ranges(result.folder)
    for rank in range(2):
        assert found.get(f"of rank {rank}", 0) > 5, "of the 60 steps in three seconds"
    assert "VLLM_WORKER_MULTIPROC_METHOD=spawn" in result.err
    assert left_after_a_while(launch.environ["LAUNCH_TEST_MARK"]) == []


def test_steps_of_workers_open_and_close_the_window(launch: Launcher, port: int) -> None:
    result = launch(
        "--steps", "40:160", "--no-analyze", str(engine(launch)), "serve", "spawn",
        "--port", str(port),
    )  # fmt: skip
    assert result.code == 0, "the window closed, after which the server was ended"
    found = ranges(result.folder)
    assert found.get("of rank 0", 0) + found.get("of rank 1", 0) > 10, "of 120 in six seconds"
    assert not {"early of rank 0", "early of rank 1"} <= found.keys(), "steps before the window"
    assert "steps 40:160" in result.run["window"]


def test_a_window_of_time_ends_the_server(launch: Launcher, port: int) -> None:
    result = launch(
        "--delay", "25", "--duration", "2", "--no-analyze", str(engine(launch)), "serve", "spawn",
        "--port", str(port),
    )  # fmt: skip
    assert result.code == 0
    found = ranges(result.folder)
    assert found["of rank 0"] > 5, "of 40 steps in two seconds"
    assert "early of rank 0" not in found, "steps before the window"


def test_a_trigger_from_another_shell(launch: Launcher, port: int) -> None:
    words = ("--trigger", str(engine(launch)), "serve", "spawn", "--port", str(port))
    running = launch.start(*words)
    state = launch.wait_for("run/control.json")
    until(lambda: answers(port))

    def trigger() -> str:
        done = launch.run_nvprobe("trigger", "run", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["state"])

    assert trigger() == "recording"
    time.sleep(3)
    assert trigger() == "closed"
    running.send_signal(signal.SIGINT)
    result = launch.finish(running)
    assert result.code == 3, f"the server's own code passes through\n{result.err}"
    assert {"of rank 0", "of rank 1"} <= ranges(result.folder).keys()
    assert not state.exists()


def answers(port: int) -> bool:
    """Whether the server says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def until(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_trigger_where_nothing_waits(launch: Launcher) -> None:
    done = launch.run_nvprobe("trigger", "nowhere")
    assert done.returncode == 2
    assert "no launch waits for a trigger there" in done.stderr


def test_the_dry_run_shows_variables_and_all_three_commands(launch: Launcher, port: int) -> None:
    result = launch("--dry-run", "--steps", "20:60", str(engine(launch)), "serve", "--port", "1")
    assert "VLLM_WORKER_MULTIPROC_METHOD=spawn" in result.out
    assert " launch --session-new=nvprobe-" in result.out
    assert " start --session=nvprobe-" in result.out
    assert " stop --session=nvprobe-" in result.out
    assert "--trace-fork-before-exec=true" in result.out


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
