"""A print inside a compiled model splits it: the host re-enters Python between the parts.

Advised: take the print out (fullgraph=True finds such lines), so that one graph remains.
"""

from __future__ import annotations

import sys

import torch
from common import endless, measure, options, phase

chosen = options(warmup=6)
width = chosen.size(2048, 64)


class Block(torch.nn.Module):
    """One layer of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.linear(x))
        if not chosen.fixed:
            print(end="", file=sys.stderr)  # planted: Dynamo cannot trace this
        return x + 1.0


model = torch.nn.Sequential(*(Block() for _ in range(8)))
model = model.to(chosen.device, chosen.dtype)
compiled = torch.compile(model, backend=chosen.backend)
batch = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)

for x in measure(endless(batch), chosen):
    with phase("forward"), torch.no_grad():
        compiled(x)
