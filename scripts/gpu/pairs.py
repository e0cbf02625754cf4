#!/usr/bin/env python3
"""Measure and capture the pairs of ``pair_programs.py`` or another file of pairs on a GPU.

    python scripts/gpu/pairs.py --out FOLDER [--programs judge_programs] [--twins] [--part 1/2]
                                [--only NAME,NAME_hidden] [--limit SECONDS]

Each program as it is and fixed, in turns, without a profiler (``truth.jsonl``: a line a pair), then
as it is under ``nvprobe launch`` (``NAME.tar.xz``: its run folder without the report of nsys). What
is done is kept when the time is over. A pair takes 10 to 17 seconds on an H200. ``--twins`` adds to
each program one named ``NAME_hidden``, whose fix is not worth making. ``scripts/pairs FOLDER``
makes the table of docs/accuracy.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WINDOW, STEPS = "14:20", "24"
KEPT = ("*.sqlite", "run.json", "sidecar.*.jsonl")
LONGEST = 90.0  # seconds for one process
FOUND = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
ENVIRONMENT = {**os.environ, "PYTHONPATH": FOUND, "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    """Run the chosen part; 1 where a program failed or time ran out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--programs", default="pair_programs", help="a file in this folder")
    parser.add_argument("--twins", action="store_true", help="also each with its fix hidden")
    parser.add_argument("--part", default="1/1", help="such as 1/2")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--limit", type=float, default=560, help="seconds after which it stops")
    chosen = parser.parse_args()
    end = time.monotonic() + chosen.limit
    chosen.out.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, chosen.part.split("/"))
    names = [name for name in chosen.only.split(",") if name]
    names = (names or all_of(chosen.programs, chosen.twins))[part - 1 :: parts]
    failed = 0
    with ThreadPoolExecutor(4) as packing:
        for name in names:
            problem = one(HERE / f"{chosen.programs}.py", name, chosen.out, end)
            if problem:
                failed = 1
                print(json.dumps({"name": name, "problem": problem[-2000:]}), flush=True)
            packing.submit(pack, chosen.out / name)
    return failed


def all_of(programs: str, twins: bool) -> list[str]:
    """The names of a file of pairs."""
    sys.path[:0] = [str(HERE), str(ROOT)]
    names = list(import_module(programs).PAIRS)
    return [name + end for name in names for end in (("", "_hidden") if twins else ("",))]


def one(program: Path, name: str, out: Path, end: float) -> str:
    """Measure and capture one pair; what went wrong."""
    begin = time.monotonic()
    arguments = [name.removesuffix("_hidden"), *(["--hidden"] if name.endswith("_hidden") else [])]
    code, said = run([str(program), *arguments, "--measure"], end)
    truth = next((line for line in said.splitlines() if line.startswith('{"name"')), "")
    if code or not truth or "error" in json.loads(truth):
        return f"not measured ({code}): {truth or said}"
    with (out / "truth.jsonl").open("a") as lines:
        lines.write(truth + "\n")
    launch = ["-m", "nvprobe", "launch", "-q", "-f", "--no-analyze", "--steps", WINDOW]
    code, said = run(
        [*launch, "-o", str(out / name), str(program), *arguments, "--steps", STEPS], end
    )
    print(json.dumps({"seconds": round(time.monotonic() - begin, 1)}), truth, flush=True)
    return "" if list((out / name).glob("*.sqlite")) else f"not captured ({code}): {said}"


def run(command: list[str], end: float) -> tuple[int | str, str]:
    """The exit code and output of Python, stopped with all its children when time is over."""
    left = min(LONGEST, end - time.monotonic())
    if left < 1:
        return "no time left", ""
    process = subprocess.Popen(
        [sys.executable, *command], env=ENVIRONMENT, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"stopped after {left:.0f} s", ""
    return process.returncode, said


def pack(folder: Path) -> None:
    """``folder.tar.xz`` instead of the folder."""
    if folder.exists():
        with tarfile.open(folder.with_name(folder.name + ".tar.xz"), "w:xz", preset=6) as archive:
            for path in (path for kind in KEPT for path in folder.glob(kind)):
                archive.add(path, f"{folder.name}/{path.name}")
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
