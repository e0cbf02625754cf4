"""The ``nsys profile`` command line for a set of options: pure, from words to words.

Options map to flags of the nsys at hand (:class:`nvprobe.nsys.Nsys` knows which it has); what it
cannot do is left out and said in one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from nvprobe.launch.options import LaunchOptions
from nvprobe.nsys import Nsys

WINDOW_RANGE = "nvprobe.window"
"""Name of the NVTX range (domain ``nvprobe``) that opens the window where CUDA cannot."""

Trigger = Literal["none", "cuda", "nvtx"]
"""``cuda`` (cudaProfilerStart), ``nvtx`` (a range named `WINDOW_RANGE`) or ``none``."""


@dataclass
class _Flags:
    """Flags collected for one nsys, and notes on what it lacks."""

    nsys: Nsys
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, flag: str, value: str) -> None:
        """Add a flag that every version has."""
        self.words.append(f"{flag}={value}")

    def add_if(self, flag: str, value: str, otherwise: str | None = None) -> bool:
        """Add a flag that this version has; else note what is lost."""
        if self.nsys.supports(flag):
            self.add(flag, value)
            return True
        if otherwise:
            self.notes.append(f"nsys {self.nsys.version_text} has no {flag}: {otherwise}")
        return False


def trigger_for(options: LaunchOptions, *, cuda: bool) -> Trigger:
    """What opens the capture window: nothing where all of the run (or a time) is recorded."""
    if not options.window.by_steps or options.window.outside:
        return "none"
    return "cuda" if cuda else "nvtx"


def profile_argv(
    nsys: Nsys, options: LaunchOptions, report: Path, command: Sequence[str], *, cuda: bool
) -> tuple[list[str], list[str]]:
    """The command that profiles ``command`` into ``report`` (without suffix), and notes.

    Flags given with ``--nsys-arg`` come last and replace nvprobe's own of the same name, because
    nsys accepts some of them (``--trace``) only once.
    """
    flags = _Flags(nsys)
    flags.add("--output", os.fspath(report))
    flags.add("--force-overwrite", "true" if options.force else "false")
    _what_to_trace(flags, options)
    _cuda_graphs(flags, options)
    _window(flags, options, trigger_for(options, cuda=cuda))
    _extras(flags, options if cuda else replace(options, gpu_metrics=False))
    words = _override(flags.words, options.nsys_args)
    return [os.fspath(nsys.path), "profile", *words, *command], flags.notes


_OF_START = (
    "--output", "--force-overwrite", "--sample", "--cpuctxsw", "--backtrace", "--gpu-metrics-",
    "--event-sample", "--gpuctxsw", "--sampling-", "--python-sampling",
)  # fmt: skip
"""What ``nsys start`` takes; the other flags of ``nsys profile`` are of ``nsys launch``."""
_OF_PROFILE = ("--kill",)
"""What only ``nsys profile`` takes."""


def session_argv(
    nsys: Nsys, profile: Sequence[str], session: str
) -> tuple[list[str], list[str], list[str]]:
    """(``nsys launch``, ``nsys start``, ``nsys stop``) that together do what ``profile`` does.

    ``profile`` are the words of ``nsys profile`` without a command.
    """
    tool, flags = os.fspath(nsys.path), profile[2:]
    begins = [word for word in flags if word.startswith(_OF_START)]
    launches = [word for word in flags if not word.startswith((*_OF_START, *_OF_PROFILE))]
    return (
        [tool, "launch", f"--session-new={session}", *launches],
        [tool, "start", f"--session={session}", *begins],
        [tool, "stop", f"--session={session}"],
    )


def _what_to_trace(flags: _Flags, options: LaunchOptions) -> None:
    """CUDA and NVTX; OS calls and stacks only when asked: they once made 2 GB a second."""
    traces = ["cuda", "nvtx", *(["osrt"] if options.os_calls else [])]
    flags.add("--trace", ",".join(traces))
    sampling = _stacks(flags, options)
    flags.add("--sample", "process-tree" if sampling else "none")
    flags.add("--cpuctxsw", "none")
    flags.add("--backtrace", "fp" if sampling else "none")
    flags.add_if("--trace-fork-before-exec", "true")
    flags.add("--wait", "primary")
    flags.add("--kill", "none")


def _cuda_graphs(flags: _Flags, options: LaunchOptions) -> None:
    granularity = "node" if options.kernels_in_graphs else "graph"
    flags.add_if("--cuda-graph-trace", granularity, "kernels inside CUDA graphs may be missing")


def _window(flags: _Flags, options: LaunchOptions, trigger: Trigger) -> None:
    window = options.window
    if trigger == "cuda":
        flags.add("--capture-range", "cudaProfilerApi")
    elif trigger == "nvtx":
        flags.add("--capture-range", "nvtx")
        flags.add("--nvtx-capture", f"{WINDOW_RANGE}@nvprobe")
    if trigger != "none":  # the default end of a capture range terminates the application
        flags.add("--capture-range-end", "stop")
    if window.outside:
        return
    if window.delay_s:
        flags.add("--delay", f"{window.delay_s:g}")
    if window.duration_s is not None:
        flags.add("--duration", f"{window.duration_s:g}")


def _extras(flags: _Flags, options: LaunchOptions) -> None:
    """What costs more and is recorded only when asked."""
    if options.gpu_metrics:
        plural = flags.nsys.supports("--gpu-metrics-devices")
        flags.add_if(
            "--gpu-metrics-devices" if plural else "--gpu-metrics-device",
            "cuda-visible" if plural else "all",
            "GPU metrics are not recorded",
        )
        flags.add_if("--gpu-metrics-frequency", "20000")
    if _stacks(flags, options):
        which = "all:1" if _python_stacks(flags, options) else "sync:1"
        flags.add_if("--cudabacktrace", which, "call chains are not recorded")
    if options.python_backtraces:
        flags.add_if("--python-backtrace", "cuda", "Python back-traces are not recorded")
    if options.python_samples:
        flags.add_if("--python-sampling", "true", "Python is not sampled")
    if options.memory_usage:
        flags.add_if("--cuda-memory-usage", "true", "memory usage is not recorded")


def _stacks(flags: _Flags, options: LaunchOptions) -> bool:
    """Whether stacks of CUDA calls are recorded, for which nsys has to sample CPUs."""
    return options.call_chains or _python_stacks(flags, options)


def _python_stacks(flags: _Flags, options: LaunchOptions) -> bool:
    """Whether Python stacks are recorded: nsys takes them only beside native ones and sampling."""
    return options.python_backtraces and flags.nsys.supports("--python-backtrace")


def _override(own: list[str], given: Sequence[str]) -> list[str]:
    """``own`` without the flags that ``given`` names, then ``given``."""
    longs = {"-t": "--trace", "-s": "--sample", "-b": "--backtrace", "-o": "--output"}
    longs |= {"-c": "--capture-range", "-y": "--delay", "-d": "--duration", "-w": "--show-output"}
    longs |= {"-f": "--force-overwrite", "-p": "--nvtx-capture"}
    named = {longs.get(word.split("=")[0], word.split("=")[0]) for word in given}
    return [word for word in own if word.split("=")[0] not in named] + list(given)
