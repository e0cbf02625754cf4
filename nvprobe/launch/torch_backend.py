"""Inside the program: record with torch.profiler, alone or beside nsys.

Alone it is the backend for machines without nsys: operators, CUDA work where there is a GPU, and
the ranges of the annotations. Beside nsys it records operators only, because CUDA activities have
one subscriber at a time; both then share a clock (docs/attribution.md).
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvprobe.instrumentation import emitter
from nvprobe.instrumentation.hooks import Hooks, around
from nvprobe.placement import placement

log = logging.getLogger("nvprobe")


def _without_remark(profile: Callable[..., Any]) -> dict[str, bool]:
    """What keeps torch (2.11) from warning that it forgets earlier cycles: there is only one."""
    known = "acc_events" in inspect.signature(profile).parameters
    return {"acc_events": True} if known else {}


class TorchProfiler:
    """One torch trace, ``trace.<rank>.<pid>.json.gz``, of what happens between open and close."""

    def __init__(
        self, folder: Path, *, cuda: bool, stacks: bool = False, memory: bool = False
    ) -> None:
        self.folder = folder
        self.cuda = cuda
        self.stacks = stacks
        self.memory = memory
        self.profiler: Any = None
        self.thread: int | None = None
        """The only one that can stop the profiler (torch would crash); None where each can."""
        self._hooks = Hooks("an end of the trace before the program's own profiler")

    @property
    def file(self) -> Path:
        """Where the trace goes."""
        return self.folder / f"trace.{placement().rank or 0}.{os.getpid()}.json.gz"

    def open(self) -> None:
        """Start recording on all threads that PyTorch can follow."""
        from torch import autograd, profiler

        if autograd._profiler_enabled():
            raise RuntimeError("no trace: a torch.profiler of the program is running")
        activities = [profiler.ProfilerActivity.CPU]
        if self.cuda:
            activities.append(profiler.ProfilerActivity.CUDA)
        options = _without_remark(profiler.profile) | self._on_all_threads(profiler)
        self.profiler = profiler.profile(
            activities=activities,
            record_shapes=True,
            with_stack=self.stacks,
            profile_memory=self.memory,
            **options,
        )
        self.profiler.start()
        self._hooks.begin()
        for name in ("profile._prepare_trace", "profile._start_trace", "emit_nvtx.__enter__"):
            self._hooks.replace("torch.autograd.profiler", name, around(self._make_way))
        emitter.muted = False
        self._clock_mark()

    def close(self) -> None:
        """Stop, and write the trace as a whole or not at all."""
        if self.profiler is None:
            return
        if self.thread not in (None, threading.get_ident()):
            self._close_later()
            return
        profiler, self.profiler = self.profiler, None
        self._hooks.undo()
        if self.cuda:
            self._wait_for_gpu()
        self._clock_mark()
        import torch

        if self.thread is None or torch.autograd._profiler_enabled():
            profiler.stop()
        found = profiler.profiler.kineto_results
        if not found or not found.trace_start_ns():  # exporting nothing crashes torch
            raise RuntimeError("no trace: the program ended it by a torch.profiler of its own")
        partial = self.file.with_name(f".{self.file.name}")
        try:
            profiler.export_chrome_trace(os.fspath(partial))
            partial.chmod(0o600)  # names and shapes of the program are its owner's
            partial.replace(self.file)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def _on_all_threads(self, profiler: Any) -> dict[str, Any]:
        """What records every thread of the program, and lets any of them stop the profiler.

        A server has a thread for each request, or for its loop (``profile_all_threads``: torch 2.8
        to 2.13). With a GPU only where another than the main thread starts it.
        """
        self.thread = threading.get_ident()
        if not self.cuda or self.thread != threading.main_thread().ident:
            with contextlib.suppress(AttributeError, TypeError):
                config = profiler._ExperimentalConfig(profile_all_threads=True)
                self.thread = None
                return {"experimental_config": config}
        return {}

    def _make_way(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """End the trace before the program starts its own profiler: torch crashes with two.

        No range of nvprobe is in what the program's profiler records.
        """
        log.warning("the trace ends here: the program starts a torch.profiler of its own")
        try:
            self.close()
        except Exception as error:
            log.warning("no trace: %s", error)
        emitter.muted = True
        return original(*args, **kwargs)

    def _close_later(self) -> None:
        """Leave it to the main thread at the end of the program, if that has started it."""
        if self.thread == threading.main_thread().ident:
            log.warning("torch.profiler records on to the end: its own thread alone can stop it")
            atexit.register(self.close)
        else:
            self.profiler = None
            log.warning("no trace: another thread of the program has started torch.profiler")

    @staticmethod
    def _clock_mark() -> None:
        """One instant in both recordings, under one name: ``nvprobe clock <unix ns>``."""
        from torch.profiler import record_function

        if emitter.domain() is None:  # no nsys: there is no second recording
            return
        now = time.time_ns()
        label = emitter.label(f"nvprobe clock {now}", emitter.Category.USER, now)
        with record_function(f"nvprobe clock {now}"):
            emitter.mark(label)

    @staticmethod
    def _wait_for_gpu() -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
