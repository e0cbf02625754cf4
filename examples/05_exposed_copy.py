"""The next batch is copied on a stream of its own, but the compute waits for it at once.

Advised: start the copy a step ahead, so that it runs beside the compute.
"""

from __future__ import annotations

from itertools import cycle

import torch
from common import measure, options, phase

chosen = options()
gpu = chosen.device == "cuda"
width = chosen.size(6144, 64)
batches = [torch.randn(width, width, dtype=chosen.dtype) for _ in range(2)]
batches = [batch.pin_memory() for batch in batches] if gpu else batches
weight = torch.randn(width, width, device=chosen.device, dtype=chosen.dtype)
side = torch.cuda.Stream() if gpu else None
landing = [torch.empty(width, width, device=chosen.device, dtype=chosen.dtype) for _ in range(2)]


def upload(batch: torch.Tensor, into: torch.Tensor) -> None:
    if side is None:
        into.copy_(batch)
        return
    side.wait_stream(torch.cuda.current_stream())  # the buffer's last reader
    with torch.cuda.stream(side):
        into.copy_(batch, non_blocking=True)


def wait() -> None:
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)


current, following = landing
upload(batches[0], current)
wait()
for batch in measure(cycle(batches), chosen):
    with phase("copy"):
        upload(batch, following)
        if not chosen.fixed:
            wait()  # planted: nothing can run beside the copy
    with phase("forward"), torch.no_grad():
        x = current if chosen.fixed else following
        for _ in range(8):
            x = torch.mm(x, weight)
    if chosen.fixed:
        wait()
    current, following = following, current
