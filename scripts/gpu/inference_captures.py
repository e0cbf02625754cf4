#!/usr/bin/env python3
"""Inference on a GPU: planted causes, generate and a compiled decode loop, and what fixes save.

    python scripts/gpu/inference_captures.py [--out FOLDER] [--only beyond,host]

For each program of ``programs/``: timed without a profiler with and without the plant (both in one
process, in turns), then captured by ``nvprobe launch`` both ways and analyzed. Prints a line each:
steps and phases found, first finding, predicted saving (low, middle, high) and the measured one.
Writes ``inference.json`` and ``captures.tar.xz``, the run folders of both captures (export,
``run.json``, sidecar), which stay where an analysis fails. Half a minute a program, those that
compile one to two; two GPUs take half of them each (``--only``). A failure is a line of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
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
    "compiled": "launch_bound",
    "generate": "launch_bound",
}
"""What the first finding of each planted run should be."""
LIMIT_S = 60
COMPILE_S = 150
"""The same of a program that compiles."""


def limit(plant: str) -> int:
    """Seconds that one process of a program may take."""
    return COMPILE_S if plant in ("compiled", "generate") else LIMIT_S


def words(plant: str) -> list[str]:
    """The program and its arguments."""
    if plant == "generate":
        return [str(PROGRAMS / "generate_loop.py")]
    return [str(PROGRAMS / "decode_loop.py"), plant]


def run(command: list[str], folder: Path, limit_s: int) -> str:
    """Standard output of a command that finds this nvprobe, and all else that this process does."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-600:])
    return done.stdout


def plain(plant: str, folder: Path) -> dict[str, int]:
    """The steps without a profiler, in ns."""
    out = run([sys.executable, *words(plant), "--plain"], folder, limit(plant))
    times: dict[str, int] = json.loads(out.splitlines()[-1])
    return times


def capture(plant: str, fixed: bool, folder: Path) -> Path:
    """Capture: the run folder."""
    target = folder / f"{plant}{'-fixed' if fixed else ''}"
    command = [sys.executable, "-m", "nvprobe", "launch", "-q", "--no-analyze", "-f"]
    window = {"generate": "6:40"}.get(plant, "40:100")
    more = ["--fixed"] if fixed else []
    run([*command, "--steps", window, "-o", str(target), *words(plant), *more], folder,
        limit(plant))  # fmt: skip
    return target


def analyzed(target: Path) -> dict[str, Any]:
    """The document of a run folder."""
    command = [sys.executable, "-m", "nvprobe", "analyze", "-q", "--json", str(target)]
    found: dict[str, Any] = json.loads(run(command, target, LIMIT_S))
    return found


def row(plant: str, folder: Path, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """Measure one program; one analysis goes on while the next capture is made."""
    begin = time.monotonic()
    found: dict[str, Any] = {"plant": plant, "expected": PLANTS[plant]}
    waiting: dict[str, Future[dict[str, Any]]] = {}
    try:
        found |= plain(plant, folder)
    except Exception as error:
        found["plain_error"] = f"{type(error).__name__}: {error}"
    for name, fixed in (("planted", False), ("fixed", True)):
        try:
            waiting[name] = pool.submit(analyzed, capture(plant, fixed, folder))
        except Exception as error:
            found[f"{name}_error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = round(time.monotonic() - begin, 1)
    found["waiting"] = waiting
    return found


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """A row with what its analyses say."""
    for name, future in found.pop("waiting").items():
        try:
            document = future.result()
            found[name] = said(document)
        except Exception as error:
            found[f"{name}_error"] = f"{type(error).__name__}: {error}"
    first = (found.get("planted", {}).get("findings") or [{}])[0]
    found["right"] = first.get("id") == found["expected"]
    before, after = found.get("step_ns"), found.get("fixed_step_ns")
    found["measured_percent"] = round(100 * (1 - after / before), 1) if before else None
    return found


def said(document: dict[str, Any]) -> dict[str, Any]:
    """What an analysis says of steps, phases, graph replays and findings."""
    steps, ledger = document["steps"], document["ledger"]
    return {
        "verdict": document["verdict"],
        "found_by": sorted({step["found_by"] for step in steps}),
        "steps": len(steps),
        "phases": dict(Counter(step["phase"] or "-" for step in steps)),
        # Modules write ranges into a capture, or a compiled graph has its kernels listed.
        "graph_replays_by_range": ledger["methods"]["graph_capture"]["ops"],
        "kernels_by_manifest": ledger["modules"].get("manifest", {}).get("ops", 0),
        "findings": [
            {key: one.get(key) for key in ("id", "saves_ns", "step_saving", "estimate", "title")}
            for one in (document["findings"] or [])[:4]
        ],
    }


def shown(found: dict[str, Any]) -> str:
    """A row as text."""
    errors = [f"{key}: {str(value).strip().splitlines()[-1][:120]}"
              for key, value in found.items() if key.endswith("_error")]  # fmt: skip
    planted = found.get("planted", {})
    first = (planted.get("findings") or [{}])[0]
    saving = first.get("step_saving") or {}
    predicted = "/".join(
        "-" if saving.get(name) is None else f"{saving[name]:.0f}"
        for name in ("low", "mid", "high")
    )
    return (
        f"{found['plant']:<10} {planted.get('steps', '-'):>5} {planted.get('phases')!s:<36} "
        f"{first.get('id') or '-':<16} {'yes' if found['right'] else 'NO':<4} {predicted}% "
        f"predicted, {found['measured_percent']}% measured ({found.get('step_ns')} to "
        f"{found.get('fixed_step_ns')} ns) {found['seconds']} s {' | '.join(errors)}"
    )


def pack(folder: Path) -> None:
    """All run folders in one archive, without what holds the machine's environment."""
    with tarfile.open(folder / "captures.tar.xz", "w:xz") as archive:
        for file in sorted(folder.glob("*/*")):
            if file.suffix in (".sqlite", ".json", ".jsonl"):
                archive.add(file, file.relative_to(folder))


def main() -> int:
    """All rows, kept as soon as they are known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("inference-captures"))
    parser.add_argument("--only", default=",".join(PLANTS))
    given = parser.parse_args()
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(2) as pool:
        for plant in given.only.split(","):
            rows.append(judged(row(plant, folder, pool)))
            (folder / "inference.json").write_text(json.dumps(rows, indent=1))
            print(shown(rows[-1]), flush=True)
        pack(folder)
    failed = [one["plant"] for one in rows if not (one["right"] and promised(one))]
    print(json.dumps({"rows": len(rows), "failed": failed}), flush=True)
    return int(bool(failed))


def promised(found: dict[str, Any]) -> bool:
    """Whether the first finding's saving came: it was measured within the bounds."""
    saving = (found.get("planted", {}).get("findings") or [{}])[0].get("step_saving") or {}
    low, high, measured = saving.get("low"), saving.get("high"), found["measured_percent"]
    return None not in (low, high, measured) and low <= measured <= high


if __name__ == "__main__":
    sys.exit(main())
