#!/usr/bin/env python3
"""What recording in place costs outside its window: nanoseconds per step, the fastest of repeats.

    python scripts/benchmarks/callback_cost.py

A loop over a loader, plain and through `record_steps` with a window far away and one that is over,
and the calls that Lightning and the Trainer of transformers make of their callbacks. Libraries that
are not installed are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

REPEATS, STEPS = 15, 20_000
FAR = (10**9, 10**9 + 5)


def loops() -> dict[str, Callable[[], object]]:
    """A loop of steps each; its body is an addition."""
    from nvprobe.integrations.loops import record_steps

    waiting, over = record_steps(range(STEPS), FAR), record_steps(range(STEPS), FAR)
    over.recorder.over = True

    def loop(loader: Any) -> Callable[[], object]:
        def run() -> None:
            total = 0
            for item in loader:
                total += item

        return run

    return {"loop, plain": loop(range(STEPS)), "before": loop(waiting), "after": loop(over)}


def calls(module: str, call: Callable[[Any], object]) -> dict[str, Callable[[], object]]:
    """What a trainer calls after a step, as often as a loop has steps."""
    try:
        made = import_module(f"nvprobe.integrations.{module}").NvprobeCallback
    except ImportError:
        return {}
    waiting, over = made(FAR), made(FAR)
    over.recorder.over = True

    def loop(callback: Any) -> Callable[[], object]:
        return lambda: [call(callback) for _ in range(STEPS)]

    return {f"{module}, before": loop(waiting), f"{module}, after": loop(over)}


def main() -> None:
    """Measure all and print."""
    trainer, state = SimpleNamespace(global_step=0, optimizers=[1]), SimpleNamespace(global_step=0)

    def of_lightning(callback: Any) -> None:
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, None, 0)

    runs = loops()
    runs |= calls("lightning", of_lightning)
    runs |= calls("transformers", lambda callback: callback.on_step_end(None, state, None))
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for name, run in runs.items():
            begin = time.perf_counter_ns()
            run()
            fastest[name] = min(fastest[name], (time.perf_counter_ns() - begin) / STEPS)
    for name, nanoseconds in fastest.items():
        print(f"{name:<24}{nanoseconds:8.0f} ns")


if __name__ == "__main__":
    main()
