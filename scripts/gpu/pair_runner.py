"""What files of pairs share: a table of programs, measured and run by their command line.

A program is a function that makes one step of a training or inference loop, as it is or with one
change. A change is named by the kind of finding that advises it, and does what that finding says:
no more, no less. The first of them undoes the planted cause; the others are what else somebody
would try. Lines that hold the planted cause end in the comment ``# <- NAME``.
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
from typing import Any, NamedTuple

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BF16 = torch.bfloat16
SCALE = 1 if CUDA else 16
"""Without a GPU the programs only have to run."""
HIDDEN = "_hidden"
"""Ends the name of a program whose fix is not worth making, as other work hides it."""
AS_IT_IS = ""
"""No change."""
Step = Callable[[], object]
Part = Callable[[Any], Any]
"""Of a step: gets what the part before it returned."""


class Program(NamedTuple):
    """What makes the step, and the changes that it knows: kinds of findings."""

    make: Callable[[str], Step]
    changes: tuple[str, ...]
    file: Path


PROGRAMS: dict[str, Program] = {}
"""By name."""


def size(full: int, least: int = 2) -> int:
    """``full`` on a GPU, a small part of it elsewhere."""
    return full if CUDA else max(least, full // (4 * SCALE))


def changes(*kinds: str) -> Callable[[Callable[[str], Step]], Callable[[str], Step]]:
    """Put a program into the table: its function gets the kind of one change, or ``AS_IT_IS``."""

    def add(make: Callable[[str], Step]) -> Callable[[str], Step]:
        PROGRAMS[make.__name__] = Program(make, kinds, Path(inspect.getfile(make)))
        return make

    return add


def pair(cause: str) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    """Put a program with one change into the table: its function gets whether it is fixed."""

    def add(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
        file = Path(inspect.getfile(make))
        PROGRAMS[make.__name__] = Program(lambda change: make(bool(change)), (cause,), file)
        return make

    return add


def graphs(*parts: Part) -> tuple[Part, ...]:
    """Parts of a step as a CUDA graph each: between them the host may read or upload.

    A part gets what the part before it returned, the first one None. They run in this order only,
    as they share memory. Three steps before, on a stream of their own, make what is made once;
    nothing of these may be kept, as gradients would go back to their stream.
    """
    if not CUDA:
        return parts
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            given: Any = None
            for part in parts:
                given = part(given)
    torch.cuda.current_stream().wait_stream(aside)
    given, pool, captured = None, torch.cuda.graph_pool_handle(), []
    with torch.cuda.stream(torch.cuda.current_stream()):  # back to it where a capture fails, too
        for part in parts:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                given = part(given)
            captured.append(replays(graph, part, given))
    return tuple(captured)


def replays(graph: torch.cuda.CUDAGraph, part: Part, made: Any) -> Part:
    """A part that replays a graph, and returns what was made while it was captured.

    It keeps the part that was captured, as a graph does not keep the tensors that it reads.
    """

    def replayed(_: Any, kept: Part = part) -> Any:
        graph.replay()
        return made

    return replayed


def graphed(step: Step) -> Step:
    """The whole step as one CUDA graph."""
    (whole,) = graphs(lambda _: step())
    return lambda: whole(None)


def hidden(step: Step) -> Step:
    """The step behind 60 ms of products on an H200, at which the host never waits for the GPU."""
    a = torch.randn(8192 // SCALE, 8192 // SCALE, device=DEVICE, dtype=BF16)
    out = torch.empty_like(a)

    def both() -> None:
        for _ in range(40 if CUDA else 1):
            torch.matmul(a, a, out=out)
        step()

    return both


def made(name: str, change: str = AS_IT_IS) -> Step:
    """The step of a program, or of its twin whose fix is hidden."""
    torch.manual_seed(0)
    step = PROGRAMS[name.removesuffix(HIDDEN)].make(change)
    return hidden(step) if name.endswith(HIDDEN) else step


def marked(name: str) -> list[str]:
    """``file:line`` of the lines that hold the cause."""
    name = name.removesuffix(HIDDEN)
    file = PROGRAMS[name].file
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
    """ms per step as it is and with each change, in turns: groups between two synchronizations."""
    kinds = PROGRAMS[name.removesuffix(HIDDEN)].changes
    times: dict[str, list[float]] = {change: [] for change in (AS_IT_IS, *kinds)}
    made_steps, errors = {}, {}
    for turn in range(groups + 1):
        for change in [one for one in times if one not in errors]:
            try:
                step = made_steps.get(change) or made_steps.setdefault(change, made(name, change))
                took = timed(step, steps)
            except Exception as problem:
                if change in (AS_IT_IS, kinds[0]):
                    raise
                errors[change] = described(problem)
            else:
                times[change] += [took] if turn else []  # the first warms up
    rows = {change: spread(some) for change, some in times.items() if change not in errors}
    return {
        "name": name, "cause": kinds[0], "plain": rows.pop(AS_IT_IS), "fixed": rows[kinds[0]],
        "changes": rows, "lines": marked(name), **({"errors": errors} if errors else {}),
    }  # fmt: skip


def described(problem: BaseException) -> str:
    """What went wrong first: the end of a failed capture raises another error."""
    while problem.__context__ is not None:
        problem = problem.__context__
    return f"{type(problem).__name__}: {problem}"


def timed(step: Step, steps: int) -> float:
    """ms per step, of some between two synchronizations."""
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1e3 * (time.perf_counter() - begin) / steps


def spread(times: list[float]) -> dict[str, float]:
    """The median of some times, the least and the greatest."""
    found = {"median": statistics.median(times), "min": min(times), "max": max(times)}
    return {key: round(value, 4) for key, value in found.items()}


def main(about: str | None) -> None:
    """The command line of a file of pairs."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all; one may end in {HIDDEN}")
    parser.add_argument("--change", default=AS_IT_IS, metavar="KIND", help="one of its changes")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    unknown = {name.removesuffix(HIDDEN) for name in chosen.names} - PROGRAMS.keys()
    if unknown or not (chosen.measure or chosen.names):
        parser.error(f"NAME is one of {', '.join(PROGRAMS)}")
    known = [PROGRAMS[name.removesuffix(HIDDEN)].changes for name in chosen.names[:1]]
    if chosen.change and not (known and chosen.change in known[0]):
        parser.error(f"KIND is one of {', '.join(*known)}" if known else "KIND needs a NAME")
    if chosen.measure:
        for name in chosen.names or PROGRAMS:
            try:
                row = measured(name)
            except Exception as problem:  # one program's fault is a line, not the end
                row = {"name": name, "error": described(problem)}
            print(json.dumps(row), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        return
    with alone():
        step = made(chosen.names[0], chosen.change)
        for _ in range(chosen.steps):
            step()
        wait()
