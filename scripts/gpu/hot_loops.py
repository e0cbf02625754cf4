#!/usr/bin/env python3
"""What single calls cost on a GPU: alone, instrumented asleep and awake, and while nsys records.

    python scripts/gpu/hot_loops.py --nsys PATH [--out FOLDER]

Loops of ``.item()``, a pageable ``.to()`` of 4 kB, small launches, a module call, backward nodes
and a push and pop; then ways to learn the line of a synchronization, each around ``.item()`` and
``.to()``. Prints microseconds a call (the fastest of several repeats) and writes
``hot_loops.json``. ``in turns`` goes from hooks that sleep to none and back in one process without
a tool, since processes differ by more than the half microsecond that a call may cost more, which
the last line judges. Five processes, under two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = {
    "bare": ["plain"],
    "instrumented, no tool": ["instrument"],
    "in turns, no tool": ["turns"],
    "nsys, idle": ["plain", "asleep", "awake"],
    "nsys records": ["plain", "asleep", "awake", "ways"],
}
"""Processes, and what is measured in each, in this order."""
TURNS_S, MORE_US = 20.0, 0.5
"""Seconds of turns, and microseconds that a call may cost more while the hooks sleep."""
DEVICE = "cuda"


def main() -> int:
    """Run the processes; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(description="Measure what single calls cost.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=os.environ.get("NVPROBE_NSYS") or shutil.which("nsys"))
    parser.add_argument("--child", default="", help="for the script itself")
    parser.add_argument("--device", default=DEVICE, help="cpu: to try the script out")
    chosen = parser.parse_args()
    globals()["DEVICE"] = chosen.device
    if chosen.child:
        print(json.dumps(dict(child(chosen.child.split(";")))), flush=True)
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    for name, parts in RUNS.items():
        with tempfile.TemporaryDirectory() as scratch:
            result[name] = in_process(name, parts, chosen.nsys, scratch)
        (chosen.out / "hot_loops.json").write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result[name], indent=1), flush=True)
    verdicts = {call: verdict(*more) for call, more in turns_of(result).items()}
    print(json.dumps({"limit_us": MORE_US, "more, no tool": verdicts}), flush=True)
    failed = any("error" in one for one in result.values())
    return int(failed or any(text.startswith("fail") for text in verdicts.values()))


def turns_of(result: dict[str, Any]) -> dict[str, list[float]]:
    """Microseconds more of each call: the middle and its 95 % interval."""
    found = result["in turns, no tool"].get("turns", {})
    return {call: found[call]["more"] for call in found}


def verdict(middle: float, low: float, high: float) -> str:
    """Whether a call costs at most `MORE_US` more; ``open`` where the interval holds that."""
    sure = "pass" if high <= MORE_US else "fail" if low > MORE_US else "open"
    return f"{sure}: {middle:+.2f} µs ({low:+.2f} … {high:+.2f})"


def in_process(name: str, parts: list[str], nsys: str | None, scratch: str) -> dict[str, Any]:
    """The figures of one process."""
    words = [sys.executable, str(Path(__file__)), "--device", DEVICE]
    words += ["--child", ";".join([name, *parts])]
    if name.startswith("nsys"):
        flags = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", f"{scratch}/x"]
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        words = [str(nsys), "profile", *flags, *words]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if name.startswith("nsys"):
        environment["NVPROBE_SIDECAR"] = scratch
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        text = next(x for x in done.stdout.splitlines() if x.startswith("{"))
        return dict(json.loads(text))
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        return {"error": str(getattr(error, "stderr", None) or repr(error))[-2000:]}


def child(parts: list[str]) -> Iterator[tuple[str, Any]]:
    """The figures of each part, in this process."""
    name, *parts = parts
    import torch

    torch.zeros(1, device=DEVICE)
    records = name == "nsys records" and DEVICE == "cuda"
    if records:
        torch.cuda.profiler.start()
    for part in parts:
        if part in ("instrument", "asleep", "turns"):
            import nvprobe

            nvprobe.instrument(children=False)
        if part in ("asleep", "awake"):
            from nvprobe.instrumentation import awake

            torch.nn.Sequential(torch.nn.Identity())(None)  # a model is met
            getattr(awake, {"asleep": "sleep", "awake": "wake"}[part])()
        if part == "turns":
            yield part, dict(in_turns(torch))
        elif part == "ways":
            from nvprobe.instrumentation import awake

            awake.sleep()
            yield part, dict(ways(torch))
        else:
            yield part, figures(torch)
    if records:
        synchronize()
        torch.cuda.profiler.stop()


def synchronize() -> None:
    """Wait for the GPU."""
    import torch

    if DEVICE == "cuda":
        torch.cuda.synchronize()


def fastest(run: Callable[[], object], number: int, per: int = 1, repeats: int = 12) -> float:
    """Microseconds of one of the ``per`` calls in ``run``, the GPU idle before each repeat."""
    best = float("inf")
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter_ns()
        for _ in range(number):
            run()
        best = min(best, time.perf_counter_ns() - start)
    return round(best / number / per / 1000, 3)


def figures(torch: Any) -> dict[str, float]:
    """The table of hot loops."""
    scalar, page = torch.ones(1, device=DEVICE), torch.ones(1024)
    identity, inner = torch.nn.Identity(), torch.ones(8, device=DEVICE, requires_grad=True)
    root = torch.nn.Sequential(*(identity for _ in range(50)))
    root(scalar)

    def backward() -> None:
        y = inner
        for _ in range(100):
            y = y * 1.0
        chains.append(y.sum())

    chains: list[Any] = []
    nodes = []
    for _ in range(12):
        backward()
        synchronize()
        start = time.perf_counter_ns()
        chains.pop().backward()
        nodes.append((time.perf_counter_ns() - start) / 100_000)
    nvtx = torch.cuda.nvtx

    def pair() -> None:
        nvtx.range_push("x")
        nvtx.range_pop()

    return {
        "item": fastest(scalar.item, 300),
        "to": fastest(lambda: page.to(DEVICE), 300),
        "launch": fastest(lambda: scalar.add_(1.0), 300),
        "module call": fastest(lambda: root(scalar), 10, per=50),
        "backward node": round(min(nodes), 3),
        "push and pop": fastest(pair, 300),
    }


def in_turns(torch: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls with no hook and with hooks that sleep, in turns: microseconds, and how much more."""
    sys.path[:0] = [str(ROOT / "scripts" / folder) for folder in ("benchmarks", "gpu/programs")]
    from in_turns import asleep, plain
    from turns import interval

    scalar, page = torch.ones(1, device=DEVICE), torch.ones(1024)

    def item() -> None:
        scalar.item()  # the method is looked up at each call, as a program's is

    calls = {"item": item, "to": lambda: page.to(DEVICE), "launch": lambda: scalar.add_(1.0)}
    times: dict[str, dict[str, list[float]]] = {call: {"plain": [], "asleep": []} for call in calls}
    mixed, ways, end = random.Random(0), [plain, asleep], time.monotonic() + TURNS_S
    while time.monotonic() < end:
        mixed.shuffle(ways)
        for way in ways:
            way()
            for call, run in calls.items():
                times[call][way.__name__].append(fastest(run, 300, repeats=3))
    for call, both in times.items():
        more = interval(a - b for a, b in zip(both["asleep"], both["plain"], strict=True))
        bare = round(statistics.median(both["plain"]), 3)
        figures = {"plain": bare, "more": [round(one, 3) for one in more[:3]]}
        yield call, figures | {"rounds": more[3]}


def ways(torch: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Ways to learn a synchronization's line: microseconds of a call with each of them."""
    scalar, page = torch.ones(1, device=DEVICE), torch.ones(1024)

    def both() -> dict[str, float]:
        def item() -> None:
            scalar.item()

        def to() -> None:
            page.to(DEVICE)

        return {"item": fastest(item, 300), "to": fastest(to, 300)}

    yield "nothing", both()
    mode = torch._C._cuda_set_sync_debug_mode
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        mode(1)
        yield "debug mode, each line once", both()
        warnings.simplefilter("ignore")
        yield "debug mode, ignored", both()
        warnings.simplefilter("always")
        show, warnings._showwarnmsg = warnings._showwarnmsg, lambda message: None
        yield "debug mode, always, shown to nobody", both()
        warnings._showwarnmsg = show
        mode(0)
    yield from _patched(torch, both)


def _patched(torch: Any, both: Callable[[], dict[str, float]]) -> Iterator[tuple[str, Any]]:
    """The methods themselves replaced."""
    from nvprobe.instrumentation import emitter

    label = emitter.label("sync train.py:1", emitter.Category.SYNC)
    known = {}

    def passing(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, *args, **kwargs)

        return method

    def marking(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            frame = sys._getframe(1)
            known.setdefault((frame.f_code, frame.f_lasti), label)
            emitter.mark(label)
            return result

        return method

    def ranging(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            emitter.push(known.setdefault((frame.f_code, frame.f_lasti), label))
            try:
                return original(self, *args, **kwargs)
            finally:
                emitter.pop()

        return method

    for name, wrap in (("passing on", passing), ("mark", marking), ("range", ranging)):
        for method in ("item", "to"):
            setattr(torch.Tensor, method, wrap(getattr(torch._C.TensorBase, method)))
        yield f"methods replaced: {name}", both()
    for method in ("item", "to"):
        delattr(torch.Tensor, method)


if __name__ == "__main__":
    sys.exit(main())
