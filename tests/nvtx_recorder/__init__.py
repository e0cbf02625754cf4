"""A real NVTX tool for tests: run Python under it and read back every event it saw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvprobe.instrumentation import startup
from tests.nvtx_recorder.with_torch import TorchPython

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("recorder.c")


@dataclass(frozen=True)
class Event:
    """One line of the recorder; see recorder.c for the fields."""

    kind: str
    thread: int
    unix_ns: int
    domain: str
    category: str
    payload: int | None
    text: str
    pid: int


@dataclass(frozen=True)
class Range:
    """A pushed and popped range, with the names of those it was opened in."""

    name: str
    category: str
    payload: int | None
    path: tuple[str, ...]
    thread: int
    pid: int
    start_ns: int
    end_ns: int


class Recording:
    """What one run wrote: its events in order, its ranges, and the program's own output."""

    def __init__(self, folder: Path, completed: subprocess.CompletedProcess[str]) -> None:
        self.folder = folder
        self.completed = completed
        self.events = [event for file in sorted(folder.glob("nvtx.*")) for event in _read(file)]

    @property
    def stdout(self) -> str:
        return self.completed.stdout

    def marks(self, category: str | None = None) -> list[Event]:
        """Marks, of one category if named."""
        return [
            event
            for event in self.events
            if event.kind == "mark" and category in (None, event.category)
        ]

    def ranges(self, category: str | None = None) -> list[Range]:
        """Closed ranges in order of their start; unbalanced pushes and pops fail the test."""
        closed: list[Range] = []
        open_: dict[tuple[int, int, str], list[Event]] = defaultdict(list)
        for event in self.events:
            stack = open_[event.pid, event.thread, event.domain]
            if event.kind == "push":
                stack.append(event)
            elif event.kind == "pop":
                assert stack, f"pop without push in {event.domain!r}"
                path = tuple(one.text for one in stack)
                closed.append(_range(stack.pop(), event, path))
        left = [event.text for stack in open_.values() for event in stack]
        assert not left, f"left open: {left}"
        closed.sort(key=lambda one: (one.start_ns, -one.end_ns))
        return [one for one in closed if category in (None, one.category)]

    def names(self, category: str | None = None) -> list[str]:
        """Names of the ranges in order of their start."""
        return [one.name for one in self.ranges(category)]

    def paths(self, category: str | None = None) -> list[str]:
        """Paths of the ranges (names joined with ``/``) in order of their start."""
        return ["/".join(one.path) for one in self.ranges(category)]


def _range(push: Event, pop: Event, path: tuple[str, ...]) -> Range:
    return Range(
        push.text,
        push.category,
        push.payload,
        path,
        push.thread,
        push.pid,
        push.unix_ns,
        pop.unix_ns,
    )


def _read(file: Path) -> list[Event]:
    pid = int(file.suffix[1:])
    categories: dict[tuple[str, int], str] = {}
    events = []
    for line in file.read_text(errors="replace").splitlines():
        kind, thread, unix_ns, domain, number, payload, text = line.split("\t", 6)
        if kind == "category":
            categories[domain, int(number)] = text
        category = categories.get((domain, int(number)), "")
        value = int(payload) if payload.lstrip("-").isdigit() else None
        events.append(Event(kind, int(thread), int(unix_ns), domain, category, value, text, pid))
    return events


def build(folder: Path) -> Path:
    """Compile the recorder; skips the test where there is no compiler or no nvtx."""
    pytest.importorskip("nvtx")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVTX recorder with")
    library = folder / "librecorder.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return library


class Recorder:
    """Runs Python code in a child process with the recorder attached.

    ``torch``: the process to fork for code that needs nothing of the start of a process.
    """

    def __init__(self, library: Path, folder: Path, torch: TorchPython | None = None) -> None:
        self.library = library
        self.folder = folder
        self.torch = torch
        self._runs = 0

    def environment(self, folder: Path) -> dict[str, str]:
        """The child's environment: this tree importable, the recorder attached."""
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "NVTX_INJECTION64_PATH": str(self.library),
            "NVPROBE_TEST_NVTX": str(folder / "nvtx"),
        }

    def launched(self, folder: Path) -> dict[str, str]:
        """The environment of a program that ``nvprobe launch`` starts."""
        environment = self.environment(folder)
        return environment | startup.variables(environment, program=True)

    def run(
        self,
        code: str,
        *arguments: str,
        python: tuple[str, ...] = (),
        check: bool = True,
        timeout: float = 240,
        launched: bool = False,
        attached: bool = True,
        **environment: str,
    ) -> Recording:
        """Run code as ``python <python> script.py <arguments>`` and read what was recorded.

        ``launched``: as a program of ``nvprobe launch``, instrumented at its start. ``attached``:
        whether the recorder is there; where it is not, no tool is.
        """
        folder = self.folder / f"run{self._runs}"
        self._runs += 1
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(textwrap.dedent(code))
        variables = (self.launched(folder) if launched else self.environment(folder)) | environment
        if not attached:  # an empty path counts as a tool for the nvtx package
            del variables["NVTX_INJECTION64_PATH"]
        if self.torch is not None and not python and not launched:
            completed = self.torch.run(script, arguments, variables, timeout)
        else:
            completed = subprocess.run(
                [sys.executable, *python, str(script), *arguments],
                env=variables,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        if check:
            assert completed.returncode == 0, completed.stderr[-4000:]
        return Recording(folder, completed)
