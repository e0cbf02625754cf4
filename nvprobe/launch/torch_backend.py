"""Inside the program: record with torch.profiler, alone or beside nsys.

Alone it is the backend for machines without nsys: operators, CUDA work where there is a GPU, and
the ranges of the annotations. Beside nsys it records operators only, because CUDA activities have
one subscriber at a time; both then share a clock (docs/attribution.md).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvprobe.placement import placement


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

    @property
    def file(self) -> Path:
        """Where the trace goes."""
        return self.folder / f"trace.{placement().rank or 0}.{os.getpid()}.json.gz"

    def open(self) -> None:
        """Start recording on all threads that PyTorch can follow."""
        from torch import profiler

        activities = [profiler.ProfilerActivity.CPU]
        if self.cuda:
            activities.append(profiler.ProfilerActivity.CUDA)
        self.profiler = profiler.profile(
            activities=activities,
            record_shapes=True,
            with_stack=self.stacks,
            profile_memory=self.memory,
            **_without_remark(profiler.profile),
        )
        self.profiler.start()
        self._clock_mark()

    def close(self) -> None:
        """Stop, and write the trace as a whole or not at all."""
        if self.profiler is None:
            return
        profiler, self.profiler = self.profiler, None
        if self.cuda:
            self._wait_for_gpu()
        self._clock_mark()
        profiler.stop()
        partial = self.file.with_name(f".{self.file.name}")
        try:
            profiler.export_chrome_trace(os.fspath(partial))
            partial.chmod(0o600)  # names and shapes of the program are its owner's
            partial.replace(self.file)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    @staticmethod
    def _clock_mark() -> None:
        """One instant in both recordings, under one name: ``nvprobe clock <unix ns>``."""
        from torch.profiler import record_function

        from nvprobe.instrumentation import emitter

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
