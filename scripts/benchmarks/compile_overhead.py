#!/usr/bin/env python3
"""How much longer torch.compile takes under nvprobe: one JSON line.

    python scripts/benchmarks/compile_overhead.py [--seconds 120] [--blocks 3] [--calls]

Three processes take turns (see ``turns.py``), each compiling a new small transformer forward and
backward with empty caches, on the CPU: ``plain`` without nvprobe, ``rooms`` with what concerns
compiled code alone (ranges of graphs, manifests, reasons), ``instrumented`` with all of
``nvprobe.instrument()`` and a sidecar. The generated C++ is not compiled: what is measured is the
processor time of torch's own work (Dynamo, AOTAutograd, Inductor, its caches), which is all that
nvprobe can add to; a real compilation takes several times as long, so this is the strictest view.

``--calls`` counts the calls of functions, Python's and C's, that one compilation makes instead of
timing it. A count is the same under any load, where seconds on a shared machine spread by a tenth.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import Worker, interval, serve, take_turns

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("plain", "rooms", "instrumented")


def instrument(variant: str) -> None:
    """What the variant does before torch is imported."""
    if variant == "instrumented":
        import nvprobe

        nvprobe.instrument(children=False)
    elif variant == "rooms":
        from nvprobe.instrumentation import autograd, collectives, compiled, graphs, sidecar

        sidecar.open()
        for room in (compiled, graphs, autograd, collectives):
            room.install()


def network(blocks: int) -> tuple[Any, Any]:
    """A small transformer and a batch."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
            x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v))
            return x + self.fc2(nn.functional.gelu(self.fc1(self.ln2(x))))

    return nn.Sequential(*(Block(32) for _ in range(blocks))), torch.randn(2, 16, 32)


def leave_cpp_uncompiled() -> None:
    """Let generated kernels be functions that do nothing: their results are never looked at."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.cpp_pybinding = lambda *_: lambda *_: None  # type: ignore[method-assign]


def compile_once(blocks: int, *, calls: bool = False) -> dict[str, float]:
    """Seconds of processor time of one compilation with empty caches, or its ``calls``."""
    import torch
    from torch._inductor import utils

    empty: Callable[[], Any] = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    torch.compiler.reset()
    net, x = network(blocks)
    with empty():
        run = torch.compile(net)
        gc.collect()
        if calls:
            return {"calls": count_calls(lambda: run(x).sum().backward())}
        start = time.process_time_ns()
        run(x).sum().backward()
        return {"cpu_s": (time.process_time_ns() - start) / 1e9}


def count_calls(body: Callable[[], object]) -> int:
    """How many functions ``body`` calls."""
    profile = cProfile.Profile()
    profile.runcall(body)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def work(variant: str, blocks: int) -> None:
    """Be a worker; the first compilation imports the compiler and is not counted."""
    instrument(variant)
    import torch

    torch.set_num_threads(1)
    leave_cpp_uncompiled()
    serve(lambda question: compile_once(blocks, **question))


def start(variant: str, blocks: int, scratch: Path) -> Worker:
    """A worker with one thread and a sidecar of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NV")}
    environment = kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")])),
        "NVPROBE_SIDECAR": str(scratch / variant),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # found out by compiling C++ with torch's headers else
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--blocks", str(blocks)]
    return Worker([*command, "--worker", variant], environment)


def all_at_once(workers: dict[str, Worker], **question: Any) -> dict[str, list[dict[str, float]]]:
    """Each worker's answer, where none of them is timed."""
    for worker in workers.values():
        worker.tell(**question)
    return {name: [worker.answer()] for name, worker in workers.items()}


def main() -> None:
    """Take turns; the median of the ratios to plain, with its confidence interval."""
    parser = argparse.ArgumentParser(description="Measure what nvprobe adds to a compilation.")
    parser.add_argument("--seconds", type=float, default=120, help="of turns")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--calls", action="store_true", help="count calls of one compilation")
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.blocks)
        return
    with tempfile.TemporaryDirectory() as folder:
        workers = {name: start(name, options.blocks, Path(folder)) for name in VARIANTS}
        all_at_once(workers)  # warms up
        all_at_once(workers)
        if options.calls:
            rounds = all_at_once(workers, calls=True)
        else:
            rounds = take_turns(workers, {}, options.seconds)
        for worker in workers.values():
            worker.close()
    if options.calls:
        print(json.dumps({name: [one["calls"] for one in few] for name, few in rounds.items()}))
        return
    times = {name: [one["cpu_s"] for one in answers] for name, answers in rounds.items()}
    report: dict[str, Any] = {"plain_cpu_s": round(statistics.median(times["plain"]), 3)}
    for name in VARIANTS[1:]:
        ratios = [ours / plain for plain, ours in zip(times["plain"], times[name], strict=True)]
        report[name] = [round(one, 4) for one in interval(ratios)]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
