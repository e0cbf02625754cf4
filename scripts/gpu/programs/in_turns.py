"""The loop of `clock`, without nvprobe and with it in turns, in one process that nsys profiles.

Processes of the same program differ by a tenth; groups of steps in one that follow each other do
not. Each round runs every way once, in an order that changes; a way is a function that puts
nvprobe into its state, steps that are not timed, and steps that are.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import time
from collections.abc import Callable

import torch

from nvprobe.instrumentation import (
    awake,
    discovery,
    emitter,
    forwards,
    instrument,
    sidecar,
    windows,
)

LEAD, TIMED = 3, 3
"""Steps after a change that are not timed: as many as are marked in full; and those that are. Few,
so that the two ways of a pair lie near each other, and many pairs fit into a minute."""
PARTS = ("autograd", "syncs", "phases", "allocator", "modules")
"""Parts that are left out one by one, to see what each of them costs in the window."""


def run(step: Callable[[], object], synchronize: Callable[[], None]) -> None:
    """Run rounds for ``PROGRAM_TURNS`` seconds before the window and in it; print times."""
    gc.freeze()  # torch's own objects are not looked through in the midst of a group
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:4])
    seconds = [float(one) for one in os.environ["PROGRAM_TURNS"].split(",")]
    for change in (awake.wake, awake.sleep):  # models are found, and everything is warm
        change()
        for _ in range(2 * LEAD):
            step()
    found = {"before": rounds(step, synchronize, [plain, asleep], seconds[0])}
    say(found)
    profiles = torch.cuda.is_available()
    if profiles:
        torch.cuda.profiler.start()
    found["window"] = rounds(step, synchronize, [plain, asleep, recorded], seconds[1])
    say(found)
    ways = [recorded, *(without(part) for part in PARTS)]
    found["parts"] = rounds(step, synchronize, ways, seconds[2])
    if profiles:
        synchronize()
        torch.cuda.profiler.stop()
    say(found)


def say(found: dict[str, dict[str, list[float]]]) -> None:
    """All times so far: the last line counts, also where the process is ended before its end."""
    print(json.dumps({"turns": found}), flush=True)


def rounds(
    step: Callable[[], object],
    synchronize: Callable[[], None],
    ways: list[Callable[[], None]],
    seconds: float,
) -> dict[str, list[float]]:
    """Milliseconds a step of each way, round by round."""
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    mixed, end = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < end:
        mixed.shuffle(ways)
        for way in ways:
            way()
            gc.collect()  # what a change leaves behind is no cost of the steps after it
            for _ in range(LEAD):
                step()
            synchronize()
            begin = time.perf_counter()
            for _ in range(TIMED):
                step()
            synchronize()
            times[way.__name__].append(1000 * (time.perf_counter() - begin) / TIMED)
    return times


def parts(*, installed: bool, left_out: str = "") -> None:
    """Put nvprobe's hooks in place or take them away."""
    for name in instrument._PARTS:
        module = importlib.import_module(f"nvprobe.instrumentation.{name}")
        (module.install if installed and name != left_out else module.uninstall)()
    heard = not emitter.silent() or sidecar.is_open()  # else `instrument` looks for no models
    if installed and heard and left_out != "modules":
        discovery.start()
    else:
        discovery.stop()
        forwards.unwrap_classes()


def plain() -> None:
    """No nvprobe."""
    awake.sleep()
    parts(installed=False)


def asleep() -> None:
    """As before a window."""
    awake.sleep()
    parts(installed=True)


def recorded() -> None:
    """As in a window."""
    asleep()
    windows._start(lambda: None)()  # what a window's begin does to the instrumentation


def without(part: str) -> Callable[[], None]:
    """As in a window, one part left out."""

    def way() -> None:
        asleep()
        parts(installed=True, left_out=part)
        windows._start(lambda: None)()

    way.__name__ = f"without {part}"
    return way
