"""What a launch is asked to do, as plain values that the command line fills."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from nvprobe.errors import UsageError

Backend = Literal["auto", "nsys", "torch"]


@dataclass(frozen=True)
class Window:
    """The part of the run to record: steps or requests, seconds, or all."""

    first: int | None = None
    last: int | None = None
    """Exclusive."""
    unit: Literal["steps", "requests"] = "steps"
    """What ``first`` and ``last`` count; a request is recorded in whole steps."""
    delay_s: float = 0.0
    duration_s: float | None = None
    outside: bool = False
    """Whether the launcher opens and closes it (``nsys start``), not the program."""
    on_trigger: bool = False
    """Whether ``nvprobe trigger`` does."""
    at_least: int | None = None
    """Requests that have to be in a step for it to open."""

    @property
    def by_steps(self) -> bool:
        """Whether the program's steps open and close the window."""
        return self.first is not None

    def __str__(self) -> str:
        if self.on_trigger:
            return "from one trigger to the next"
        if self.at_least is not None:
            return f"from {self.at_least} requests in a step on"
        if self.first is not None:
            return f"{self.unit} {self.first}:{'' if self.last is None else self.last}"
        if self.duration_s is not None or self.delay_s:
            length = "to the end" if self.duration_s is None else f"for {self.duration_s:g} s"
            return f"from {self.delay_s:g} s {length}"
        return "whole run"


@dataclass(frozen=True)
class Timeouts:
    """How long nsys may take, in seconds, before nvprobe goes on without it."""

    start_s: float = 120.0
    """From its start to the start of the script."""
    finish_s: float = 60.0
    """Without any progress after the script has ended."""
    export_s: float = 1800.0
    """For ``nsys export`` of one report."""


@dataclass(frozen=True)
class LaunchOptions:
    """Everything ``nvprobe launch`` was asked for, besides the command to run."""

    output: Path | None = None
    force: bool = False
    backend: Backend = "auto"
    window: Window = field(default_factory=Window)
    warmup: int = 0
    annotate: bool = True
    depth: int | None = None
    modules: tuple[str, ...] = ()
    kernels_in_graphs: bool = True
    accurate: bool = False
    gpu_metrics: bool = False
    sync_lines: bool = True
    call_chains: bool = False
    python_backtraces: bool = False
    python_samples: bool = False
    memory_usage: bool = False
    os_calls: bool = False
    with_torch_trace: bool = False
    nsys_args: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    """A command to run while the window is open; the program ends with it."""
    export_kind: Literal["auto", "sqlite", "parquet"] = "auto"
    ranks: frozenset[int] | None = None
    analyze: bool = True
    quiet: bool = False
    verbose: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def extras(self) -> list[str]:
        """What is asked of nsys beyond ranges and GPU work, as typed."""
        return [name for field_name, name in _EXTRAS.items() if getattr(self, field_name)]

    def without_extras(self) -> LaunchOptions:
        """The same with none of them."""
        none = LaunchOptions()
        return replace(self, **{name: getattr(none, name) for name in _EXTRAS})


_EXTRAS = {
    "gpu_metrics": "--gpu-metrics",
    "call_chains": "--call-chains",
    "python_backtraces": "--python-backtraces",
    "python_samples": "--python-samples",
    "memory_usage": "--memory-usage",
    "os_calls": "--os-calls",
    "nsys_args": "--nsys-arg",
}


def parse_steps(text: str, option: str = "--steps") -> tuple[int, int | None]:
    """``10:15`` → (10, 15); ``10:`` → (10, None), to the end; ``10`` → (10, 11), that step alone.

    Raises:
        UsageError: the text is none of these, or no step lies between the two.

    """
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip())
    if match is None or not (match[1] or match[2]):
        raise UsageError(f"{option} {text}: use FIRST:LAST, such as 10:15 for 10 to 14")
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else (None if match[2] else first + 1)
    if last is not None and last <= first:
        raise UsageError(f"{option} {text}: nothing lies between {first} and {last}")
    return first, last


def parse_ranks(text: str) -> frozenset[int]:
    """``0,8`` and ``0-3,8`` → the ranks to profile.

    Raises:
        UsageError: a part is neither a rank nor a range of ranks.

    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise UsageError(f"--ranks {text}: use ranks and ranges of them, such as 0,8 or 0-3")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


@dataclass
class Outcome:
    """A finished launch: the program's exit code and what was kept of it."""

    code: int
    folder: Path
    files: list[Path] = field(default_factory=list)
    rank: int | None = None
    """In a job that nvprobe started: whose outcome it is."""
    notes: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def captured(self) -> bool:
        """Whether there is something to analyze: a report or a trace, not a sidecar alone."""
        return any(not file.name.startswith("sidecar.") for file in self.files)
