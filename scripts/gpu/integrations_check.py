#!/usr/bin/env python3
"""Whether a callback in place records what `nvprobe launch` records: three trainers on a GPU.

    python scripts/gpu/integrations_check.py [--out FOLDER] [--only lightning,trainer,accelerate]

Each program of ``programs/trained_by.py`` runs once with its callback in place and once, unedited,
under ``nvprobe launch --backend torch --steps 10:15`` (and once more under nsys with ``--nsys``).
Prints one JSON line per library: steps, phases, kernels and GPU busy time per step of each way, and
whether they agree: steps, phases and kernels the same, busy time within 3%. A last line compares
steps after a window with those before it, beside the same steps of the plain program: what is left
of the recording. A failure is a row. About 15 s per library; all processes stop at ``--limit``
seconds.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "gpu" / "programs" / "trained_by.py"
LIBRARIES = ("lightning", "trainer", "accelerate")
LAUNCH = ["-m", "nvprobe", "launch", "-q", "--no-analyze", "-f", "--steps", "10:15"]
CLOSE = 0.03


def run(words: list[str], limit: float) -> None:
    """Run Python, with this nvprobe first on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {"KINETO_LOG_LEVEL": "6", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **quiet, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=max(1.0, limit), check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{words[-2:]}: exit code {done.returncode}: {done.stderr[-600:]}")


def facts(folder: Path) -> dict[str, Any]:
    """What the analysis says of a run folder, per step."""
    sys.path.insert(0, str(ROOT))
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


def outside(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Median step of Accelerate's loop before and after its window, with and without recording."""
    begin = time.monotonic()
    found: dict[str, Any] = {"outside": "accelerate"}
    words = [str(PROGRAM), "accelerate", "--width", str(given.width), "--steps", "200"]
    ways = {"plain": [], "recorded": ["--record", str(folder / "outside"), "--first", "60"]}
    for way, more in ways.items():
        times = folder / f"{way}.json"
        try:
            run([*words, "--times", str(times), *more], given.ends - time.monotonic())
            periods = json.loads(times.read_text())
            before, after = statistics.median(periods[10:55]), statistics.median(periods[110:190])
            found[way] = {"before_us": round(before / 1e3, 1), "after_us": round(after / 1e3, 1)}
        except Exception as error:
            found[way] = {"error": f"{type(error).__name__}: {error}"[-700:]}
    if not any("error" in found[way] for way in ways):
        more = [found[way]["after_us"] / found[way]["before_us"] for way in ("recorded", "plain")]
        found["more_after_percent"] = round(100 * (more[0] / more[1] - 1), 2)
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def good(row: dict[str, Any]) -> bool:
    """Whether a row has nothing that differs: busy times and steps outside within 3%."""
    if "outside" in row:
        return abs(row.get("more_after_percent", 100)) <= 100 * CLOSE
    same = row.get("same", {"compared": False})
    return all(value for key, value in same.items() if key != "busy_ratio")


def main() -> int:
    """All rows, each printed and kept as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", default=",".join(LIBRARIES))
    parser.add_argument("--nsys", action="store_true", help="under nsys, too")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--limit", type=float, default=80, help="seconds for all of it")
    given = parser.parse_args()
    given.ends = time.monotonic() + given.limit
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for library in filter(None, [*given.only.split(","), "outside"]):
            made = outside(Path(folder), given) if library == "outside" else None
            rows.append(made or row(library, Path(folder), given))
            print(json.dumps(rows[-1]), flush=True)
            if given.out is not None:
                (given.out / "integrations.json").write_text(json.dumps(rows, indent=1))
    failed = [one.get("library", "outside") for one in rows if not good(one)]
    print(json.dumps({"rows": len(rows), "failed": failed}), flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
