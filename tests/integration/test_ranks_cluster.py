"""The map over ranks on a real Dask cluster: a scheduler and three workers on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.unit.ranks.traces import write_job

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

RANKS = 24
PATIENCE_S = 300
"""How long anything may take on a loaded machine before its test gives up."""
SLOW = """
import os, time
from nvprobe.ranks import run
summarize = run.summarize
def slowly(source):
    with open(os.environ["BEGUN"], "a") as begun:
        print(os.getpid(), source.rank, file=begun)
    time.sleep(1)
    return summarize(source)
run.summarize = slowly
"""
"""What stands for a site's customization in slow workers: each capture takes a second."""


@contextmanager
def program(*words: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program with its output at hand, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


class Cluster:
    """The scheduler's address, and where slow workers write what they began."""

    def __init__(self, address: str, begun: Path) -> None:
        self.address = address
        self.begun = begun

    def begun_by(self) -> list[tuple[int, int]]:
        """(process, rank) of each capture that was begun."""
        lines = self.begun.read_text().splitlines() if self.begun.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def wait_for(self, number: int) -> list[tuple[int, int]]:
        """Wait until so many captures were begun."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.begun_by()) < number:
            assert time.monotonic() < deadline, "the workers began nothing"
            time.sleep(0.05)
        return self.begun_by()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    tmp_path = tmp_path_factory.mktemp("cluster")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW)
    begun = tmp_path / "begun"
    plain = {**os.environ, "PYTHONPATH": str(ROOT), "NVPROBE_CACHE": "off"}
    slow = {**plain, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "BEGUN": str(begun)}
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            program(
                "distributed.cli.dask_scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--no-dashboard",
                environment=plain,
            )
        )
        assert scheduler.stdout is not None
        address = next(
            found[1]
            for line in scheduler.stdout
            if (found := re.search(r"Scheduler at:\s*(tcp://\S+)", line))
        )
        for _ in range(3):
            stack.enter_context(
                program(
                    "distributed.cli.dask_worker",
                    address,
                    "--host",
                    "127.0.0.1",
                    "--nthreads",
                    "1",
                    "--no-dashboard",
                    "--local-directory",
                    str(tmp_path / "dask"),
                    environment=slow,
                )
            )
        yield Cluster(address, begun)


@pytest.fixture
def cluster(processes: Cluster) -> Cluster:
    processes.begun.unlink(missing_ok=True)
    return processes


def ranks(*words: str) -> subprocess.Popen[str]:
    """``nvprobe ranks … --json``."""
    return subprocess.Popen(
        [sys.executable, "-m", "nvprobe", "ranks", "--json", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NVPROBE_CACHE": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> str:
    out, notes = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, notes
    return out


def test_a_cluster_says_what_one_machine_says(cluster: Cluster, tmp_path: Path) -> None:
    """One of three workers is killed in the middle, and one capture is empty."""
    job = write_job(tmp_path / "job", ranks=RANKS, late_us={5: 300, 17: 150}, clock_us={3: 2_000})
    (job / "rank9.json").write_text("")
    local = answer(ranks(str(job)))
    on_cluster = ranks(
        str(job), "--cluster", cluster.address, "--summaries", str(tmp_path / "kept")
    )
    process, _ = cluster.wait_for(5)[-1]
    os.kill(process, signal.SIGKILL)
    assert answer(on_cluster) == local
    found = json.loads(local)
    assert [one["rank"] for one in found["stragglers"]] == [5, 17]
    assert found["missing_ranks"] == [9]
    (failed,) = found["failed"]
    assert "rank9.json: is empty" in failed["error"]
    begun = [rank for _, rank in cluster.begun_by()]
    assert set(begun) == set(range(RANKS))
    assert len(begun) > RANKS  # what the killed worker had in hand was begun again


def settled(cluster: Cluster, kept: Path) -> tuple[int, int]:
    """(summaries, captures begun) once the workers have ended what they had begun."""
    deadline = time.monotonic() + PATIENCE_S
    found = (-1, 0)
    while found != (now := (len(list(kept.glob("*.parquet"))), len(cluster.begun_by()))) or (
        now[0] < now[1]
    ):
        assert time.monotonic() < deadline, f"{now} summaries and captures begun"
        found = now
        time.sleep(2)
    return found


def test_a_killed_command_is_taken_up(cluster: Cluster, tmp_path: Path) -> None:
    """What was summarized before the command was killed is not read again."""
    job = write_job(tmp_path / "job", ranks=RANKS, late_us={5: 300})
    kept = tmp_path / "kept"
    words = (str(job), "--cluster", cluster.address, "--summaries", str(kept))
    killed = ranks(*words)
    cluster.wait_for(8)
    killed.kill()
    killed.communicate(timeout=PATIENCE_S)
    done, before = settled(cluster, kept)
    assert 0 < done < RANKS
    found = json.loads(answer(ranks(*words)))
    assert [one["rank"] for one in found["stragglers"]] == [5]
    assert len(cluster.begun_by()) - before == RANKS - done


def test_no_scheduler(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", ranks=2)
    process = ranks(str(job), "--cluster", "tcp://127.0.0.1:9", "--summaries", str(tmp_path))
    _, notes = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "no scheduler answers there" in notes
    assert "Traceback" not in notes
