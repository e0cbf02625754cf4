"""The program of the tutorial: unpack pictures and learn their colors.

It knows nothing of nvprobe. ``--workers 8`` is the change that the tutorial ends with.
"""

from __future__ import annotations

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):  # type: ignore[type-arg]
    """Packed pictures of one color each; the color is the class."""

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side
        self.packed = [
            zlib.compress(bytes([25 * color]) * (3 * side * side)) for color in range(10)
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        color = index % 10
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.packed[color])), dtype=torch.uint8)
        picture = pixels.view(3, self.side, self.side) / 255
        return (picture + 0.1 * torch.randn_like(picture)).clamp(0, 1), color


def network() -> nn.Sequential:
    """Three convolutions and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def main() -> None:
    """Train for some steps and print the loss."""
    parser = argparse.ArgumentParser(description="A small image classifier.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--side", type=int, default=128, help="width and height of a picture")
    parser.add_argument("--workers", type=int, default=0, help="processes that load pictures")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pictures = Pictures(64 * chosen.steps, chosen.side)
    loader = DataLoader(pictures, batch_size=64, num_workers=chosen.workers)
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (images, colors) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), colors.to(device))
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
