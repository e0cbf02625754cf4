"""A Lightning callback that records some steps of a training in place."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from nvprobe.integrations.step_recorder import StepRecorder

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """``Callback`` of the package that the program uses; both names may be installed."""
    names = sorted(_PACKAGES, key=lambda name: name not in sys.modules)
    for name in names[:-1]:
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    return import_module(names[-1]).Callback


class NvprobeCallback(_callback()):  # type: ignore[misc]
    """``Trainer(callbacks=[NvprobeCallback(steps=(10, 15))])`` records steps 10 to 14 of each rank.

    A step is one of the optimizer, counted from 0 in this process, whatever a checkpoint says.

    Args:
        steps: The first step, and the one after the last.
        output: Where to; see `StepRecorder`.

    """

    def __init__(
        self,
        steps: tuple[int, int] = (10, 15),
        output: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.recorder = StepRecorder(steps, output)
        self._done = 0
        self._global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._global_step = trainer.global_step
        self.recorder.boundary(self._done)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step of a batch in which an optimizer has stepped."""
        if self.recorder.over:
            return
        if trainer.global_step != self._global_step or not trainer.optimizers:
            self._global_step = trainer.global_step
            self._done += 1
            self.recorder.boundary(self._done)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Keep what is recorded."""
        self.recorder.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what is recorded."""
        self.recorder.finish()
