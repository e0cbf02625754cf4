"""What files of pairs share: a table of programs, measured and run by their command line.

A pair is a function that makes one step of a training or inference loop, with a planted cause or
with its fix. Lines that hold the cause end in the comment ``# <- NAME``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import inspect
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BF16 = torch.bfloat16
SCALE = 1 if CUDA else 16
"""Without a GPU the programs only have to run."""
HIDDEN = "_hidden"
"""Ends the name of a program whose fix is not worth making, as other work hides it."""
Step = Callable[[], object]
PAIRS: dict[str, tuple[str, Callable[[bool], Step]]] = {}
"""The cause, and what makes the step, by name."""


def size(full: int, least: int = 2) -> int:
    """``full`` on a GPU, a small part of it elsewhere."""
    return full if CUDA else max(least, full // (4 * SCALE))


def pair(cause: str) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    """Put a program into the table."""

    def add(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
        PAIRS[make.__name__] = (cause, make)
        return make

    return add


def hidden(step: Step) -> Step:
    """The step behind 60 ms of products on an H200, at which the host never waits for the GPU."""
    a = torch.randn(8192 // SCALE, 8192 // SCALE, device=DEVICE, dtype=BF16)
    out = torch.empty_like(a)

    def both() -> None:
        for _ in range(40 if CUDA else 1):
            torch.matmul(a, a, out=out)
        step()

    return both


def made(name: str, fixed: bool) -> Step:
    """The step of a program, or of its twin whose fix is hidden."""
    torch.manual_seed(0)
    step = PAIRS[name.removesuffix(HIDDEN)][1](fixed)
    return hidden(step) if name.endswith(HIDDEN) else step


def marked(name: str) -> list[str]:
    """``file:line`` of the lines that hold the cause."""
    name = name.removesuffix(HIDDEN)
    file = Path(inspect.getfile(PAIRS[name][1]))
    lines = enumerate(file.read_text().splitlines(), 1)
    return [f"{file.name}:{i}" for i, line in lines if line.endswith(f"# <- {name}")]


def wait() -> None:
    """Until the GPU has done everything."""
    if CUDA:
        torch.cuda.synchronize()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Until no other program has the file ``PAIRS_LOCK``: one at a time uses the GPU."""
    path = os.environ.get("PAIRS_LOCK")
    with open(path, "w") if path else contextlib.nullcontext() as file:  # noqa: PTH123
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured(name: str, groups: int = 5, steps: int = 10) -> dict[str, object]:
    """ms per step as it is and fixed, in turns: groups of steps between two synchronizations."""
    made_steps = {fixed: made(name, fixed) for fixed in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(groups + 1):
        for fixed, step in made_steps.items():
            wait()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            wait()
            if turn:  # the first warms up
                times[fixed].append(1e3 * (time.perf_counter() - begin) / steps)
    row: dict[str, object] = {"name": name, "cause": PAIRS[name.removesuffix(HIDDEN)][0]}
    for fixed, key in ((False, "plain"), (True, "fixed")):
        some = times[fixed]
        row[key] = {
            "median": round(statistics.median(some), 4),
            "min": round(min(some), 4),
            "max": round(max(some), 4),
        }
    return row | {"lines": marked(name)}


def main(about: str | None) -> None:
    """The command line of a file of pairs."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all; one may end in {HIDDEN}")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    unknown = {name.removesuffix(HIDDEN) for name in chosen.names} - PAIRS.keys()
    if unknown or not (chosen.measure or chosen.names):
        parser.error(f"NAME is one of {', '.join(PAIRS)}")
    if chosen.measure:
        for name in chosen.names or PAIRS:
            try:
                row = measured(name)
            except Exception as problem:  # one program's fault is a line, not the end
                row = {"name": name, "error": f"{type(problem).__name__}: {problem}"}
            print(json.dumps(row), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        return
    with alone():
        step = made(chosen.names[0], chosen.fixed)
        for _ in range(chosen.steps):
            step()
        wait()
