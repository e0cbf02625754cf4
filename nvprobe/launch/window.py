"""Inside the program: open and close the capture window by step, and time the steps.

Between steps `nvprobe.instrumentation.steps.on_step` calls `StepWatch.boundary`.
What is opened is a list of recorders: nsys (through cudaProfilerStart, or an NVTX range where
there is no CUDA) and the torch profiler. What happened goes to ``window.<pid>.json`` in the
status folder, for the launcher to read: steps seen, window opened and closed, step durations.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from nvprobe.instrumentation import awake, engine_runs, graphs
from nvprobe.launch.groups import AWAKE_STEPS, GroupTimer, groups_before, synchronize

log = logging.getLogger("nvprobe")

AWAKE_NS = 2_000_000_000
"""How long before a window of time the instrumentation is awake: nsys's clock began earlier."""
MOST_STEPS = 1_000
"""Durations kept, the last ones: a run has steps by the million."""


class Recorder(Protocol):
    """Something that records between `open` and `close`; neither may raise into the program."""

    def open(self) -> None:
        """Begin to record."""

    def close(self) -> None:
        """Stop, and keep what was recorded."""


class CudaProfilerRange:
    """nsys ``--capture-range=cudaProfilerApi``: its window opens with cudaProfilerStart."""

    def open(self) -> None:
        """Start the CUDA profiler."""
        self._call("cudaProfilerStart")

    def close(self) -> None:
        """Stop it, once the GPU has finished the steps of the window."""
        synchronize()
        self._call("cudaProfilerStop")

    @staticmethod
    def _call(name: str) -> None:
        import torch

        getattr(torch.cuda.cudart(), name)()


class NvtxRange:
    """nsys ``--capture-range=nvtx``: a start/end range, which may close on another thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.domain: Any = None
        self.range: Any = None

    def open(self) -> None:
        """Start the range."""
        from nvprobe.instrumentation import emitter

        self.domain = emitter.domain()
        if self.domain is not None:
            self.range = self.domain.start_range(self.domain.get_event_attributes(self.name))

    def close(self) -> None:
        """End it."""
        if self.range is not None:
            self.domain.end_range(self.range)


class StepWatch:
    """Counts steps, opens the recorders before step ``first`` and closes them before ``last``.

    `begin` opens a window that starts with the program; ``last`` None leaves it open to the end,
    and `finish` closes it. A window of time (torch profiler only: nsys keeps its own) opens and
    closes at the first boundary after its seconds. ``count`` says how many steps were begun where
    a boundary may be followed by no step (a wait that finds no batch). ``traffic`` gives the
    requests in the step that begins, of which a window may need ``at_least`` so many to open, and
    the number of the newest, which ``by_request`` counts instead of steps. ``progress``: the
    launcher reads them.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder],
        first: int = 0,
        last: int | None = None,
        *,
        delay_s: float = 0.0,
        duration_s: float | None = None,
        warmup: int = 0,
        status: Path | None = None,
        count: Callable[[], int] | None = None,
        traffic: Callable[[], tuple[int, int]] = lambda: (0, -1),
        progress: bool = False,
        by_request: bool = False,
        at_least: int = 0,
        bare_groups: bool = True,
    ) -> None:
        self.recorders = recorders
        self.first = first
        self.last = last
        self.status = status
        now = time.perf_counter_ns()
        self.open_at = now + round(delay_s * 1e9)
        self.duration_ns = None if duration_s is None else round(duration_s * 1e9)
        timed = duration_s is not None and not at_least
        self.close_at = self.open_at + (self.duration_ns or 0) if timed else None
        self.begun = 0
        self.found = 0
        """Steps before the program's first own one that count, since the window opened in them."""
        self.count = count or (lambda: self.begun)
        self.opened: int | None = None
        self.closed: int | None = None
        self.warmup = warmup
        self.bare_groups = bare_groups
        """Whether steps outside the window are timed, which synchronizes the GPU there."""
        self.pid = os.getpid()
        self.traffic, self.by_request, self.at_least = traffic, by_request, at_least
        self.says_progress = progress
        self.ahead = 1 if by_request else AWAKE_STEPS
        """Steps or requests before the window in which the instrumentation is awake."""
        self._count_anew()
        self.progress: int | None = None
        """Descriptor of the file for the launcher."""
        if first > self.ahead:
            awake.sleep()

    def _count_anew(self) -> None:
        """As if no step had ended yet."""
        self.steps = self.last_timed = 0
        self.durations: deque[int] = deque(maxlen=MOST_STEPS)
        timed = self.recorders and self.bare_groups
        timed = timed and not self.by_request  # nobody knows which step a request begins with
        self.timer = GroupTimer(groups_before(self.first, self.warmup) if timed else [])
        self.began = time.perf_counter_ns()

    def restart(self, done: int) -> bool:
        """At the program's first own step: count on from ``done``, unless the window has opened."""
        if self.opened is None:
            self._count_anew()
            self.steps = done
            return True
        self.found = self.begun if self.first else 0
        return False

    def begin(self) -> None:
        """When the program can be recorded, which for PyTorch is when it is imported."""
        if self.by_request or self.at_least or self.opened is not None or self.first:
            return
        if time.perf_counter_ns() >= self.open_at:
            self._open()
            self.began = time.perf_counter_ns()

    def boundary(self, done: int) -> None:
        """Between two steps: ``done`` have ended, the next is about to begin."""
        if os.getpid() != self.pid:
            return  # a forked child: its steps are not this program's
        now = time.perf_counter_ns()
        self.begun = done + 1
        inside, newest = self.traffic()
        if self.says_progress:
            self._write_progress(done, inside, newest)
        at = newest if self.by_request else done
        if done > self.steps:
            self.steps = done
            if self.closed is None or not self.timer.finished:
                self.durations.append(now - self.began)
                self.last_timed = done
        over = (self.last is not None and at >= self.last) or (self.close_at or now + 1) <= now
        self.timer.end_due(done, cut=over and self.closed is None)
        self._wake_or_sleep(over, at, now)
        if over:
            self._close()
        elif self.opened is None and self._due(at, inside, now):
            self._open()
        self.timer.begin_due(done)
        self.began = time.perf_counter_ns()

    def _due(self, at: int, inside: int, now: int) -> bool:
        return at >= self.first and inside >= self.at_least and now >= self.open_at

    def _write_progress(self, done: int, inside: int, newest: int) -> None:
        """Steps and requests for the launcher, in a file of one line that is written in place."""
        try:
            if self.progress is None:
                assert self.status is not None
                file = self.status / f"progress.{self.pid}"
                self.progress = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(self.progress, b"%15d %15d %15d\n" % (done, inside, newest), 0)
        except OSError as error:
            log.debug("progress not written: %s", error)

    def _wake_or_sleep(self, over: bool, at: int, now: int) -> None:
        """Instrument the steps of the window, and a few before it for names and places."""
        due = at >= self.first - self.ahead and now >= self.open_at - AWAKE_NS
        if due and not over:
            awake.wake()
        else:
            awake.sleep()

    def step_ended(self, done: int) -> None:
        """Right after a step: what follows the last step of a group is not part of it."""
        if os.getpid() == self.pid:
            self.timer.end_due(done)

    def finish(self) -> None:
        """At the end of the program: close what is open and say what happened."""
        if os.getpid() == self.pid:
            self._close()
            self._say()

    def _open(self) -> None:
        self.opened = self.steps
        if self.at_least and self.duration_ns is not None:
            self.close_at = time.perf_counter_ns() + self.duration_ns
        for recorder in self.recorders:
            _quietly(recorder.open)
        if self.recorders:
            engine_runs.recording()
            self.timer.plan_window(self.opened, None if self.by_request else self.last)
        self._say()

    def _close(self) -> None:
        if self.opened is None or self.closed is not None:
            return
        self.closed = self.steps
        for recorder in reversed(self.recorders):
            _quietly(recorder.close)
        # Without recorders it is nsys's own clock, which began, and ends, earlier.
        ended = bool(self.recorders) or self.close_at is not None
        if ended and self.bare_groups:
            self.timer.plan_after(self.closed)
        self._say()

    def _say(self) -> None:
        if self.status is None:
            return
        document = {
            "pid": self.pid,
            "steps": self.count(),
            "opened": self.opened,
            "closed": self.closed,
            "first_timed": self.last_timed - len(self.durations),
            "durations_ns": list(self.durations),
            "groups": [asdict(group) for group in self.timer.done],
            "graphs": graphs.replayed,
            "found": self.found,
        }
        file = self.status / f"window.{self.pid}.json"
        partial = file.with_suffix(".part")
        try:
            partial.touch(0o600)
            partial.write_text(json.dumps(document), "utf-8")
            partial.replace(file)
        except OSError as error:
            log.debug("window status not written: %s", error)


def _quietly(action: Any) -> None:
    """A recorder that fails must not stop the program."""
    try:
        action()
    except Exception as error:
        log.warning("capture window: %s", error)
