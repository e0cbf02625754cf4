"""Training whose every step copies 512 small pageable tensors to the GPU."""

import torch
from clock import DEVICE, SCALE, run

parts = [torch.randn(1024) for _ in range(512 // SCALE)]
model = torch.nn.Linear(1024, 1).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step() -> None:
    """Copy the parts one by one, then train on their mean."""
    total = torch.zeros(1024, device=DEVICE)
    for part in parts:
        total = part.to(DEVICE)
    optimizer.zero_grad()
    model(total).sum().backward()
    optimizer.step()


run(step)
