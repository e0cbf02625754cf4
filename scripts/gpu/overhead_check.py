#!/usr/bin/env python3
"""Whether `nvprobe launch` tells the truth about what profiling costs: loops of four kinds.

    python scripts/gpu/overhead_check.py [--out FOLDER] [--only gpu,host]

Each program runs alone (its own clock, groups of five steps between synchronizations), then
launched under nsys, with CUDA graphs whole, and under torch.profiler; ``overhead.bare`` of the
launch is held against the runs alone, which frame it. Every row is printed, and
``overhead_check.json`` written, as soon as it is known. About a minute a kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "gpu" / "programs" / "paced.py"
LAUNCHES = {
    "nsys": ["--steps", "10:15"],
    "nsys, after an early window": ["--steps", "2:5"],
    "nsys, graphs whole": ["--graphs-whole", "--steps", "10:15"],
    "torch": ["--backend", "torch", "--steps", "10:15"],
}
KINDS = {
    "gpu": ("nsys", "nsys, after an early window", "torch"),
    "host": ("nsys", "nsys, after an early window", "torch"),
    "input": ("nsys", "torch"),
    "graph": ("nsys", "nsys, graphs whole"),
}


def main() -> None:
    """Run all kinds."""
    parser = argparse.ArgumentParser(description="Check the overhead that launches tell.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for kind in chosen.only.split(","):
        for row in rows_of(kind):
            rows.append(row)
            print(json.dumps(row), flush=True)
            (chosen.out / "overhead_check.json").write_text(json.dumps(rows, indent=1))


def rows_of(kind: str) -> Any:
    """Alone, then each way of launching, alone again between."""
    before = alone(kind)
    yield {"kind": kind, "how": "alone", **before}
    for how in KINDS[kind]:
        row = launched(kind, LAUNCHES[how])
        after = alone(kind)
        truth = (before["step_ms"] + after["step_ms"]) / 2
        bare = row.get("bare_ms")
        error = None if bare is None else round(100 * (bare / truth - 1), 2)
        yield {"kind": kind, "how": how, **row, "truth_ms": truth, "bare_error_%": error}
        before = after


def alone(kind: str) -> dict[str, float]:
    """The program's own figures."""
    done = run([sys.executable, str(PROGRAM), kind, "40", "timed"])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def launched(kind: str, options: list[str]) -> dict[str, Any]:
    """What run.json says of a launch."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        command = [sys.executable, "-m", "nvprobe", "launch", "-o", str(folder), *options]
        done = run([*command, str(PROGRAM), kind, "40"])
        document = json.loads((folder / "run.json").read_text())
        report = run([sys.executable, "-m", "nvprobe", "analyze", str(folder), "--json"])
        profiler = json.loads(report.stdout)["profiler"]
    overhead = document["overhead"]
    return {
        "bare_ms": _ms(overhead["bare"]),
        "window_ms": _ms(overhead["window"]),
        "slowdown": overhead["slowdown"],
        "slowdown_spread": overhead["slowdown_spread"],
        "groups": [
            [one["kind"], one["first"], one["elapsed_ns"] / 1e6 / (one["end"] - one["first"])]
            for one in document["step_groups"]
        ],
        "profiler": profiler,
        "problem": document["problem"],
        "said": [line for line in done.stderr.splitlines() if "step takes" in line.lower()],
        "seconds": round(time.monotonic() - begin, 1),
    }


def _ms(step: dict[str, Any] | None) -> float | None:
    return None if step is None else step["step_ns"] / 1e6


def run(command: list[str]) -> Any:
    """Run to the end; a failure carries what it said."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=170, env=environment, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-1500:]}")
    return done


if __name__ == "__main__":
    main()
