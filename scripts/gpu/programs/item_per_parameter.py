"""Training that reads the norm of the gradient of each of 72 parameters in every step."""

import torch
from clock import DEVICE, SCALE, run
from torch import nn

WIDTH = 512 // SCALE
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(36)]
model = nn.Sequential(*layers).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, WIDTH, device=DEVICE)


def step() -> None:
    """One training step and 72 waits."""
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    norms = [one.grad.norm().item() for one in model.parameters() if one.grad is not None]
    if sum(norms) > 0:
        optimizer.step()


run(step)
