"""A check of every layer's output asks the GPU for a number, so the host waits for it each time.

Advised: keep the check on the device and look at it once a step.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
width = chosen.size(4096, 64)
layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(12))
layers = layers.to(chosen.device, chosen.dtype)
batch = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)


@torch.no_grad()
def forward(x: torch.Tensor) -> torch.Tensor:
    bad = torch.zeros((), dtype=torch.bool, device=x.device)
    for layer in layers:
        x = torch.relu(layer(x))
        if chosen.fixed:
            bad |= x[0, 0].isnan()
        elif x[0, 0].isnan():  # planted: the host reads a number from the GPU
            raise RuntimeError("not a number")
    return bad


for x in measure(endless(batch), chosen):
    with phase("forward"):
        bad = forward(x)
assert not bad
