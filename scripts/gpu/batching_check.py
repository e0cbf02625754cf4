#!/usr/bin/env python3
"""Continuous batching of transformers on a GPU, one batch at a time and asynchronously.

    python scripts/gpu/batching_check.py [--out FOLDER] [--backends nsys,torch]

``programs/batching_loop.py`` runs under ``nvprobe launch`` with each backend, both ways, two runs
at a time. Under nsys all of it is recorded: the tokens of prefill and decode in the steps are those
of the program. Under torch.profiler, which the loop's own thread starts, it is a window: its steps
have their numbers, kernels, and as many of these in a step that only decodes as under nsys. Prints
one JSON line per run, with the checks that failed. About 50 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "gpu" / "programs" / "batching_loop.py"
LAUNCH = ["-m", "nvprobe", "launch", "-q", "--no-analyze", "-f"]
FIRST, LAST = 10, 40
CLOSE = 0.02


def recorded(backend: str, asynchronous: bool, folder: Path) -> dict[str, Any]:
    """One run and what its analysis says."""
    found: dict[str, Any] = {"backend": backend, "asynchronous": asynchronous}
    target = folder / f"{backend}{'-asynchronous' if asynchronous else ''}"
    window = ["--steps", f"{FIRST}:{LAST}"] if backend == "torch" else []
    more = ["--asynchronous"] if asynchronous else []
    words = [*LAUNCH, "--backend", backend, *window, "-o", str(target), str(PROGRAM), *more]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, *words], env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"prompt_tokens"')]
        if done.returncode or not lines:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-700:]}")
        found |= {"program": json.loads(lines[-1]), "steps": facts(target)}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[-900:]
    return found


def facts(target: Path) -> dict[str, Any]:
    """What an analysis of all that was recorded has of steps."""
    sys.path.insert(0, str(ROOT))
    import nvprobe

    results = nvprobe.analyze(target, everything=True)
    steps = results.steps
    decoding = steps[(steps["phase"] == "decode") & (steps["ops"] > 0)]
    begins = results.events("ops")["start_ns"]  # before the first step graphs are captured
    between = (begins >= steps["start_ns"].min()) & (begins < steps["end_ns"].max())
    return {
        "numbers": [int(steps["index"].min()), int(steps["index"].max())],
        "count": len(steps),
        "found_by": sorted(set(steps["found_by"])),
        "phases": {str(key): int(n) for key, n in steps["phase"].value_counts().items()},
        "prefill_tokens": int(steps["prefill_tokens"].clip(lower=0).sum()),
        "decode_tokens": int(steps["decode_tokens"].clip(lower=0).sum()),
        "ops": int(between.sum()),
        "ops_in_steps": int(steps["ops"].sum()),
        "ops_of_a_decode": statistics.median(decoding["ops"]) if len(decoding) else 0,
        "busy_us_of_a_decode": statistics.median(decoding["gpu_busy_ns"]) / 1e3
        if len(decoding)
        else 0.0,
    }


def failed(row: dict[str, Any], other: dict[str, Any] | None) -> list[str]:
    """The checks that do not hold; ``other``: the same program under nsys."""
    if "error" in row:
        return ["error"]
    steps, program = row["steps"], row["program"]
    checks = {
        "kernels": steps["ops_of_a_decode"] > 0,
        "most work in steps": steps["ops_in_steps"] >= (1 - CLOSE) * steps["ops"],
    }
    if row["backend"] == "nsys":
        # The first token of a request comes with the last piece of its prompt.
        after_first = program["generated"] - program["requests"]
        checks["tokens of prefill"] = steps["prefill_tokens"] == program["prompt_tokens"]
        checks["tokens of decode"] = steps["decode_tokens"] >= after_first
    else:
        checks["numbers"] = steps["numbers"] == [FIRST, LAST - 1]
    if other is not None and "steps" in other:
        one, two = (some["steps"]["ops_of_a_decode"] for some in (row, other))
        checks["as many kernels as under nsys"] = abs(one - two) <= CLOSE * two
    return [name for name, holds in checks.items() if not holds]


def rows(backends: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Both ways of each backend, beside one another."""
    earlier: dict[bool, dict[str, Any]] = {}
    for backend in backends:
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(recorded, backend, way, folder) for way in (False, True)]
        for row in (run.result() for run in runs):
            row["failed"] = failed(row, earlier.get(row["asynchronous"]))
            earlier.setdefault(row["asynchronous"], row)
            yield row


def main() -> int:
    """All runs, each printed and kept as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--backends", default="nsys,torch")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(given.backends.split(","), given.out or Path(folder)):
            found.append(row)
            print(json.dumps(row, default=int), flush=True)
            if given.out is not None:
                (given.out / "batching.json").write_text(json.dumps(found, indent=1, default=int))
    return int(any(row["failed"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
