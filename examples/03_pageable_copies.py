"""Batches lie in ordinary memory, which the driver must copy once more, while the host waits.

Advised: pinned memory and non_blocking=True.
"""

from __future__ import annotations

from itertools import cycle

import torch
from common import measure, options, phase

chosen = options()
width = chosen.size(4096, 64)
batches = [torch.randn(width, width) for _ in range(2)]
if chosen.fixed and chosen.device == "cuda":
    batches = [batch.pin_memory() for batch in batches]
weight = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)

for batch in measure(cycle(batches), chosen):
    with phase("copy"):
        x = batch.to(chosen.device, non_blocking=chosen.fixed)  # planted: pageable source
    with phase("forward"), torch.no_grad():
        x = x.to(chosen.dtype)
        for _ in range(12):
            x = torch.mm(x, weight)
