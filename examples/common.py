"""What the numbered examples share: options, ranges, and a measured window of steps.

Each example has one cause of lost time, on the lines marked ``# planted``, and with ``--fixed``
the change that `nvprobe analyze` advises. It prints one line of JSON with its own step time, so
that what a report promises can be held against what the change brings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Options(NamedTuple):
    """Command line of an example."""

    name: str
    fixed: bool
    steps: int
    warmup: int
    device: str

    def size(self, large: int, small: int) -> int:
        """A size for the GPU, or the one that lets the example be tried on a CPU."""
        return large if self.device == "cuda" else small

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 on a GPU, float32 on a CPU."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @property
    def backend(self) -> str:
        """Backend for torch.compile: Inductor needs a compiler that a CPU machine may lack."""
        return "inductor" if self.device == "cuda" else "eager"


def options(warmup: int = 4) -> Options:
    """Read the command line of the example that calls this."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--fixed", action="store_true", help="apply the advised change")
    parser.add_argument("--steps", type=int, default=20, help="measured steps")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = parser.parse_args()
    torch.manual_seed(0)
    return Options(name, chosen.fixed, chosen.steps, warmup, device)


def phase(name: str) -> AbstractContextManager[Any]:
    """A range around a part of the step."""
    try:
        from nvprobe import range as nvprobe_range
    except ImportError:
        return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()
    return nvprobe_range(name)


def steps(batches: Iterable[T]) -> Iterator[T]:
    """Each batch inside its step; the wait for it is the step's ``data``."""
    try:
        from nvprobe import steps as nvprobe_steps
    except ImportError:
        return _plain_steps(iter(batches))
    return iter(nvprobe_steps(batches))


def _plain_steps(batches: Iterator[T]) -> Iterator[T]:
    for index in range(sys.maxsize):
        with phase(f"step {index}"):
            with phase("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def measure(batches: Iterable[T], chosen: Options) -> Iterator[T]:
    """Warm up, then open the profiler's window, time the steps and print the result as JSON."""
    source = iter(batches)
    yield from steps(islice(source, chosen.warmup))
    synchronize()
    if chosen.device == "cuda":
        torch.cuda.profiler.start()
    begin = time.perf_counter()
    yield from steps(islice(source, chosen.steps))
    synchronize()
    seconds = time.perf_counter() - begin
    if chosen.device == "cuda":
        torch.cuda.profiler.stop()
    step_ms = round(1000 * seconds / chosen.steps, 4)
    result = chosen._asdict() | {"step_ms": step_ms, "torch": torch.__version__}
    print(json.dumps(result), flush=True)


def synchronize() -> None:
    """Wait for the GPU where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def endless(batch: T) -> Iterator[T]:
    """The same batch for ever: for examples whose subject is not data."""
    while True:
        yield batch
