"""The cache of the allocator is emptied every step, so memory is taken from the driver anew.

Advised: leave the cache alone.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
width = chosen.size(4096, 64)
layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(12))
layers = layers.to(chosen.device, chosen.dtype)
batch = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)

for x in measure(endless(batch), chosen):
    with phase("forward"), torch.no_grad():
        outputs = [x]
        for layer in layers:
            outputs.append(torch.relu(layer(outputs[-1])))
    with phase("cleanup"):
        del outputs
        if not chosen.fixed and chosen.device == "cuda":
            torch.cuda.empty_cache()  # planted: cudaFree now, cudaMalloc in the next step
