#!/usr/bin/env python3
"""Measure and capture the pairs of ``pair_programs.py`` on a GPU.

    python scripts/gpu/pairs.py --out FOLDER [--part 1/2] [--only NAME,NAME]

Each program as it is and fixed, in turns, without a profiler (``truth.jsonl``: a line a pair), then
as it is under ``nvprobe launch`` (``NAME.tar.xz``: its run folder without the report of nsys).
All pairs and their ``_hidden`` twins, whose fix is not worth making, take about 16 minutes on an
H200: two parts take less than ten minutes each. ``scripts/pairs FOLDER`` makes the table of
docs/accuracy.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ROOT / "scripts" / "gpu" / "pair_programs.py"
WINDOW, STEPS = "14:20", "24"


def main() -> int:
    """Run the chosen part; 1 where a program failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--part", default="1/1", help="such as 1/2")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--limit", type=float, default=560, help="seconds after which it stops")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(PROGRAMS.parent))
    from pair_programs import PAIRS

    part, parts = map(int, chosen.part.split("/"))
    names = [name for name in chosen.only.split(",") if name] or list(PAIRS)[part - 1 :: parts]
    end, failed = time.monotonic() + chosen.limit, 0
    with ThreadPoolExecutor(8) as packing:
        for name in names:
            for hidden in ([], ["--hidden"]):
                if time.monotonic() > end:
                    print(json.dumps({"not run": name, "hidden": bool(hidden)}), flush=True)
                    failed = 1
                    continue
                failed |= one(name, hidden, chosen.out, packing)
    return failed


def one(name: str, hidden: list[str], out: Path, packing: ThreadPoolExecutor) -> int:
    """Measure and capture one pair; 1 where that failed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    truth = run([str(PROGRAMS), name, "--measure", *hidden], environment)
    print(truth, flush=True)
    if truth.startswith("{"):
        with (out / "truth.jsonl").open("a") as lines:
            lines.write(truth + "\n")
    folder = out / (name + "_hidden" * bool(hidden))
    launch = ["-m", "nvprobe", "launch", "-q", "--no-analyze", "--steps", WINDOW, "-o", str(folder)]
    said = run([*launch, str(PROGRAMS), name, *hidden, "--steps", STEPS], environment)
    for report in folder.glob("*.nsys-rep"):
        report.unlink()
    if not list(folder.glob("*.sqlite")):
        print(json.dumps({"name": folder.name, "error": said[-400:]}), flush=True)
        return 1
    packing.submit(pack, folder)
    return int("error" in truth)


def run(command: list[str], environment: dict[str, str]) -> str:
    """The last line that Python wrote, of errors where it wrote none."""
    try:
        done = subprocess.run(
            [sys.executable, *command], env=environment, text=True, timeout=120,
            capture_output=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "stopped after 120 s"
    return ((done.stdout.strip() or done.stderr.strip()).splitlines() or ["no output"])[-1]


def pack(folder: Path) -> None:
    """``folder.tar.xz`` instead of the folder's large files."""
    with tarfile.open(folder.with_name(folder.name + ".tar.xz"), "w:xz", preset=1) as archive:
        archive.add(folder, folder.name)
    for path in folder.glob("*.sqlite"):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
