#!/usr/bin/env python3
"""Whether programs keep their owners where the backward nodes of few engine runs are named.

    python scripts/gpu/backward_names.py [--out FOLDER] [--only item_per_parameter,…]

Each program is launched twice over the same steps: as it is, and with the nodes of every engine run
named. Both captures must have the same number of ops for each path and for each module. One line a
program is printed, and ``backward_names.json`` written after each. About 25 seconds a program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ("item_per_parameter", "single_tensor_adamw", "compiled_gpu_bound", "eager")
NAMES_ALL = """
import runpy, sys
from nvprobe.instrumentation import engine_runs
engine_runs.NAMED = range(1, 1_000_000)
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> int:
    """Run everything; exit code 1 if anything failed or an owner differs."""
    parser = argparse.ArgumentParser(description="Compare owners with and without all names.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--only", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--steps", default="20:32", help="none but these are recorded")
    parser.add_argument("--seconds", type=float, default=200, help="start nothing after this")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    begin = time.monotonic()
    for name in chosen.only.split(","):
        if time.monotonic() - begin < chosen.seconds:
            rows[name] = compared(name, chosen.steps)
            (chosen.out / "backward_names.json").write_text(json.dumps(rows, indent=1))
            print(f"{name:22}{json.dumps(rows[name])[:900]}", flush=True)
    failed = [name for name, row in rows.items() if not good(row)]
    left = [name for name in chosen.only.split(",") if name not in rows]
    print(json.dumps({"programs": len(rows), "failed": failed, "no time left": left}), flush=True)
    return int(bool(failed or left))


def good(row: dict[str, Any]) -> bool:
    """Whether owners and modules are the same, and nothing was said of the backward."""
    return not any(row.get(key) for key in ("error", "differ", "modules differ", "warnings"))


def compared(name: str, steps: str) -> dict[str, Any]:
    """The ledger of a program, and what differs between its two captures."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole.py"
        whole.write_text(NAMES_ALL)
        program = str(HERE / "programs" / f"{name}.py")
        try:
            few = launched([program], steps, f"{scratch}/few")
            every = launched([str(whole), program], steps, f"{scratch}/every")
        except Exception as error:
            return {"error": str(getattr(error, "stderr", None) or error)[-1500:], "differ": True}
    return {
        "methods": {one: entry["ops"] for one, entry in few["ledger"]["methods"].items()},
        "methods, all named": {k: e["ops"] for k, e in every["ledger"]["methods"].items()},
        "warnings": [text for text in few["warnings"] if "autograd" in text],
        "paths": len(counts(few)),
        "differ": sorted((counts(few) - counts(every)) + (counts(every) - counts(few)))[:10],
        "modules differ": sorted(set(shares(few)) ^ set(shares(every)))[:10],
        "step_ms": [one["steps"] and step_time(one) for one in (few, every)],
    }


def launched(words: list[str], steps: str, folder: str) -> dict[str, Any]:
    """The analysis of a program launched over some steps."""
    kept = {key: value for key, value in os.environ.items() if key != "NVPROBE_INSTRUMENT"}
    paths = [str(ROOT), str(HERE / "programs"), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    nvprobe = [sys.executable, "-m", "nvprobe"]
    launch = [*nvprobe, "launch", "--steps", steps, "--no-analyze", "-o", folder, *words]
    run(launch, kept)
    found: dict[str, Any] = json.loads(run([*nvprobe, "analyze", folder, "--json", "--all"], kept))
    return found


def run(words: list[str], environment: dict[str, str]) -> str:
    """What a command prints."""
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def counts(document: dict[str, Any]) -> Counter[str]:
    """Ops of each path, by its text."""
    return Counter({one["path"]: one["ops"] for one in document["ranges"]})


def shares(document: dict[str, Any]) -> list[str]:
    """Each module with its numbers of ops."""
    return [f"{one['module']} {one.get('ops')}" for one in document["modules"] or []]


def step_time(document: dict[str, Any]) -> float:
    """Median milliseconds of a step on the host."""
    times = sorted(one["wall_ns"] for one in document["steps"])
    return float(round(times[len(times) // 2] / 1e6, 3))


if __name__ == "__main__":
    sys.exit(main())
