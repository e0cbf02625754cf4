#!/usr/bin/env python3
"""Whether a callback in place records what `nvprobe launch` records: three trainers on a GPU.

    python scripts/gpu/integrations_check.py [--out FOLDER] [--only lightning,trainer,accelerate]

Each program of ``programs/trained_by.py`` runs once with its callback in place and once, unedited,
under ``nvprobe launch --backend torch --steps 10:15`` (and once more under nsys with ``--nsys``).
Prints one JSON line per library: steps, phases, kernels and GPU busy time per step of each way, and
whether they agree: steps, phases and kernels the same, busy time within 3%. Then a line per library
of ``programs/callback_turns.py``: what its callback costs outside of its window, by groups of steps
with and without it in turns (percent of a step, with the 95% interval), and, where these differ
by nothing that can be measured, by the time in its own Python calls; and what a launch costs after
a window. What cannot be decided is ``open``. A failure is a row. About 40 s per library and 40 s
for the last part (alone: ``--only ""``); all processes stop at ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "benchmarks")]

from turns import interval  # noqa: E402

PROGRAM = ROOT / "scripts" / "gpu" / "programs" / "trained_by.py"
TURNS = PROGRAM.with_name("callback_turns.py")
LIBRARIES = ("lightning", "trainer", "accelerate")
LAUNCH = ["-m", "nvprobe", "launch", "-q", "--no-analyze", "-f", "--steps", "10:15"]
CLOSE = 0.03
MOST = 1.0
"""Percent of a step that an interval around zero may reach, where nothing is measured."""
OWN = 0.1
"""Percent of a step that a callback's own Python calls may take, where the interval is wider."""


def run(words: list[str], limit: float) -> str:
    """What Python prints, with this nvprobe first on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {"KINETO_LOG_LEVEL": "6", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **quiet, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=max(1.0, limit), check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{words[-2:]}: exit code {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def facts(folder: Path) -> dict[str, Any]:
    """What the analysis says of a run folder, per step."""
    import nvprobe

    results = nvprobe.analyze(folder)
    steps = results.steps
    kernels = results.events("ops")
    phases: Counter[str] = Counter()
    for path, row in results.ranges.iterrows():
        parts = str(path).split("/")
        if row["kind"] == "phase" and "." not in parts[-1]:
            phases[f"{parts[0]}: {parts[-1]}"] += int(row["calls"])
    operators = results.table("operators")
    return {
        "steps": [int(index) for index in steps["index"]],
        "phases": dict(sorted(phases.items())),
        "ops_per_step": [int(count) for count in steps["ops"]],
        "ops": len(kernels),
        "busy_us_per_step": [round(float(ns) / 1e3, 1) for ns in steps["gpu_busy_ns"].fillna(0)],
        "operator_calls": int(operators["calls"].sum()) if len(operators) else 0,
    }


def agreement(place: dict[str, Any], launched: dict[str, Any]) -> dict[str, Any]:
    """Where two ways of recording agree; the busy time of the median step within 3%."""
    busy = [statistics.median(one["busy_us_per_step"] or [0.0]) for one in (place, launched)]
    ratio = float(busy[0] / busy[1]) if busy[1] else None
    return {
        "steps": place["steps"] == launched["steps"],
        "phases": place["phases"] == launched["phases"],
        "kernels": place["ops_per_step"] == launched["ops_per_step"],
        "operators": place["operator_calls"] == launched["operator_calls"],
        "busy_ratio": None if ratio is None else round(ratio, 4),
        "busy": ratio is not None and abs(ratio - 1) <= CLOSE,
    }


def row(library: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One library: in place, launched, compared."""
    begin = time.monotonic()
    found: dict[str, Any] = {"library": library}
    program = [str(PROGRAM), library, "--width", str(given.width)]
    ways = {
        "place": [*program, "--record", str(folder / f"{library}-place")],
        "launch": [
            *LAUNCH,
            "--backend",
            "torch",
            "-o",
            str(folder / f"{library}-launch"),
            *program,
        ],
        "nsys": [*LAUNCH, "--backend", "nsys", "-o", str(folder / f"{library}-nsys"), *program],
    }
    for way, words in ways.items():
        if way == "nsys" and not given.nsys:
            continue
        started = time.monotonic()
        try:
            run(words, given.ends - time.monotonic())
            found[way] = facts(folder / f"{library}-{way}")
        except Exception as error:
            found[way] = {"error": f"{type(error).__name__}: {error}"[-700:]}
        found[way]["seconds"] = round(time.monotonic() - started, 1)
    if not any("error" in found[way] for way in ("place", "launch")):
        found["same"] = agreement(found["place"], found["launch"])
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def outside(folder: Path, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a callback costs outside of its window, per library."""
    words = [str(TURNS), ",".join(LIBRARIES), "--width", str(given.width)]
    try:
        lines = run([*words, "--seconds", str(given.seconds)], given.ends - time.monotonic())
    except Exception as error:
        yield {"outside": "", "error": f"{type(error).__name__}: {error}"[-700:]}
        return
    for line in lines.splitlines():
        if line.startswith('{"program"'):
            yield judged(json.loads(line))


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """A row of what `callback_turns` measured."""
    times = found["turns"]
    more = percent(times["attached"], times["plain"])
    step_ns = statistics.median(times["plain"])
    row = {
        "outside": found["program"],
        "step_us": round(step_ns / 1e3, 1),
        "more_percent": more,
        "pairs": min(map(len, times.values())),
        "calls_per_step": round(found["calls"], 1),
        "own_us_at_most": round(found["own_ns"] / 1e3, 2),
        "own_percent_at_most": round(100 * found["own_ns"] / step_ns, 3),
    }
    little = more[2] <= MOST or row["own_percent_at_most"] <= OWN
    row["verdict"] = "fail" if more[1] > 0 else "pass" if little else "open"
    if "launch_ns" in found:
        before, after = found["launch_ns"]["before"], found["launch_ns"]["after"]
        left, half = percent(after, before), len(before) // 2
        row["launch_ns"] = [round(statistics.median(one), 1) for one in (before, after)]
        row["launch_drift_percent"] = percent(before[half:], before[:half])
        row["launch_more_percent_after"] = left
        row["after"] = "fail" if left[1] > CLOSE * 100 else "open"
        row["after"] = "pass" if left[2] <= CLOSE * 100 else row["after"]
    return row


def percent(some: list[float], than: list[float]) -> tuple[float, ...]:
    """How much more some are than others beside them: median, and its 95% interval."""
    middle, low, high, _ = interval(a / b for a, b in zip(some, than, strict=False))
    return tuple(round(100 * (one - 1), 2) for one in (middle, low, high))


def good(row: dict[str, Any]) -> bool:
    """Whether a row has nothing that differs: busy times within 3%, and no cost outside."""
    if "outside" in row:
        return row.get("verdict") in ("pass", "open") and row.get("after") != "fail"
    same = row.get("same", {"compared": False})
    return all(value for key, value in same.items() if key != "busy_ratio")


def main() -> int:
    """All rows, each printed and kept as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", default=",".join(LIBRARIES))
    parser.add_argument("--nsys", action="store_true", help="under nsys, too")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=6, help="of turns, per library")
    parser.add_argument("--limit", type=float, default=160, help="seconds for all of it")
    given = parser.parse_args()
    given.ends = time.monotonic() + given.limit
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        libraries = filter(None, given.only.split(","))
        recorded = (row(library, Path(folder), given) for library in libraries)
        for one in chain(recorded, outside(Path(folder), given)):
            rows.append(one)
            print(json.dumps(one), flush=True)
            if given.out is not None:
                (given.out / "integrations.json").write_text(json.dumps(rows, indent=1))
    failed = [one.get("library", "outside") for one in rows if not good(one)]
    unsure = [one["outside"] for one in rows if "open" in (one.get("verdict"), one.get("after"))]
    print(json.dumps({"rows": len(rows), "failed": failed, "open": unsure}), flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
