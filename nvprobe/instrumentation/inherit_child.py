"""What an inherited ``sitecustomize`` starts: instrumentation, when torch is imported."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

from nvprobe.instrumentation.hooks import after_import

__all__ = ["start", "start_recording"]

log = logging.getLogger("nvprobe")

_HELPERS = ("compile_worker", "resource_tracker", "semaphore_tracker", "forkserver")
"""Python processes that run no model: Inductor's compile workers, multiprocessing's own."""
RECORDING_VARIABLE = "NVPROBE_INPROCESS"
"""Set by the launcher: it has something to start in each process."""


def start() -> None:
    """Instrument this process once it imports torch, unless it is a helper."""
    words = " ".join(getattr(sys, "orig_argv", sys.argv))
    if any(helper in words for helper in _HELPERS) or "nvprobe.instrumentation.bootstrap" in words:
        return
    after_import("torch", _begin)


def _begin(_torch: Any) -> None:
    try:
        from nvprobe.instrumentation.instrument import instrument

        instrument()
        start_recording()
    except Exception as error:
        log.debug("this child is not instrumented: %r", error)


def start_recording() -> None:
    """Let the launcher begin its part: windows of steps, the torch profiler.

    By name, because the rooms of a program's process must not depend on the launcher's.
    """
    if RECORDING_VARIABLE not in os.environ:
        return
    try:
        importlib.import_module("nvprobe.launch.inprocess").start()
    except Exception as error:
        log.warning("nothing watches the steps of this process: %s", error)
