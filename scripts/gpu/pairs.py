#!/usr/bin/env python3
"""Measure and capture the pairs of ``pair_programs.py`` or another file of pairs on a GPU.

    python scripts/gpu/pairs.py --out FOLDER [--programs judge_programs] [--twins] [--part 1/2]
                                [--only NAME,NAME_hidden] [--limit SECONDS]

First each program as it is and fixed, in turns, without a profiler (``truth.jsonl``: a line a
pair), then each as it is under ``nvprobe launch`` (``NAME.tar.xz``: its run folder without the
report of nsys). Captures start and end beside one another, but only one of them uses the GPU. What
is done when the time is over is kept. ``--twins`` adds ``NAME_hidden`` to each program, whose fix
is not worth making. ``scripts/pairs FOLDER`` makes the table of docs/accuracy.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WINDOW, STEPS = "14:20", "24"
KEPT = ("*.sqlite", "run.json", "sidecar.*.jsonl")
SILENT = 120.0  # seconds for one program to be measured: some are compiled in several ways
LONGEST = 90.0  # seconds for a capture
SHORTEST = 15.0  # seconds under which none is begun
MEASURING = 0.5  # of the time, at most
BESIDE = 2  # captures that start and end beside one another
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
    begin = time.monotonic()
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, chosen.part.split("/"))
    names = [name for name in chosen.only.split(",") if name]
    names = (names or all_of(chosen.programs, chosen.twins))[part - 1 :: parts]
    program = HERE / f"{chosen.programs}.py"
    measured = list(measure(program, names, out, begin + MEASURING * chosen.limit))
    say({"measured": len(measured), "of": len(names), "seconds": time.monotonic() - begin})
    with ThreadPoolExecutor(BESIDE) as beside:
        end = begin + chosen.limit
        captured = sum(beside.map(lambda name: capture(program, name, out, end), measured))
    say({"captured": captured, "of": len(names), "seconds": time.monotonic() - begin})
    missing = [name for name in names if not (out / f"{name}.tar.xz").exists()]
    say({"missing": missing, "of these not measured": sorted(set(missing) - set(measured))})
    return int(captured < len(names))


def say(what: dict[str, object]) -> None:
    """A line of JSON."""
    print(json.dumps(what), flush=True)


def all_of(programs: str, twins: bool) -> list[str]:
    """The names of a file of pairs."""
    sys.path[:0] = [str(HERE), str(ROOT)]
    import_module(programs)  # puts its pairs into the list
    names = list(import_module("pair_runner").PROGRAMS)
    names.sort(key=lambda name: "compiled" in name)  # last what takes long
    return [name + end for name in names for end in (("", "_hidden") if twins else ("",))]


def measure(program: Path, names: list[str], out: Path, end: float) -> Iterator[str]:
    """Measure in one process, in another one after a failure; the names of those that it got."""
    left = list(names)
    while left and time.monotonic() < end:
        process = started([str(program), "--measure", *left])
        for line in lines_of(process, end, SILENT):
            row = json.loads(line) if line.startswith('{"name"') else {"name": None}
            if row["name"] != left[0]:
                say({"said": line})
                continue
            left.pop(0)
            print(line, flush=True)
            if "error" in row:
                break  # the GPU may be of no use to this process any more
            with (out / "truth.jsonl").open("a") as truth:
                truth.write(line + "\n")
            yield str(row["name"])
            if "errors" in row:
                break  # nor after a capture that failed
        else:
            if left:
                say({"name": left.pop(0), "problem": "not measured: its process ended"})
        stop(process)
    for name in left:
        say({"name": name, "problem": "not measured: no time left"})


def capture(program: Path, name: str, out: Path, end: float) -> bool:
    """Capture a program and pack what is kept; whether that worked."""
    folder, begin = out / name, time.monotonic()
    if end - begin < SHORTEST:
        say({"name": name, "problem": "not captured: no time left"})
        return False
    command = ["-m", "nvprobe", "launch", "-q", "-f", "--no-analyze", "--steps", WINDOW]
    process = started([*command, "-o", str(folder), str(program), name, "--steps", STEPS], out)
    said = list(lines_of(process, min(end, begin + LONGEST), LONGEST))
    stop(process)
    good = bool(list(folder.glob("*.sqlite")))
    more = {} if good else {"problem": f"not captured ({process.returncode})", "said": said[-9:]}
    say({"name": name, "seconds": time.monotonic() - begin, **more})
    if good:
        with tarfile.open(out / f"{name}.tar.xz", "w:xz", preset=6) as archive:
            for path in (path for kind in KEPT for path in folder.glob(kind)):
                archive.add(path, f"{name}/{path.name}")
    shutil.rmtree(folder, ignore_errors=True)
    return good


def started(command: list[str], out: Path | None = None) -> subprocess.Popen[str]:
    """Python with the command, in a session of its own; with ``out`` alone on its GPU."""
    lock = {"PAIRS_LOCK": str(out / "lock")} if out else {}
    return subprocess.Popen(
        [sys.executable, *command], env=ENVIRONMENT | lock, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def lines_of(process: subprocess.Popen[str], end: float, silent: float) -> Iterator[str]:
    """What a process writes until it ends, time is over, or it is silent for too long."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (
            line := lines.get(timeout=max(min(silent, end - time.monotonic()), 0.01))
        ) is not None:
            yield line
    except queue.Empty:
        yield "stopped: it took too long"


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, where it has not ended by itself.

    A launch is asked first: nsys and its program are in a session of their own.
    """
    for limit_s, number in ((1.0, signal.SIGTERM), (5.0, signal.SIGKILL)):
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
