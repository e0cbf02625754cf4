"""What Linux says of running processes: descendants, sessions, CPU time. Never raises."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Process:
    """One process; ``cpu_ticks`` is the user and system time it has used, in clock ticks."""

    pid: int
    parent: int
    session: int
    cpu_ticks: int
    zombie: bool


def _processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (entry / "stat").read_text("utf-8", "replace")
            fields = text[text.rindex(")") + 2 :].split()
            yield Process(
                pid=int(entry.name),
                parent=int(fields[1]),
                session=int(fields[3]),
                cpu_ticks=int(fields[11]) + int(fields[12]),
                zombie=fields[0] == "Z",
            )


def descendants(of: int) -> list[Process]:
    """All living processes below ``of``, at any depth."""
    children: dict[int, list[Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [of]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += (process for process in below if not process.zombie)
        waiting += (process.pid for process in below)
    return found


def executable(pid: int) -> Path | None:
    """The program file of a process, where it may be known."""
    try:
        return Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return None


def kill(pids: Iterable[int], number: int) -> None:
    """Signal processes, of which some may have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_of_nsys(pid: int) -> bool:
    """Whether a process runs a program of an nsys installation."""
    program = executable(pid)
    parents = program.parents if program else ()
    return any(folder.name.startswith(("target-linux-", "host-linux-")) for folder in parents)


def is_agent(pid: int) -> bool:
    """Whether a process is the part of nsys that collects, not one that writes the report."""
    try:
        return b"--start-agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def clear_stale_locks(shared_memory: Path = Path("/dev/shm")) -> bool:  # noqa: S108
    """Remove what an nsys that was killed left locked in shared memory; whether there was such.

    Agents of one version share ``NSys-<version>``. One that dies by SIGKILL may leave it locked:
    every nsys after it ends with "Agent launcher failed", until the file is gone (2022.4). Nothing
    is removed while any nsys is running, or where the file is another user's.
    """
    if any(is_of_nsys(process.pid) for process in _processes() if not process.zombie):
        return False
    removed = False
    for file in shared_memory.glob("NSys-*"):
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.geteuid():
                file.unlink()
                removed = True
    return removed


class Turn:
    """One process of this user at a time, for as long as it takes or others are willing to wait.

    Two agents of nsys 2022.4 that begin at one moment may find shared memory that the other has not
    made ready, and then fail, or wait for ever.
    """

    def __init__(self, what: str, patience_s: float) -> None:
        self._file = Path(tempfile.gettempdir()) / f"nvprobe-{what}-{os.geteuid()}.lock"
        self._patience_s = patience_s
        self._descriptor: int | None = None

    def __enter__(self) -> Turn:
        """Wait for the turn; do without where the file cannot be made or locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        deadline = time.monotonic() + self._patience_s
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._file, flags, 0o600)
            while not self._locked() and time.monotonic() < deadline:
                time.sleep(0.05)
        return self

    def _locked(self) -> bool:
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def over(self) -> None:
        """Let the next one begin."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        self.over()


def load_prctl() -> ctypes.CDLL | None:
    """The C library, loaded before a fork so that nothing is imported after it."""
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def adopt_orphans(libc: ctypes.CDLL | None) -> None:
    """Become the parent of descendants whose own parent ends, so that they can be found."""
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(libc: ctypes.CDLL | None, number: signal.Signals) -> None:
    """Called in a child between fork and exec: receive ``number`` when the parent ends."""
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
