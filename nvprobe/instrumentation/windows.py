"""Windows that the program opens itself: ``nvprobe.window()`` and ``torch.cuda.profiler.start()``.

``nsys profile --capture-range=cudaProfilerApi`` records between cudaProfilerStart and
cudaProfilerStop. From the first such window on the instrumentation sleeps outside of them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nvprobe.instrumentation import awake, emitter, engine_runs
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.hooks import Hooks, around

log = logging.getLogger("nvprobe")
_hooks = Hooks("windows of the CUDA profiler")

OURS = emitter.label("nvprobe synchronizes", Category.SYNC)
"""A range around what nvprobe does to the GPU itself: no wait of the program."""


def install() -> None:
    """Follow ``torch.cuda.profiler.start`` and ``stop``, and what is built on them."""
    if not _hooks.begin():
        return
    _hooks.replace("torch.cuda.profiler", "start", _start)
    _hooks.replace("torch.cuda.profiler", "stop", _stop)


def uninstall() -> None:
    """Give torch its functions back."""
    _hooks.undo()


@contextlib.contextmanager
def window() -> Iterator[None]:
    """Record what runs inside: ``with nvprobe.window(): …``, as often as wanted.

    For ``nsys profile --capture-range=cudaProfilerApi`` (with ``--capture-range-end=repeat`` for
    several windows): opens and closes the CUDA profiler's window where CUDA is there, and waits
    for the GPU before the end. Outside, from the first window on, the instrumentation sleeps.
    Under ``nvprobe launch`` use its ``--steps`` instead.
    """
    awake.wake()
    _profiler("cudaProfilerStart")
    engine_runs.recording()
    try:
        yield
    finally:
        _profiler("cudaProfilerStop")
        awake.sleep()


def _profiler(name: str) -> None:
    """Call the CUDA profiler, the GPU idle before it stops; nothing without CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        return
    emitter.push(OURS)
    try:
        if name == "cudaProfilerStop" and cuda.is_initialized():
            cuda.synchronize()
        getattr(cuda.cudart(), name)()
    except Exception as error:  # the program's own error, which the program will meet
        log.warning("%s: %s", name, error)
    finally:
        emitter.pop()


@around
def _start(original: Callable[[], Any]) -> Any:
    """Wake, then start."""
    awake.wake()
    try:
        return original()
    finally:
        engine_runs.recording()


@around
def _stop(original: Callable[[], Any]) -> Any:
    """Stop, then sleep."""
    try:
        return original()
    finally:
        awake.sleep()
