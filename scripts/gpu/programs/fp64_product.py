"""A product of double precision matrices: few launches, and the GPU holds the program up."""

import torch
from clock import DEVICE, SCALE, run
from torch import nn

WIDTH = 4096 // SCALE
model = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=torch.float64)


def step() -> None:
    """One training step."""
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()


run(step)
