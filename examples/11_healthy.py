"""Nothing planted: large bfloat16 products, data on the device, no waits. The report says so."""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
width = chosen.size(8192, 64)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
model = model.to(chosen.device, chosen.dtype)
batch = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)

for x in measure(endless(batch), chosen):
    with phase("forward"), torch.no_grad():
        model(x)
