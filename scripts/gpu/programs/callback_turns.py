"""One training with a callback of nvprobe attached and detached in turns, outside of its window.

    callback_turns.py lightning|trainer|accelerate [--seconds S] [--width N]

Groups of steps in one process that follow each other are alike, processes are not. So each round
has a group of each kind, in an order that changes, each from an idle GPU to an idle GPU. Prints as
JSON the nanoseconds of a step of each group, and what the callback itself takes of one: its Python
calls and the time in them, which `sys.setprofile` makes longer. With ``accelerate`` it records two
steps at the end, and prints what a launch took before and after: ns of each of many small groups.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader
from trained_by import BATCH, Classifier, Samples

LEAD, TIMED = 2, 6
NEVER = (10**9, 10**9 + 5)
LAUNCHES, GROUPS = 300, 60
Switch = Callable[[], object]


def idle() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class OwnCalls:
    """Python calls in files of nvprobe, and the time in these alone, while it is set."""

    def __init__(self) -> None:
        self.calls = self.ns = 0
        self._stack: list[bool] = []
        self._last = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """What `sys.setprofile` calls."""
        now = time.perf_counter_ns()
        if self._stack and self._stack[-1]:
            self.ns += now - self._last
        if event == "call":
            own = "/nvprobe/" in frame.f_code.co_filename
            self.calls += own
            self._stack.append(own)
        elif event == "return" and self._stack:
            self._stack.pop()
        self._last = time.perf_counter_ns()


class Turns:
    """Says at each step of a training which way it goes on, and keeps the times."""

    def __init__(self, attach: Switch, detach: Switch, seconds: float) -> None:
        self.times: dict[str, list[float]] = {"plain": [], "attached": []}
        self.own = OwnCalls()
        self.counted = 0
        self._switch = {"plain": detach, "attached": attach}
        self._order = random.Random(0)
        self._steps = self._plan(seconds)

    def step(self) -> bool:
        """Called where a step begins; whether there is another."""
        return next(self._steps, False)

    def _plan(self, seconds: float) -> Iterator[bool]:
        for _ in range(3 * LEAD):
            yield True
        ways, end = ["plain", "attached"], time.monotonic() + seconds
        while time.monotonic() < end:
            self._order.shuffle(ways)
            for way in ways:
                self._switch[way]()
                for _ in range(LEAD):
                    yield True
                idle()
                begin = time.perf_counter_ns()
                for _ in range(TIMED):
                    yield True
                idle()
                self.times[way].append((time.perf_counter_ns() - begin) / TIMED)
        self._switch["attached"]()
        yield True
        sys.setprofile(self.own)
        for self.counted in range(1, TIMED + 1):
            yield True
        sys.setprofile(None)
        self._switch["plain"]()

    def result(self) -> dict[str, Any]:
        """What is printed."""
        per_step = {"calls": self.own.calls / self.counted, "own_ns": self.own.ns / self.counted}
        return {"turns": self.times, **per_step}


class Followed(Classifier):
    """The model of `trained_by`, whose forward pass is where a step begins."""

    turns: Turns | None = None
    stop: Switch = staticmethod(lambda: None)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        if self.turns is not None and not self.turns.step():
            self.stop()
        return super().forward(inputs, labels)


def by_lightning(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The callback comes to and goes from the list that the trainer calls."""
    import pytorch_lightning as pl

    from nvprobe.integrations.lightning import NvprobeCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Followed(given.width)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(
        max_epochs=-1, accelerator="auto", devices=1, default_root_dir=folder,
        enable_checkpointing=False, **quiet,
    )  # fmt: skip
    module, mine = Module(), NvprobeCallback(NEVER)
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    turns = Turns(
        lambda: mine in callbacks or callbacks.append(mine),
        lambda: mine in callbacks and callbacks.remove(mine),
        given.seconds,
    )
    module.model.turns = turns
    module.model.stop = lambda: setattr(trainer, "should_stop", True)
    trainer.fit(module, DataLoader(Samples(10**6, given.width), BATCH))
    return turns.result()


def by_trainer(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The callback is added to and removed from the trainer."""
    from transformers import Trainer, TrainingArguments

    from nvprobe.integrations.transformers import NvprobeCallback

    arguments = TrainingArguments(
        folder, max_steps=10**6, per_device_train_batch_size=BATCH, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no",
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    model, mine = Followed(given.width), NvprobeCallback(NEVER)
    trainer = Trainer(model, arguments, train_dataset=Samples(10**6, given.width))
    callbacks = trainer.callback_handler.callbacks
    model.turns = Turns(
        lambda: mine in callbacks or trainer.add_callback(mine),
        lambda: mine in callbacks and trainer.remove_callback(mine),
        given.seconds,
    )
    model.stop = lambda: setattr(trainer.control, "should_training_stop", True)
    trainer.train()
    return model.turns.result()


def with_accelerate(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The loop iterates the loader, or what `record_steps` made of it."""
    from accelerate import Accelerator

    from nvprobe.integrations.loops import RecordedLoader, record_steps

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = Classifier(given.width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = DataLoader(Samples(10**6, given.width), BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    plain = iter(loader)
    source, kept = plain, None

    def attach() -> None:
        nonlocal source, kept
        kept = record_steps(plain, NEVER)
        source = iter(kept)

    def detach() -> None:
        nonlocal source, kept
        if isinstance(kept, RecordedLoader) and kept._count is not None:
            kept._count.stop()
        source, kept = plain, None

    def train(batches: Iterator[Any]) -> None:
        batch = next(batches)
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()

    turns = Turns(attach, detach, given.seconds)
    while turns.step():
        train(source)
    before = launches()
    recorded = iter(record_steps(plain, (4, 6), f"{folder}/run"))
    for _ in range(10):
        train(recorded)
    return {**turns.result(), "launch_ns": {"before": before, "after": launches()}}


def launches() -> list[float]:
    """What the host takes for a launch, group by group; the GPU keeps up."""
    x = torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu")
    times = []
    for _ in range(GROUPS + 5):
        idle()
        begin = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            x.add_(1)
        times.append((time.perf_counter_ns() - begin) / LAUNCHES)
    return times[5:]


PROGRAMS = {"lightning": by_lightning, "trainer": by_trainer, "accelerate": with_accelerate}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", help="separated by commas")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--width", type=int, default=256)
    given = parser.parse_args()
    logging.getLogger("nvprobe").setLevel(logging.ERROR)  # that its window was not reached
    torch.manual_seed(0)
    for program in given.programs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = PROGRAMS[program](given, folder)
        print(json.dumps({"program": program, **found}), flush=True)


if __name__ == "__main__":
    main()
