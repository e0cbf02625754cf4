"""Every batch has a length not seen before, and the compiled model is compiled for each anew.

Advised: dynamic=True (or pad batches to a few lengths).
"""

from __future__ import annotations

from itertools import count

import torch
from common import measure, options, phase

chosen = options(warmup=2)
width = chosen.size(1024, 64)
torch._dynamo.config.recompile_limit = 64


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.nn.functional.gelu(x) * 1.5 + 0.5, dim=-1)


compiled = torch.compile(model, backend=chosen.backend, dynamic=chosen.fixed)
data = torch.randn(4096, width, device=chosen.device)
batches = (data[: 256 + 8 * i] for i in count())

for x in measure(batches, chosen):
    with phase("forward"), torch.no_grad():
        compiled(x)  # planted: a new shape each step
