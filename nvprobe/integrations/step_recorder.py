"""Record some steps of a long job where it runs, into a run folder of each rank.

What `nvprobe launch --steps` does inside the program, without the launch: the layers for trainers
and loops beside this module say when a step has ended, everything else is here. Nothing of nvprobe
is in the program before the third step ahead of the window, and nothing after the step behind it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import ClassVar

from nvprobe.errors import UsageError, check_path
from nvprobe.instrumentation import emitter, steps
from nvprobe.instrumentation.sources import main_name
from nvprobe.integrations.in_process import instrumented
from nvprobe.launch import rundir
from nvprobe.launch.calibration import for_run
from nvprobe.launch.inprocess import follow_steps
from nvprobe.launch.nsys import WINDOW_RANGE
from nvprobe.launch.options import Window
from nvprobe.launch.settings import VARIABLE
from nvprobe.launch.torch_backend import TorchProfiler
from nvprobe.launch.window import CudaProfilerRange, NvtxRange, Recorder, StepWatch
from nvprobe.placement import Placement, declare, placement
from nvprobe.version import __version__

log = logging.getLogger("nvprobe")

LEAD = 3
"""Steps before the window in which the program is instrumented: one to find the optimizer, and the
two in which names and lines are noted."""

NOT_REACHED = "nothing is recorded: step %d was not reached"


class StepRecorder:
    """Records the steps ``first`` to ``last`` (exclusive) of this process.

    A layer calls `boundary` after every step, and `finish` when there are no more. Under
    ``nvprobe launch``, which records itself, both do nothing. Neither raises.

    Args:
        steps: The first step that is recorded, and the one after the last; the first is 0.
        output: The folder of the run, or of the job whose ranks have folders below it; by default
            a new one in ``nvprobe-runs``.

    Raises:
        UsageError: There are no such steps.

    """

    def __init__(
        self, steps: tuple[int, int], output: str | os.PathLike[str] | None = None
    ) -> None:
        try:
            self.first, self.last = map(index, steps)
        except (TypeError, ValueError):
            self.first = self.last = 0
        if not 0 <= self.first < self.last:
            needed = "give the first step and the one after the last, as in steps=(10, 15)"
            raise UsageError(f"steps={steps!r}: {needed}")
        if output is not None:
            check_path("output", output)
        self.output = None if output is None else Path(output)
        self.folder: Path | None = None
        """The folder of this rank, once it records."""
        self.over = VARIABLE in os.environ
        """Whether nothing is left to do."""
        self._recording: _Recording | None = None

    def boundary(self, done: int) -> None:
        """Say that ``done`` steps have ended, and the next one is about to begin."""
        if self.over or done < self.first - LEAD:
            return
        with self._without_harm():
            if done >= self.last and self._recording is None:
                self.over = True
            elif self._recording is None:
                self._recording = _Recording(self.first, self.last, self.output, done)
                self.folder = self._recording.folder
            elif self._recording.is_complete():
                self.finish()

    def finish(self) -> None:
        """End what is recorded and give the program its functions back."""
        recording, self._recording = self._recording, None
        if recording is not None:
            self.over = True
            with self._without_harm():
                recording.end()
        elif not self.over:
            log.warning(NOT_REACHED, self.first)

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        """A failure of ours ends the recording, and not the training."""
        try:
            yield
        except Exception as error:
            self.over = True
            log.warning("these steps are not recorded: %s: %s", type(error).__name__, error)
            if self._recording is not None:
                recording, self._recording = self._recording, None
                with contextlib.suppress(Exception):
                    recording.give_back()


class _Recording:
    """The instrumented stretch of a program, from before the window to behind it."""

    current: ClassVar[_Recording | None] = None
    """The one of this process."""

    def __init__(self, first: int, last: int, output: Path | None, done: int) -> None:
        if _Recording.current is not None:
            raise RuntimeError("other steps are being recorded")
        self.place = _place()
        self.pid = os.getpid()
        self.started = time.time()
        self.folder = _folder(output, self.place)
        self.undo = contextlib.ExitStack()
        declare(self.place)
        _Recording.current = self
        try:
            backend: emitter.Backend | None = None if emitter.domain() else "record_function"
            self.undo.enter_context(instrumented(self.folder, backend))
            if not steps.explicit:
                steps.count_from(done)
            self.watch = StepWatch(_recorders(self.folder), first, last, bare_groups=False)
            self.watch.steps = done
            follow_steps(self.watch)
            atexit.register(self.end)
        except BaseException:
            self.give_back()
            raise

    def is_complete(self) -> bool:
        """Whether the window has closed."""
        return self.watch.closed is not None

    def end(self) -> None:
        """Close the window, give everything back and say what was recorded."""
        if os.getpid() != self.pid:
            return
        try:
            self.watch.finish()
        finally:
            self.give_back()
        if self.watch.opened is None:
            _take_back(self.folder)
            log.warning(NOT_REACHED, self.watch.first)
        elif _write_run_json(self) and not self.place.rank:
            alone = self.place.rank is None or self.place.world_size == 1
            command = f"analyze {self.folder}" if alone else f"ranks {self.folder.parent}"
            print(f"nvprobe: {_window(self.watch)} recorded: nvprobe {command}", file=sys.stderr)

    def give_back(self) -> None:
        """Leave the program as it was."""
        atexit.unregister(self.end)
        _Recording.current = None
        self.undo.close()
        declare(None)


def _place() -> Placement:
    """The rank that torch.distributed knows, where the environment does not say it."""
    known = placement()
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if known.rank is not None or distributed is None or not distributed.is_available():
        return known
    if not distributed.is_initialized():
        return known
    return dataclasses.replace(
        known, rank=distributed.get_rank(), world_size=distributed.get_world_size()
    )


def _folder(output: Path | None, place: Placement) -> Path:
    """The folder of the rank below that of the job; a run's own folder outside of a job."""
    name = Path(main_name() or "python").stem
    if place.rank is None:
        return rundir.create(output, name, force=False)
    environ = dict(os.environ)
    if "MASTER_PORT" in environ:  # all ranks of a job have it, whoever started them
        met = f"{environ.get('MASTER_ADDR', '')}-{environ['MASTER_PORT']}"
        environ.setdefault("NVPROBE_JOB", met)
    return rundir.create_for_rank(output, name, place, environ)


def _recorders(folder: Path) -> list[Recorder]:
    """The window of the tool that listens, else torch.profiler."""
    import torch

    cuda = torch.cuda.is_available()
    if emitter.domain() is not None:
        return [CudaProfilerRange() if cuda else NvtxRange(WINDOW_RANGE)]
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another torch.profiler is running")
    return [TorchProfiler(folder, cuda=cuda)]


def _window(watch: StepWatch) -> str:
    return str(Window(watch.first, watch.last))


def _take_back(folder: Path) -> None:
    """Remove what was written before the window, which never opened."""
    for file in folder.glob("sidecar.*"):
        file.unlink()
    with contextlib.suppress(OSError):  # it holds files of others
        folder.rmdir()


def _write_run_json(recording: _Recording) -> bool:
    """Describe the run, in the fields of ``nvprobe launch`` that are known in place."""
    watch = recording.watch
    traces = [file.name for file in recording.folder.glob("trace.*.json*")]
    if not traces:
        return False  # the tool that listens has the capture, or there is none
    document = {
        "schema": "nvprobe.run/1",
        "nvprobe": __version__,
        "python": platform.python_version(),
        "started_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(recording.started)),
        "command": rundir.plain_words(sys.orig_argv),
        "backend": "torch",
        "window": _window(watch),
        "annotated": True,
        "rank": recording.place.rank,
        "world_size": recording.place.world_size,
        "exit_code": None,
        "files": sorted(traces + [one.name for one in recording.folder.glob("sidecar.*")]),
        "notes": ["recorded in place"],
        "steps": watch.steps,
        "calibration": for_run(None, "torch"),
        "step_periods": {
            "first": watch.last_timed - len(watch.durations),
            "host_ns": list(watch.durations),
        },
    }
    rundir.write_json(recording.folder / "run.json", document)
    return True
