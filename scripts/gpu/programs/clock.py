"""A loop of training steps that tells its own times, for the programs that measure profiling cost.

The clock is read with the GPU idle at both ends of a group of steps, so it holds for programs that
the host and that the GPU holds up. Groups ``before`` lie well before the profiled window, groups
``window`` inside it without its first step, which pays for the profiler's start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 1 if DEVICE == "cuda" else 16
"""What sizes are divided by where a program is only tried out."""
WINDOW = (60, 80)
GROUPS = [("before", first, first + 10) for first in (10, 20, 30, 40)]
GROUPS += [("window", first, first + 9) for first in (61, 70)]


def run(step: Callable[[], object]) -> None:
    """Run 82 steps and print milliseconds a step of each group as JSON.

    With ``PROGRAM_PROFILES`` set the program opens the profiler's window itself; with
    ``PROGRAM_TURNS`` it runs without nvprobe and with it in turns instead (`in_turns`).
    """
    if os.environ.get("PROGRAM_TURNS"):
        import in_turns

        in_turns.run(step, synchronize)
        return
    starts = {first: name for name, first, _ in GROUPS}
    ends = {end: end - first for _, first, end in GROUPS}
    profiles = DEVICE == "cuda" and bool(os.environ.get("PROGRAM_PROFILES"))
    told: dict[str, list[float]] = {"before": [], "window": []}
    name, begin = "", 0.0
    for index in range(WINDOW[1] + 2):
        if index in ends:
            synchronize()
            told[name].append(round(1000 * (time.perf_counter() - begin) / ends[index], 4))
        if profiles and index == WINDOW[0]:
            torch.cuda.profiler.start()
        if profiles and index == WINDOW[1]:
            synchronize()
            torch.cuda.profiler.stop()
        if index in starts:
            synchronize()
            name, begin = starts[index], time.perf_counter()
        step()
    print(json.dumps(told), flush=True)


def synchronize() -> None:
    """Wait for the GPU where there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
