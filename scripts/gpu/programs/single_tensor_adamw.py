"""Training of 24 small blocks with an AdamW that updates its 288 parameters one by one."""

import torch
from clock import DEVICE, SCALE, run
from torch import nn

WIDTH = 256 // SCALE


class Block(nn.Module):
    """Six pairs of weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Six layers around a residual."""
        y = x
        for layer in self.layers:
            y = nn.functional.gelu(layer(y))
        return x + y


model = nn.Sequential(*(Block() for _ in range(24))).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=False)
x = torch.randn(64, WIDTH, device=DEVICE)


def step() -> None:
    """One training step."""
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


run(step)
