"""A callback for the Trainer of transformers that records some steps of a training in place."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from nvprobe.integrations.step_recorder import StepRecorder


class NvprobeCallback(TrainerCallback):  # type: ignore[misc]
    """``Trainer(…, callbacks=[NvprobeCallback(steps=(10, 15))])`` records steps 10 to 14 of a rank.

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
        self.recorder = StepRecorder(steps, output)
        self._before = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self._before = state.global_step
        self.recorder.boundary(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step of the optimizer."""
        if not self.recorder.over:
            self.recorder.boundary(state.global_step - self._before)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep what is recorded."""
        self.recorder.finish()
