"""Loops that wait for different things: the GPU, the host, their input, replays of a CUDA graph.

python paced.py KIND [STEPS]; prints {"step_ms": ..., "spread_ms": ...}: elapsed time of groups of
five steps from one idle GPU to the next, the first ten left out. Before the first step the same
work runs for `WARM_S`, as step 0. The GPU is kept busy by its memory, since the clock of one that
draws its full power follows every pause.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from clock import DEVICE, SCALE, synchronize

import nvprobe

KIND, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
GROUP = 5
NODES = 300
GRAPHS = {"graph": (256, 10), "large graph": (2**23, 1)}
"""Numbers that each kernel adds to, the smallest kernels or some of 15 µs, and replays a step."""
WARM_S = 1.5


def work() -> Callable[[], object]:
    """What a step does."""
    if KIND == "gpu":
        large = torch.zeros(2**28 // SCALE**2, device=DEVICE)  # a product would be held by power
        return lambda: [large.add_(1) for _ in range(14)]
    small = torch.zeros(256, device=DEVICE)
    if KIND in GRAPHS:
        size, replays = GRAPHS[KIND]
        given, graph = torch.zeros(size, device=DEVICE), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                given.add_(1)
        return lambda: [graph.replay() for _ in range(replays)]
    if KIND == "input":
        return lambda: (time.sleep(0.01), small.add_(1).sum().item())
    return lambda: [small.add_(1) for _ in range(1500)]


def main() -> None:
    """Run the steps and time them in groups."""
    step = work()
    with nvprobe.step():  # one step: else replays of a graph would be taken for steps
        end = time.perf_counter() + WARM_S
        while time.perf_counter() < end:
            step()
            synchronize()
    times, begin = [], 0.0
    for index in nvprobe.steps(range(STEPS)):
        if index % GROUP == 0 and "timed" in sys.argv:
            synchronize()
            now = time.perf_counter()
            times.append((now - begin) * 1000 / GROUP)
            begin = time.perf_counter()
        step()
    synchronize()
    kept = times[2:] or [0.0]
    spread = (max(kept) - min(kept)) / 2
    print(json.dumps({"step_ms": statistics.median(kept), "spread_ms": spread}))


if __name__ == "__main__":
    main()
