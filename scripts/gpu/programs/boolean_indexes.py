"""Training whose every step picks rows by eight boolean indexes."""

import torch
from clock import DEVICE, SCALE, run
from torch import nn

x = torch.randn(8192 // SCALE, 512 // SCALE, device=DEVICE)
blocks = nn.ModuleList(nn.Linear(512 // SCALE, 512 // SCALE) for _ in range(8)).to(DEVICE)
optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)


class Net(nn.Module):
    """Each block sees the rows whose first value is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Eight waits for the number of rows."""
        loss = x.new_zeros(())
        for block in self.blocks:
            y = block(x)
            loss = loss + y[y[:, 0] > 0].pow(2).mean()
        return loss


model = Net()


def step() -> None:
    """One training step."""
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()


run(step)
