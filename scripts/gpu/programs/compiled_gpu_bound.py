"""A compiled model that keeps the GPU busy for about a tenth of a second a step."""

import torch
from clock import DEVICE, SCALE, run
from torch import nn

WIDTH, ROWS = 4096 // SCALE, 4096 // SCALE
layers = [
    nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    for _ in range(2)
]
model = torch.compile(
    nn.Sequential(*layers).to(DEVICE), backend="inductor" if DEVICE == "cuda" else "eager"
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(ROWS, WIDTH, device=DEVICE)


def step() -> None:
    """One training step."""
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


run(step)
