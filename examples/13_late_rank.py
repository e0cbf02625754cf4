"""Rank 1 reads its samples from a slow disk; the others wait for its gradients in every step.

    nvprobe launch --steps 5:15 torchrun --nproc-per-node 2 examples/13_late_rank.py

Advised: see why rank 1 has to wait for its data. ``--fixed`` gives it the disk of the others.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    """Random rows; each takes ``seconds`` to read."""

    def __init__(self, width: int, seconds: float) -> None:
        self.width, self.seconds = width, seconds

    def __len__(self) -> int:
        return 20 * 32

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((self.width,), index / len(self))


def main() -> None:
    parser = argparse.ArgumentParser(description="Two ranks, one of which is late.")
    parser.add_argument("--fixed", action="store_true", help="no rank has a slow disk")
    fixed = parser.parse_args().fixed
    gpu = torch.cuda.is_available()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    torch.manual_seed(0)
    width = 4096 if gpu else 256
    layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model = DistributedDataParallel(layers.to(device), device_ids=[rank] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    slow = 0.001 if rank == 1 and not fixed else 0.0  # planted: a millisecond for each sample
    for samples in DataLoader(Samples(width, slow), batch_size=32):
        optimizer.zero_grad()
        model(samples.to(device)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
