#!/usr/bin/env python3
"""Whether `nvprobe launch` tells the truth about what profiling costs: loops of five kinds.

    python scripts/gpu/overhead_check.py [--out FOLDER] [--only gpu,host] [--all]
        [--ways nsys] [--ready]

Each program runs alone (its own clock, groups of five steps between synchronizations) before and
after it is launched: under nsys, with CUDA graphs whole, and under torch.profiler. The unprofiled
step of the launch and of its report is held against the mean of both runs alone; ``alone_apart_%``
says how far these are apart. Every row is printed, and ``overhead_check.json`` written, as soon as
it is known. At most 45 s a kind; ``--all``: windows at other steps, too; ``--ways``: only these.
``--ready``: first measures what the nodes of graphs cost here that nsys does not record, which is
the part of ``nvprobe doctor --measure`` that these launches need; 20 s instead of a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
    "gpu": ("nsys", "torch"),
    "host": ("nsys", "torch"),
    "input": ("nsys", "torch"),
    "graph": ("nsys", "nsys, graphs whole"),
    "large graph": ("nsys",),
}
MORE = {"gpu": ("nsys, after an early window",), "host": ("nsys, after an early window",)}
WITHIN = 3.0
"""Percent that an unprofiled step may be off."""


def main() -> int:
    """Run all kinds; exit code 1 if an unprofiled step is off."""
    parser = argparse.ArgumentParser(description="Check the overhead that launches tell.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--ways", default=",".join(LAUNCHES), help="launches, by commas")
    parser.add_argument("--ready", action="store_true", help="measure nodes that wait, first")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.ready:
        print(json.dumps(measure_ready()), flush=True)
    rows: list[dict[str, Any]] = []
    for kind in chosen.only.split(","):
        ways = (*KINDS[kind], *(MORE.get(kind, ()) if chosen.all else ()))
        ways = tuple(way for way in ways if way in chosen.ways.split(","))
        for row in kept_going(kind, rows_of(kind, ways)):
            rows.append(row)
            print(json.dumps(row), flush=True)
            (chosen.out / "overhead_check.json").write_text(json.dumps(rows, indent=1))
    missed = [f"{row['kind']}, {row['how']}" for row in rows if not row["within"]]
    print(json.dumps({"rows": len(rows), "limit_%": WITHIN, "missed": missed}), flush=True)
    return int(bool(missed))


def measure_ready() -> dict[str, Any]:
    """Keep for the launches on this machine what `calibration.measure` does of nodes that wait."""
    sys.path.insert(0, str(ROOT))
    from nvprobe.launch import calibration
    from nvprobe.nsys import find_nsys

    nsys = find_nsys()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = calibration._run(folder, "alone", calibration._LOOPS)
        under = calibration._under(nsys, calibration._READY, folder / "ready")
        ready = calibration._run(folder, "ready", under)
    cost = calibration.costs(bare, bare, bare, ready)["ready_node_ns"]
    document = {
        "machine": calibration.machine(nsys),
        "measured_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "nsys": {"ready_node_ns": cost},
        "loops": {"alone": bare, "nsys, not recording": ready},
    }
    calibration._keep(document)
    return document


def kept_going(kind: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a kind; a failure is the last one, and the next kind is measured."""
    try:
        yield from rows
    except Exception as error:
        yield {"kind": kind, "how": "failed", "within": False, "error": f"{error!r}"[-1500:]}


def rows_of(kind: str, ways: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Alone, then launched in one way and alone again, way by way."""
    begin = time.monotonic()
    before = alone(kind)
    for how in ways:
        row = launched(kind, LAUNCHES[how])
        after = alone(kind)
        truth = (before["step_ms"] + after["step_ms"]) / 2
        errors = {
            f"{name}_error_%": None
            if row[name] is None
            else round(100 * (row[name] / truth - 1), 2)
            for name in ("bare_ms", "unprofiled_ms")
        }
        error = errors["unprofiled_ms_error_%"]
        yield {
            "kind": kind,
            "how": how,
            "within": error is not None and abs(error) <= WITHIN,
            "truth_ms": truth,
            "alone_apart_%": round(100 * abs(after["step_ms"] - before["step_ms"]) / truth, 2),
            **errors,
            "alone": [before, after],
            **row,
            "seconds": round(time.monotonic() - begin, 1),
        }
        before, begin = after, time.monotonic()


def alone(kind: str) -> dict[str, float]:
    """The program's own figures."""
    done = run([sys.executable, str(PROGRAM), kind, "60", "timed"])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def launched(kind: str, options: list[str]) -> dict[str, Any]:
    """What run.json and the report say of a launch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        command = [sys.executable, "-m", "nvprobe", "launch", "--no-analyze", "-o", str(folder)]
        done = run([*command, *options, str(PROGRAM), kind, "40"])
        document = json.loads((folder / "run.json").read_text())
        report = run([sys.executable, "-m", "nvprobe", "analyze", str(folder), "--json"])
        profiler = json.loads(report.stdout)["profiler"]
    overhead = document["overhead"]
    return {
        "bare_ms": _ms(overhead["bare"]),
        "unprofiled_ms": profiler and profiler["unprofiled_step_ns"] / 1e6,
        "window_ms": _ms(overhead["window"]),
        "slowdown": overhead["slowdown"],
        "slowdown_spread": overhead["slowdown_spread"],
        "groups": [
            [one["kind"], one["first"], one["elapsed_ns"] / 1e6 / (one["end"] - one["first"])]
            for one in document["step_groups"]
        ],
        "profiler": profiler,
        "problem": document["problem"],
        "calibration": document.get("calibration"),
        "said": [line for line in done.stderr.splitlines() if "step takes" in line.lower()],
    }


def _ms(step: dict[str, Any] | None) -> float | None:
    return None if step is None else step["step_ns"] / 1e6


def run(command: list[str]) -> Any:
    """Run to the end.

    Raises:
        RuntimeError: it failed; with what it said.

    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=170, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-1200:]}")
    return done


if __name__ == "__main__":
    sys.exit(main())
