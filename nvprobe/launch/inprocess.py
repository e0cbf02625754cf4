"""Inside the program: start what :class:`~nvprobe.launch.settings.Settings` ask for.

`nvprobe.instrumentation.startup` calls `start` once in each instrumented process. Nothing is
imported of torch until the program has imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from nvprobe.instrumentation import sidecar
from nvprobe.instrumentation.hooks import after_import
from nvprobe.launch.nsys import WINDOW_RANGE
from nvprobe.launch.settings import Settings
from nvprobe.launch.torch_backend import TorchProfiler
from nvprobe.launch.window import CudaProfilerRange, NvtxRange, Recorder, StepWatch

log = logging.getLogger("nvprobe")


def start() -> StepWatch | None:
    """Begin to watch the steps of this process, as its environment says; None if it does not."""
    settings = Settings.from_environ()
    if settings is None:
        return None
    steps = import_module("nvprobe.instrumentation.steps")
    watch = StepWatch(
        _recorders(settings),
        settings.first or 0,
        settings.last,
        delay_s=settings.delay_s,
        duration_s=settings.duration_s,
        warmup=settings.warmup,
        status=Path(settings.status) if settings.status else None,
        count=steps.count,
        traffic=_traffic(),
        progress=settings.progress,
        by_request=settings.by_request,
        at_least=settings.at_least or 0,
    )
    follow_steps(watch)
    if settings.trigger == "none" and settings.torch != "none":
        after_import("torch", lambda _torch: watch.begin())
    if settings.torch != "none":
        atexit.register(_end_as_interrupted)
    atexit.register(watch.finish)  # before the other: exit handlers run backwards
    _keep_on_exit(watch)
    if watch.recorders:
        started = settings.trigger != "none" or "torch" in sys.modules
        keep = functools.partial(_keep_on_sigterm, watch)
        keep() if started else after_import("torch", lambda _torch: keep())
    return watch


def follow_steps(watch: StepWatch) -> None:
    """Report the steps of this process to ``watch``."""
    graphs = import_module("nvprobe.instrumentation.graphs")
    steps = import_module("nvprobe.instrumentation.steps")

    def outside_captures(listener: Callable[[int], None]) -> Callable[[int], None]:
        """The listener, but not while a graph is captured: CUDA then refuses to synchronize."""
        return lambda done: None if graphs.capturing() else listener(done)

    steps.on_step(outside_captures(watch.boundary))
    steps.on_step_end(outside_captures(watch.step_ended))
    steps.on_restart(watch.restart)


def _traffic() -> Callable[[], tuple[int, int]]:
    """What says how many requests the step works on that begins, and which is the newest."""
    inference = import_module("nvprobe.instrumentation.inference")
    return lambda: (int(inference.requests), int(inference.begun) - 1)


def _recorders(settings: Settings) -> list[Recorder]:
    """nsys first: what the torch profiler writes when it starts is then in the report."""
    recorders: list[Recorder] = []
    if settings.trigger == "cuda":
        recorders.append(CudaProfilerRange())
    elif settings.trigger == "nvtx":
        recorders.append(NvtxRange(WINDOW_RANGE))
    if settings.torch != "none" and settings.output:
        recorders.append(
            TorchProfiler(
                Path(settings.output),
                cuda=settings.torch == "cuda",
                stacks=settings.stacks,
                memory=settings.memory,
            )
        )
    return recorders


def _end_as_interrupted() -> None:
    """End by SIGINT after an unhandled KeyboardInterrupt, as Python does by itself.

    A process that has used torch.profiler does not (torch 2.13: exit code 1).
    """
    if getattr(sys, "last_type", None) is not KeyboardInterrupt:
        return
    sidecar.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _keep_on_sigterm(watch: StepWatch) -> None:
    """Keep what is recorded when a scheduler's SIGTERM ends the program, then let it end so.

    Only where the program has no handler of its own.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        """End by the signal, as without a handler: no exit handler of the program runs."""
        _finish(watch)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave)
    except ValueError:
        log.debug("no SIGTERM handler: this is not the main thread")


def _keep_on_exit(watch: StepWatch) -> None:
    """Keep what is recorded when the program ends by ``os._exit``, which runs no exit handler."""
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> NoReturn:
        if os.getpid() == watch.pid:
            _finish(watch)
        leave(status)

    os._exit = _exit


def _finish(watch: StepWatch) -> None:
    with contextlib.suppress(Exception):
        watch.finish()
    with contextlib.suppress(Exception):
        sidecar.close()
