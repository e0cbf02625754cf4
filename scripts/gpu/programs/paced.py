"""Loops that wait for different things: the GPU, the host, their input, replays of a CUDA graph.

python paced.py KIND [STEPS]; prints {"step_ms": ..., "spread_ms": ...}: elapsed time of groups of
five steps from one idle GPU to the next, the first five left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import nvprobe

KIND, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
GROUP = 5
NODES = 300


def work() -> Callable[[], object]:
    """What a step does."""
    if KIND == "gpu":
        large = torch.randn(4096, 4096, device="cuda", dtype=torch.float64)
        return lambda: [large @ large for _ in range(3)]
    small = torch.zeros(256, device="cuda")
    if KIND == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                small.add_(1)
        return lambda: [graph.replay() for _ in range(10)]
    if KIND == "input":
        return lambda: (time.sleep(0.01), small.add_(1).sum().item())
    return lambda: [small.add_(1) for _ in range(1500)]


def main() -> None:
    """Run the steps and time them in groups."""
    step = work()
    times, begin = [], 0.0
    for index in nvprobe.steps(range(STEPS)):
        if index % GROUP == 0 and "timed" in sys.argv:
            torch.cuda.synchronize()
            now = time.perf_counter()
            times.append((now - begin) * 1000 / GROUP)
            begin = time.perf_counter()
        step()
    torch.cuda.synchronize()
    kept = times[2:] or [0.0]
    spread = (max(kept) - min(kept)) / 2
    print(json.dumps({"step_ms": statistics.median(kept), "spread_ms": spread}))


if __name__ == "__main__":
    main()
