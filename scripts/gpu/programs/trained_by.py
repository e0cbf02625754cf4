"""One small transformer trained by Lightning, by the Trainer of transformers, or with Accelerate.

    trained_by.py lightning|trainer|accelerate [--record FOLDER] [--first N] [--steps N]
                  [--width N]

``--record``: five steps from step ``--first`` on are recorded in place. Of 24 steps an evaluation
and a checkpoint between two epochs lie in this window. Without a GPU it runs on the CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, TOKENS, CLASSES = 16, 128 if torch.cuda.is_available() else 4, 8


class Classifier(nn.Module):
    """A transformer encoder with a head; gives a dictionary, as transformers' own models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.head(self.encoder(inputs).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Samples(Dataset[dict[str, Any]]):
    """As many samples as a program needs, the same in every run."""

    def __init__(self, count: int, width: int) -> None:
        self.inputs = torch.randn(BATCH, TOKENS, width, generator=torch.Generator().manual_seed(0))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"inputs": self.inputs[index % BATCH], "labels": index % CLASSES}


def by_lightning(given: argparse.Namespace, folder: str) -> None:
    """Lightning: a module, a validation and ModelCheckpoint after each of two epochs."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier(given.width)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("validation", self.model(**batch)["loss"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    callbacks = []
    if given.record:
        from nvprobe.integrations.lightning import NvprobeCallback

        callbacks.append(NvprobeCallback(given.window, given.record))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(
        max_epochs=2, accelerator="auto", devices=1, callbacks=callbacks,
        default_root_dir=folder, **quiet,
    )  # fmt: skip
    train = DataLoader(Samples(given.steps // 2 * BATCH, given.width), BATCH)
    trainer.fit(Module(), train, DataLoader(Samples(2 * BATCH, given.width), BATCH))


def by_trainer(given: argparse.Namespace, folder: str) -> None:
    """transformers: evaluation and a checkpoint after each of two epochs."""
    from transformers import Trainer, TrainingArguments

    callbacks = []
    if given.record:
        from nvprobe.integrations.transformers import NvprobeCallback

        callbacks.append(NvprobeCallback(given.window, given.record))
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=BATCH, eval_strategy="epoch",
        save_strategy="epoch", report_to=[], disable_tqdm=True, logging_steps=5,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    train = Samples(given.steps // 2 * BATCH, given.width)
    evaluated = Samples(2 * BATCH, given.width)
    trainer = Trainer(
        Classifier(given.width), arguments, train_dataset=train, eval_dataset=evaluated,
        callbacks=callbacks,
    )  # fmt: skip
    trainer.train()


def with_accelerate(given: argparse.Namespace, folder: str) -> None:
    """Accelerate: a loop of the program's own, two epochs, each evaluated and saved."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = Classifier(given.width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    train = DataLoader(Samples(given.steps // 2 * BATCH, given.width), BATCH)
    held_out = DataLoader(Samples(2 * BATCH, given.width), BATCH)
    model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
    if given.record:
        from nvprobe.integrations.loops import record_steps

        train = record_steps(train, given.window, given.record)
    for _ in range(2):
        model.train()
        for batch in train:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in held_out:
                model(**batch)
        accelerator.save_state(folder)


PROGRAMS = {"lightning": by_lightning, "trainer": by_trainer, "accelerate": with_accelerate}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--record", default="")
    parser.add_argument("--first", type=int, default=10)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    given.window = (given.first, given.first + 5)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        PROGRAMS[given.program](given, folder)


if __name__ == "__main__":
    main()
