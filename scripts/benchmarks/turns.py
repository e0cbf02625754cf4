"""Compare processes that take turns, so that what else a machine does hits all of them alike.

One worker a variant, alive and warm throughout: the parent asks each in turn, a few milliseconds of
work at a time, and compares neighbors. What is reported is the median of the ratios of neighbors
with its 95 % confidence interval, from the ranks of the sorted ratios: no assumption on the noise.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Interval", "Worker", "interval", "serve", "take_turns"]

LEAST_TURNS = 9


class Interval(NamedTuple):
    """The median of ratios and the 95 % confidence interval of it."""

    median: float
    low: float
    high: float
    pairs: int

    def percent(self) -> str:
        """``+0.4 % (0.1 … 0.8)``: how much more than 1."""
        middle, low, high = (100 * (one - 1) for one in self[:3])
        return f"{middle:+.1f}% ({low:+.1f} … {high:+.1f})"


def interval(ratios: Iterable[float]) -> Interval:
    """The median, between the order statistics that hold it with 95 % (binomial, as a normal)."""
    ordered = sorted(ratios)
    count = len(ordered)
    skipped = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return Interval(statistics.median(ordered), ordered[skipped], ordered[~skipped], count)


class Worker:
    """A child process that answers each JSON line on its input with one on its output."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **question: Any) -> None:
        """Ask without waiting for the answer."""
        assert self.process.stdin is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        """The answer to the oldest question; other output is passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"turn":'):
                return json.loads(line)["turn"]
        raise RuntimeError(f"a worker has ended (exit code {self.process.wait()})")

    def ask(self, **question: Any) -> Any:
        """Ask and wait for the answer."""
        self.tell(**question)
        return self.answer()

    def close(self) -> None:
        """Let it end, and wait for that."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=120)
        if self.process.stdout is not None:
            self.process.stdout.close()


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer the parent's questions until it closes the pipe."""
    for line in sys.stdin:
        print(json.dumps({"turn": answer(json.loads(line))}), flush=True)


def take_turns(
    workers: dict[str, Worker], question: dict[str, Any], seconds: float
) -> dict[str, list[dict[str, float]]]:
    """The answers of each worker, round by round, for so many seconds.

    The order changes from round to round, the same way in every run: nobody always comes after
    himself, with warm caches, or after the one who leaves the coldest.
    """
    order, mixed = list(workers), random.Random(0)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    end, turn = time.monotonic() + seconds, 0
    while turn < LEAST_TURNS or time.monotonic() < end:
        mixed.shuffle(order)
        for name in order:
            rounds[name].append(workers[name].ask(**question))
        turn += 1
    return rounds
