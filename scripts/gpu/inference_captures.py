#!/usr/bin/env python3
"""Inference on a GPU: five planted causes and generate, captured, and what their fixes save.

    python scripts/gpu/inference_captures.py [--out FOLDER] [--only beyond,host]

For each program of ``programs/``: captured by ``nvprobe launch`` with and without the plant, timed
without a profiler both ways. Prints a table: steps and phases found, first finding, predicted
saving (low, middle, high) and the measured one; writes ``inference.json`` and the run folders.
Where transformers is missing its row says so. Under six minutes; a failure is a row of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "scripts" / "gpu" / "programs"
PLANTS = {
    "read_back": "implicit_sync",
    "prefill": "prefill_stall",
    "beyond": "graph_missed",
    "host": "host_work",
    "denoise": "implicit_sync",
    "generate": "launch_bound",
}
"""What the first finding of each planted run should be."""
LIMIT_S = 90


def words(plant: str, fixed: bool) -> list[str]:
    """The program and its arguments."""
    more = ["--fixed"] if fixed else []
    if plant == "generate":
        return [str(PROGRAMS / "generate_loop.py"), *more]
    return [str(PROGRAMS / "decode_loop.py"), plant, *more]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run from a folder, with this nvprobe on the path."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def plain(plant: str, fixed: bool, folder: Path) -> int:
    """The step without a profiler, in ns."""
    done = run([sys.executable, *words(plant, fixed), "--plain"], folder)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    return int(json.loads(done.stdout.splitlines()[-1])["step_ns"])


def captured(plant: str, fixed: bool, folder: Path) -> dict[str, Any]:
    """Capture and analyze: the document."""
    target = folder / f"{plant}{'-fixed' if fixed else ''}"
    window = [] if plant == "generate" else ["--steps", "40:100"]
    command = [sys.executable, "-m", "nvprobe", "launch", "-q", "--no-analyze", "-f"]
    done = run([*command, *window, "-o", str(target), *words(plant, fixed)], folder)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    done = run([sys.executable, "-m", "nvprobe", "analyze", "-q", "--json", str(target)], folder)
    found: dict[str, Any] = json.loads(done.stdout)
    (target / "analysis.json").write_text(done.stdout)
    return found


def row(plant: str, folder: Path) -> dict[str, Any]:
    """One line of the table."""
    before, after = (plain(plant, fixed, folder) for fixed in (False, True))
    planted, fixed = (captured(plant, one, folder) for one in (False, True))
    first = (planted["findings"] or [{}])[0]
    saving = first.get("step_saving") or {}
    saved = first.get("saves_ns")
    return {
        "plant": plant,
        "verdict": planted["verdict"],
        "found_by": sorted({step["found_by"] for step in planted["steps"]}),
        "steps": len(planted["steps"]),
        "phases": dict(Counter(step["phase"] or "-" for step in planted["steps"])),
        "graph_replays_by_module": planted["ledger"]["methods"]["graph_capture"]["ops"],
        "expected": PLANTS[plant],
        "first": first.get("id"),
        "right": first.get("id") == PLANTS[plant],
        "predicted_percent": [saving.get(name) for name in ("low", "mid", "high")],
        "saves_ns": saved,
        "step_ns": before,
        "fixed_step_ns": after,
        "measured_percent": round(100 * (1 - after / before), 1),
        "fixed_findings": [one["id"] for one in fixed["findings"] or []][:3],
    }


def shown(found: dict[str, Any]) -> str:
    """A row as text."""
    if "error" in found:
        return f"{found['plant']:<10} FAILED {found['error'].strip().splitlines()[-1][:120]}"
    low, mid, high = (f"{v:.0f}" if v is not None else "-" for v in found["predicted_percent"])
    return (
        f"{found['plant']:<10} {found['steps']:>5} {found['phases']!s:<40} "
        f"{found['first'] or '-':<16} {'yes' if found['right'] else 'NO':<4} "
        f"{low}/{mid}/{high} % predicted, {found['measured_percent']} % measured "
        f"({found['step_ns'] / 1e6:.2f} to {found['fixed_step_ns'] / 1e6:.2f} ms)"
    )


def main() -> None:
    """All rows, each printed and kept as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("inference-captures"))
    parser.add_argument("--only", default=",".join(PLANTS))
    given = parser.parse_args()
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for plant in given.only.split(","):
        begin = time.monotonic()
        try:
            rows.append(row(plant, folder))
        except Exception as error:
            rows.append({"plant": plant, "error": f"{type(error).__name__}: {error}"})
        rows[-1]["seconds"] = round(time.monotonic() - begin, 1)
        print(shown(rows[-1]), flush=True)
        (folder / "inference.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
