"""Attention written out: the scores of all pairs go to memory and back several times.

Advised: scaled_dot_product_attention.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
length = chosen.size(2048, 32)
shape = (4, 16, length, 64)
query, key, value = (torch.randn(shape, device=chosen.device, dtype=chosen.dtype) for _ in range(3))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if chosen.fixed:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
    scores = q @ k.transpose(-2, -1) / 8.0  # planted: scores in memory
    return torch.softmax(scores, dim=-1) @ v


for q in measure(endless(query), chosen):
    with phase("attention"), torch.no_grad():
        for _ in range(4):
            q = attention(q, key, value)
