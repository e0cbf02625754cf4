"""Record some steps of a loop that the program has itself: Accelerate, torchvision, timm, plain."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from nvprobe.instrumentation.steps import Steps
from nvprobe.integrations.step_recorder import StepRecorder

Item = TypeVar("Item")


def record_steps(
    loader: Iterable[Item],
    steps: tuple[int, int] = (10, 15),
    output: str | os.PathLike[str] | None = None,
) -> RecordedLoader[Item]:
    """Record steps 10 to 14 of the loops over a loader; gives the loader, to be iterated instead.

    Wrap it once, before the loop over epochs; with Accelerate what ``prepare`` returned. A step is
    one of the optimizer, or a batch where gradients are off, counted from 0 over all epochs.

    Args:
        loader: Anything that can be iterated; its length and attributes stay reachable.
        steps: The first step, and the one after the last.
        output: Where to; see `StepRecorder`.

    """
    return RecordedLoader(loader, StepRecorder(steps, output))


class RecordedLoader(Steps[Item]):
    """What `record_steps` returns: iterate it like the loader."""

    def __init__(self, loader: Iterable[Item], recorder: StepRecorder) -> None:
        super().__init__(loader)
        self.recorder = recorder
        self._count = None if recorder.over else _Count()

    def __iter__(self) -> Iterator[Item]:
        if self._count is None or self.recorder.over:
            return iter(self.loader)
        return self._followed(self._count)

    def _followed(self, count: _Count) -> Iterator[Item]:
        """The loader's batches; before each the recorder hears how many steps have ended."""
        recorder = self.recorder
        iterator = iter(self.loader)
        while True:
            recorder.boundary(count.ended())
            if recorder.over:
                count.stop()
                yield from iterator
                return
            try:
                item = next(iterator)
            except StopIteration:
                break
            count.given = True
            yield item
        if count.done >= recorder.last:
            recorder.finish()
            count.stop()


class _Count:
    """Steps that have ended, by the first optimizer that steps."""

    def __init__(self) -> None:
        self.done = 0
        self.given = False
        """Whether the loop has had a batch since the last step."""
        self._stepped = False
        self._leader: weakref.ref[Any] | None = None
        self._hook = register_optimizer_step_post_hook(self._optimizer_stepped)

    def ended(self) -> int:
        """How many there are where a batch is about to be asked for."""
        if self.given and (self._stepped or not torch.is_grad_enabled()):
            self.done += 1
            self.given = self._stepped = False
        return self.done

    def _optimizer_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._leader is None or self._leader() is None:
            self._leader = weakref.ref(optimizer)
        self._stepped |= self._leader() is optimizer

    def stop(self) -> None:
        """Count no longer."""
        self._hook.remove()
