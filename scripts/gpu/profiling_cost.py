#!/usr/bin/env python3
"""What profiling costs six programs on a GPU, by the programs' own clocks.

    python scripts/gpu/profiling_cost.py --nsys PATH [--out FOLDER] [--only small_copies,…]

Each program runs alone, under bare ``nsys profile`` and under ``nvprobe launch``, and times groups
of steps from one idle GPU to the next (``programs/clock.py``): under nsys before it records and
while it does, under ``nvprobe launch`` before the window and in it. One table is printed, and
``profiling_cost.json`` written after each run. 18 processes, four to five minutes; a failure is a
line in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = (
    "small_copies",
    "boolean_indexes",
    "single_tensor_adamw",
    "item_per_parameter",
    "compiled_gpu_bound",
    "fp64_product",
)
COLUMNS = ("alone", "nsys, idle", "launched, before", "nsys records", "launched, in window")
LIMITS = {"launched, before": ("nsys, idle", 3.0), "launched, in window": ("nsys records", 10.0)}
"""A column, what it is compared with, and how many percent more are allowed."""


def main() -> int:
    """Run everything; exit code 1 if anything failed or cost more than it may."""
    parser = argparse.ArgumentParser(description="Measure what profiling costs six programs.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=os.environ.get("NVPROBE_NSYS") or shutil.which("nsys"))
    parser.add_argument("--only", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=345, help="start nothing after this")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {name: {} for name in chosen.only.split(",")}
    begin = time.monotonic()
    for _ in range(chosen.rounds):
        for name, row in rows.items():
            for how in ("alone", "nsys", "launch"):
                if time.monotonic() - begin < chosen.seconds:
                    measure(name, how, chosen.nsys, row)
                    text = json.dumps(rows, indent=1)
                    (chosen.out / "profiling_cost.json").write_text(text)
            print(line(name, row), flush=True)
    return int(any("errors" in row or exceeded(row) for row in rows.values()))


def measure(name: str, how: str, nsys: str | None, row: dict[str, Any]) -> None:
    """Run one program one way and add its times, or what went wrong, to its row."""
    program = [sys.executable, str(HERE / "programs" / f"{name}.py")]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            told = run(command(program, how, nsys, scratch), how, nsys)
        except (OSError, subprocess.SubprocessError, ValueError, StopIteration) as error:
            said = getattr(error, "stderr", None) or repr(error)
            row.setdefault("errors", []).append(f"{how}: {str(said)[-1500:]}")
            return
        if how == "launch":
            file = Path(scratch) / "run" / "run.json"
            document = json.loads(file.read_text())
            row["nvprobe says"] = {key: document.get(key) for key in ("overhead", "problem")}
    columns = {
        "alone": {"alone": told["before"] + told["window"]},
        "nsys": {"nsys, idle": told["before"], "nsys records": told["window"]},
        "launch": {"launched, before": told["before"], "launched, in window": told["window"]},
    }
    for column, values in columns[how].items():
        row.setdefault(column, []).extend(values)


def command(program: list[str], how: str, nsys: str | None, scratch: str) -> list[str]:
    """The words that run a program alone, under nsys or launched."""
    window = ["--steps", "60:80", "--no-analyze", "-o", f"{scratch}/run"]
    if how == "launch":
        return [sys.executable, "-m", "nvprobe", "launch", *window, *program]
    if how == "nsys":
        if not nsys:
            raise OSError("no nsys: give --nsys PATH")
        flags = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", f"{scratch}/bare"]
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        flags += ["--cuda-graph-trace=node"]
        return [nsys, "profile", *flags, *program]
    return program


def run(words: list[str], how: str, nsys: str | None) -> dict[str, list[float]]:
    """The times that a program prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_")}
    paths = [str(ROOT), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if nsys:
        kept["PATH"] = os.pathsep.join([str(Path(nsys).parent), kept["PATH"]])
        kept["NVPROBE_NSYS"] = nsys
    if how == "nsys":
        kept["PROGRAM_PROFILES"] = "1"
    done = subprocess.run(
        words, env=kept, capture_output=True, text=True, timeout=180, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    told: dict[str, list[float]] = json.loads(next(x for x in lines if x.startswith('{"before')))
    return told


def exceeded(row: dict[str, Any]) -> list[str]:
    """Columns that cost more than they may."""
    found = []
    for column, (against, percent) in LIMITS.items():
        if row.get(column) and row.get(against):
            more = 100 * (statistics.median(row[column]) / statistics.median(row[against]) - 1)
            found += [f"{column} {more:+.1f}%"] if more > percent else []
    return found


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table: median milliseconds of each column, and what is too much."""
    cells = [
        f"{statistics.median(row[column]):8.3f} ±{(max(row[column]) - min(row[column])) / 2:6.3f}"
        if row.get(column)
        else f"{'–':>16}"
        for column in COLUMNS
    ]
    return " | ".join([f"{name:20}", *cells, *exceeded(row), *row.get("errors", [])])


if __name__ == "__main__":
    print(" | ".join([f"{'ms a step':20}", *(f"{column:>16}" for column in COLUMNS)]))
    sys.exit(main())
