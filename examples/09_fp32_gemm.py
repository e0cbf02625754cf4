"""Matrix products in FP32 run beside the tensor cores.

Advised: TF32 (torch.set_float32_matmul_precision("high")) or bfloat16.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
if chosen.fixed:
    torch.set_float32_matmul_precision("high")
width = chosen.size(4096, 64)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(chosen.device)
batch = torch.randn(width, width, device=chosen.device)

for x in measure(endless(batch), chosen):
    with phase("forward"), torch.no_grad():
        model(x)  # planted: products of FP32 weights
