#!/usr/bin/env python3
"""What single calls cost on a GPU: alone, instrumented asleep and awake, and while nsys records.

    python scripts/gpu/hot_loops.py --nsys PATH [--out FOLDER]

Loops of ``.item()``, a pageable ``.to()`` of 4 kB, small launches, a module call, backward nodes
and a push and pop; then ways to learn the line of a synchronization, each around ``.item()`` and
``.to()``. Prints microseconds a call (the fastest of several repeats) and writes
``hot_loops.json``. Four processes, under two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
    "nsys, idle": ["plain", "asleep", "awake"],
    "nsys records": ["plain", "asleep", "awake", "ways"],
}
"""Processes, and what is measured in each, in this order."""


def main() -> int:
    """Run the processes; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(description="Measure what single calls cost.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=os.environ.get("NVPROBE_NSYS") or shutil.which("nsys"))
    parser.add_argument("--child", default="", help="for the script itself")
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(dict(child(chosen.child.split(",")))), flush=True)
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    for name, parts in RUNS.items():
        with tempfile.TemporaryDirectory() as scratch:
            result[name] = in_process(name, parts, chosen.nsys, scratch)
        (chosen.out / "hot_loops.json").write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result[name], indent=1), flush=True)
    return int(any("error" in one for one in result.values()))


def in_process(name: str, parts: list[str], nsys: str | None, scratch: str) -> dict[str, Any]:
    """The figures of one process."""
    words = [sys.executable, str(Path(__file__)), "--child", ",".join([name, *parts])]
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

    torch.zeros(1, device="cuda")
    if name == "nsys records":
        torch.cuda.profiler.start()
    for part in parts:
        if part in ("instrument", "asleep"):
            import nvprobe

            nvprobe.instrument(children=False)
        if part in ("asleep", "awake"):
            from nvprobe.instrumentation import awake

            torch.nn.Sequential(torch.nn.Identity())(None)  # a model is met
            getattr(awake, {"asleep": "sleep", "awake": "wake"}[part])()
        if part == "ways":
            from nvprobe.instrumentation import awake

            awake.sleep()
            yield part, dict(ways(torch))
        else:
            yield part, figures(torch)
    if name == "nsys records":
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def fastest(run: Callable[[], object], number: int, per: int = 1, repeats: int = 12) -> float:
    """Microseconds of one of the ``per`` calls in ``run``, the GPU idle before each repeat."""
    import torch

    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(number):
            run()
        best = min(best, time.perf_counter_ns() - start)
    return round(best / number / per / 1000, 3)


def figures(torch: Any) -> dict[str, float]:
    """The table of hot loops."""
    scalar, page = torch.ones(1, device="cuda"), torch.ones(1024)
    identity, inner = torch.nn.Identity(), torch.ones(8, device="cuda", requires_grad=True)
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
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        chains.pop().backward()
        nodes.append((time.perf_counter_ns() - start) / 100_000)
    nvtx = torch.cuda.nvtx

    def pair() -> None:
        nvtx.range_push("x")
        nvtx.range_pop()

    return {
        "item": fastest(scalar.item, 300),
        "to": fastest(lambda: page.to("cuda"), 300),
        "launch": fastest(lambda: scalar.add_(1.0), 300),
        "module call": fastest(lambda: root(scalar), 10, per=50),
        "backward node": round(min(nodes), 3),
        "push and pop": fastest(pair, 300),
    }


def ways(torch: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Ways to learn a synchronization's line: microseconds of a call with each of them."""
    scalar, page = torch.ones(1, device="cuda"), torch.ones(1024)

    def both() -> dict[str, float]:
        def item() -> None:
            scalar.item()

        def to() -> None:
            page.to("cuda")

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
