"""Running ``nvprobe launch`` on small programs, with the real nsys where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nvprobe.errors import ToolError
from nvprobe.nsys import Nsys, find_nsys
from tests.conftest import ROOT

NVTX_RANGE = 59
PATIENCE_S = 400
"""How long anything may take on a loaded machine before its test gives up."""
_NOT_OURS = ("NVPROBE_", "COLUMNS", "TMPDIR", "RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI")
"""Variables of who runs the tests that launches would act upon."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a test of the real nsys again, four times at most, each time from the start.

    On a loaded machine 2022.4 itself fails about once in a few hundred runs: it loses all ranges of
    a short program, or never gets to start it (and then nvprobe records with torch.profiler). What
    a forked child did is lost in half of the runs.
    """
    for item in items:
        if item.get_closest_marker("nsys"):
            item.add_marker(pytest.mark.flaky(reruns=4))


class Result(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run.json").read_text()))

    def ranges(self, folder: Path | None = None) -> list[str]:
        """Names of the push/pop ranges in the report, in order of their start."""
        return ranges_in((folder or self.folder) / "report.sqlite")


def ranges_in(report: Path) -> list[str]:
    query = (
        "SELECT COALESCE(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
        f"WHERE eventType = {NVTX_RANGE} ORDER BY start"
    )
    if "NVTX_EVENTS" not in tables_of(report):
        return []  # an export has no table of what was not recorded
    with closing(sqlite3.connect(report)) as connection:
        return [name for (name,) in connection.execute(query)]


def tables_of(report: Path) -> set[str]:
    with closing(sqlite3.connect(report)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


class Launcher:
    """``nvprobe launch`` in a working folder of its own, below pytest's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)},
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "NVPROBE_NSYS": str(shutil.which("nsys") or ""),
        }

    def script(self, text: str, name: str = "job.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(text))
        return name

    def start(self, *words: str, analyze: bool = False, **keywords: Any) -> subprocess.Popen[str]:
        options = [] if analyze else ["--no-analyze"]
        return subprocess.Popen(
            [sys.executable, "-m", "nvprobe", "launch", *options, "-o", "run", *words],
            cwd=self.folder,
            env=self.environ,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keywords},
        )

    def finish(self, process: subprocess.Popen[str], stdin: str | None = None) -> Result:
        try:
            out, err = process.communicate(stdin, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Result(process.returncode, out, err, self.folder / "run")

    def __call__(self, *words: str, stdin: str | None = None, **keywords: Any) -> Result:
        """Launch, to the end."""
        pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        return self.finish(self.start(*words, stdin=pipe, **keywords), stdin)

    def run_nvprobe(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of nvprobe, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "nvprobe", *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def wait_for(self, file: str, timeout_s: float = PATIENCE_S) -> Path:
        """Until the program has made a file; what it holds may be written later."""
        path = self.folder / file
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert time.monotonic() < deadline, f"{file} was never made"
            time.sleep(0.05)
        return path


@pytest.fixture(scope="session", autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """Shells start what runs in the background with SIGINT ignored, and children inherit that."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher; after the test nothing of what it started, nsys's agent included, may live."""
    launcher = Launcher(tmp_path)
    mark = launcher.environ["LAUNCH_TEST_MARK"] = f"mark-of-{os.getpid()}-{tmp_path.name}"
    yield launcher
    left = left_after_a_while(mark)
    for pid, _ in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture(scope="session")
def nsys() -> Nsys:
    """The real nsys; the test is skipped where there is none."""
    try:
        return find_nsys()
    except ToolError as error:
        pytest.skip(f"{error} (scripts/install-nsys)")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KiB, which needs root to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def left_after_a_while(mark: str) -> list[tuple[int, str]]:
    """What still lives once everything that is about to end had the time to."""
    deadline = time.monotonic() + PATIENCE_S / 4
    while (left := left_behind(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def left_behind(mark: str) -> list[tuple[int, str]]:
    """Living processes that were started with ``mark`` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environ:
            found.append((int(entry.name), words))
    return found
