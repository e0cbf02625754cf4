#!/usr/bin/env python3
"""Plant waits whose length the program measures itself, to hold nvprobe's figures against.

Capture and compare on a GPU machine:

    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop \
        --export=sqlite -o waits python scripts/gpu/waits_check.py --out measured.json
    nvprobe analyze waits.sqlite --json > analysis.json
    python scripts/gpu/waits_compare.py analysis.json measured.json

Three plants, each in a range of its own name:

* ``planted_sync``: a long kernel, ``item()`` on its result, then host work before the next launch.
  Gaps by CUDA events, the wait by the host's clock.
* ``planted_copy``: a copy from pinned memory that nothing hides, then one beside a kernel.
  Both by CUDA events.
* ``planted_loader``: a loader that sleeps while the GPU has nothing to do. By the host's clock.

Prints the figures as JSON, in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

KERNEL_MS = 2.0
HOST_MS = 1.0
LOADER_MS = 4.0
COPY_BYTES = 256 << 20
Range = torch.cuda.nvtx.range


def spin(milliseconds: float) -> None:
    """Keep the host busy, as Python code would."""
    end = time.perf_counter_ns() + int(milliseconds * 1e6)
    while time.perf_counter_ns() < end:
        pass


def cycles_per_ms() -> int:
    """Clock cycles that the spinning kernel of torch takes for a millisecond here."""
    begin, end = event(), event()
    torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(20_000_000 / begin.elapsed_time(end))


def event() -> torch.cuda.Event:
    """An event that carries a time."""
    return torch.cuda.Event(enable_timing=True)


def nanoseconds(pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> int:
    """Sum of the times between the two events of each pair."""
    return round(sum(begin.elapsed_time(end) for begin, end in pairs) * 1e6)


@contextmanager
def on_host_clock(total: list[int]):
    """Add the time spent inside to ``total[0]``."""
    begin = time.perf_counter_ns()
    yield
    total[0] += time.perf_counter_ns() - begin


def planted_sync(steps: int, kernel: Callable[[], None]) -> dict[str, int]:
    """Every step waits for its kernel; the host work after it leaves the GPU idle."""
    value = torch.ones(1, device="cuda")
    gaps, waited, ended = [], [0], None
    for _ in range(steps):
        begun = event()
        begun.record()
        if ended is not None:
            gaps.append((ended, begun))
        kernel()
        ended = event()
        ended.record()
        with on_host_clock(waited):
            value.item()
        with Range("host_work"):
            spin(HOST_MS)
    torch.cuda.synchronize()
    return {"bubble_ns": nanoseconds(gaps), "wait_ns": waited[0]}


def planted_copy(steps: int, kernel: Callable[[], None]) -> dict[str, int]:
    """A copy in the way of everything, then one beside a kernel on a stream of its own."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    serial, beside = [], []
    for _ in range(steps):
        with Range("serial"):
            serial.append((event(), event()))
            serial[-1][0].record()
            target.copy_(source, non_blocking=True)
            serial[-1][1].record()
        torch.cuda.synchronize()
        with Range("beside"):
            for _ in range(8):
                kernel()
            with torch.cuda.stream(side):
                beside.append((event(), event()))
                beside[-1][0].record()
                target.copy_(source, non_blocking=True)
                beside[-1][1].record()
        torch.cuda.synchronize()
    return {"serial_ns": nanoseconds(serial), "beside_ns": nanoseconds(beside)}


def planted_loader(steps: int, kernel: Callable[[], None]) -> dict[str, int]:
    """The GPU has finished when the loader begins, and waits for all of it."""
    loading = [0]
    for _ in range(steps):
        torch.cuda.synchronize()
        with Range("data"), on_host_clock(loading):
            time.sleep(LOADER_MS / 1e3)
        kernel()
    torch.cuda.synchronize()
    return {"input_ns": loading[0]}


PLANTS = {f.__name__: f for f in (planted_sync, planted_copy, planted_loader)}


def main() -> None:
    """Warm up, plant everything inside the capture window, print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    chosen = parser.parse_args()
    cycles = int(cycles_per_ms() * KERNEL_MS)

    def kernel() -> None:
        torch.cuda._sleep(cycles)

    for plant in PLANTS.values():
        plant(2, kernel)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    measured = {}
    for name, plant in PLANTS.items():
        with Range(name):
            measured[name] = plant(chosen.steps, kernel)
    torch.cuda.profiler.stop()
    text = json.dumps(measured, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
