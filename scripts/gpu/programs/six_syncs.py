"""Eager training whose every step waits for the GPU on six lines."""

import torch
from net import batches, timed, trainer, transformer

train = trainer(transformer())
seen: list[object] = []


def step(x: torch.Tensor, classes: torch.Tensor) -> None:
    """A training step and six ways to wait without saying so."""
    loss = train(x, classes)
    values = x[:, 0, 0]
    seen.append(loss.item())  # sync
    seen.append(values.nonzero())  # sync
    seen.append(values[values > 0])  # sync
    seen.append(values.cpu())  # sync
    seen.append(values[:4].tolist())  # sync
    if values.sum() > 0:  # sync
        seen.clear()


timed(batches(), step)
