"""An ordinary training loop that knows nothing of nvprobe: the first thing to launch.

    nvprobe launch examples/00_train.py

A small network on a GPU, or on the CPU where there is none. Each step takes a batch from a
DataLoader, runs forward, backward and the optimizer; every fifth one reads the loss, for which the
CPU waits until the GPU has caught up.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Normalise, widen, narrow, add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the shape (batch, width)."""
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm(x))))


def batches(width: int, size: int, count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Random inputs and classes, ``count`` batches of them."""
    inputs = torch.randn(count * size, width)
    classes = torch.randint(10, (count * size,))
    return DataLoader(TensorDataset(inputs, classes), batch_size=size)


def main() -> None:
    """Train for a few steps and print the loss."""
    parser = argparse.ArgumentParser(description="A small training loop.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(Block(chosen.width) for _ in range(3)), nn.Linear(chosen.width, 10))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (inputs, classes) in enumerate(batches(chosen.width, 64, chosen.steps)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
