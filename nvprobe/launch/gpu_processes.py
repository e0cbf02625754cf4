"""The processes of a program that use a GPU, and which of them were recorded.

An engine's workers are what goes missing most often. So the processes below the launch are looked
at while they run: one that has mapped the CUDA driver and opened a device uses the GPU. A worker
forked from a program that uses the GPU only inherits what that has open: CUDA does not work there.
Inductor's compile workers run nothing of the program's on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nvprobe.launch import proc

DRIVER = "libcuda.so"
"""What a process that uses CUDA has mapped."""
DEVICES = ("/dev/nvidia", "/dev/dxg", "/dev/nvhost", "/dev/nvmap")
"""How the devices begin that it has open: of a server, under Windows' Linux, on Jetson."""
COMPILER = "compile_worker"
"""What the command line of Inductor's compile workers has."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that was seen to use the GPU."""

    pid: int
    title: str
    """Its command line, or the title that it has given itself (``VLLM::Worker_TP1``)."""
    born_by_fork: bool
    """Whether it runs its parent's program: a fork without exec."""


class GpuProcesses:
    """Those seen so far below one process."""

    def __init__(self, of: int, mapped: str = DRIVER, devices: tuple[str, ...] = DEVICES) -> None:
        self.of = of
        self.mapped = mapped
        self.devices = devices
        self.seen: dict[int, GpuProcess] = {}

    def look(self) -> None:
        """Look at the processes that run now."""
        for one in proc.descendants(self.of):
            if one.pid in self.seen or proc.is_of_nsys(one.pid) or not self._uses(one):
                continue
            if COMPILER not in " ".join(_command(one.pid)):
                self.seen[one.pid] = GpuProcess(one.pid, _title(one.pid), _forked(one))

    def _uses(self, one: proc.Process) -> bool:
        with contextlib.suppress(OSError):
            if self.mapped in Path(f"/proc/{one.pid}/maps").read_text("utf-8", "replace"):
                own = self._opened(one.pid)
                return bool(own - self._opened(one.parent) if _forked(one) else own)
        return False

    def _opened(self, pid: int) -> set[tuple[str, str]]:
        """(number, path) of each device that a process has open; nothing of one that is gone."""
        found = set()
        with contextlib.suppress(OSError):
            for one in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add((one.name, str(one.readlink())))
        return {one for one in found if one[1].startswith(self.devices)}

    def lines(self, recorded: Collection[int]) -> list[str]:
        """One line for each process: recorded, or not and what to do."""
        out = []
        for one in sorted(self.seen.values(), key=lambda process: process.pid):
            if one.pid in recorded:
                out.append(f"GPU process {one.pid} ({one.title}): recorded")
            else:
                out.append(f"GPU process {one.pid} ({one.title}): NOT recorded. {_remedy(one)}")
        return out


def _remedy(process: GpuProcess) -> str:
    if process.born_by_fork:
        return (
            "It was forked: start workers by spawn (VLLM_WORKER_MULTIPROC_METHOD=spawn, "
            "torch.multiprocessing start method), or use an nsys with --trace-fork-before-exec"
        )
    return (
        "It may have ended before the window, have been killed (nsys then loses what it held), or "
        "come from a service outside of this launch: close the window before the program ends"
    )


def _title(pid: int) -> str:
    """The first words of a command line, or the title that stands in its place."""
    text = " ".join(_command(pid))
    first = [Path(word).name if word.startswith("/") else word for word in text.split()]
    return " ".join(first)[:60] or "?"


def _command(pid: int) -> list[str]:
    """The words of a process's command line; none of one that is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in words if word]


def _forked(process: proc.Process) -> bool:
    """Whether a process has its parent's command line: it was forked, and has run nothing else."""
    try:
        own, parents = (
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (process.pid, process.parent)
        )
    except OSError:
        return False
    return own == parents
