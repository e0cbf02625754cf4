"""Samples are decoded by the training process itself, so the GPU waits for every batch.

Advised: decode in worker processes.
"""

from __future__ import annotations

import time

import torch
from common import measure, options, phase
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):  # type: ignore[type-arg]
    """Stands for a data set whose samples take half a millisecond to decode."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:  # planted: runs in the training process
        time.sleep(0.0005)
        return torch.full((3, 64, 64), float(index % 7))


def main() -> None:
    chosen = options()
    workers = (
        {"num_workers": chosen.size(12, 2), "persistent_workers": True, "prefetch_factor": 4}
        if chosen.fixed
        else {}
    )
    pinned = chosen.device == "cuda"
    loader = DataLoader(Images(), batch_size=32, pin_memory=pinned, **workers)
    width = chosen.size(8192, 64)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, width), torch.nn.ReLU(),
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10),
    ).to(chosen.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for images in measure(loader, chosen):
        with phase("copy"):
            x = images.to(chosen.device, non_blocking=True)
        with phase("forward"):
            loss = model(x).square().mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
