#!/usr/bin/env python3
"""Time nvprobe on a grown torch trace against a bare msgspec pass over the same bytes.

    python scripts/benchmarks/torch_trace.py [--events 1000000] [--frames]

The pass splits a memory map into events and decodes each into ``msgspec.Raw``: what any reader of
such a file must do at least. ``load`` is nvprobe's Trace of it, ``whole`` everything that
``nvprobe analyze --json`` does. Every measurement runs in a process of its own, the best of three;
the time of the trace grown once is subtracted. Seconds are of CPU time. Target for loading: 3 x
the pass, and a million events under 4 s and 600 MB. ``--frames``: with Python frames, most of the
events of a trace that has them. Needs the corpus (NVPROBE_SHARED, else ../shared).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NVPROBE_SHARED", ROOT.parent / "shared"))
SOURCE = SHARED / "corpus/kineto/h200/eager.json.gz"
TARGET, RUNS = 3.0, 3


def child_pass(path: str, _frames: bool) -> int:
    """The list of events as raw bytes, each decoded once; how many there were."""
    import msgspec

    document = msgspec.defstruct("Document", [("traceEvents", list[msgspec.Raw])])
    decoder = msgspec.json.Decoder()
    with Path(path).open("rb") as file:
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        events = msgspec.json.decode(memoryview(text), type=document).traceEvents
    for event in events:
        decoder.decode(event)
    return len(events)


def child_load(path: str, frames: bool) -> int:
    """nvprobe's Trace."""
    from nvprobe.readers.kineto import load_kineto

    return len(load_kineto(path, python_stacks=frames).ops or ())


def child_whole(path: str, frames: bool) -> int:
    """Everything, as JSON."""
    from nvprobe.analysis import analyze
    from nvprobe.attribution import attribute
    from nvprobe.merging.load import load
    from nvprobe.report.document import to_json

    return len(to_json(analyze(attribute(load(path, python_stacks=frames)))))


CHILDREN = {"pass": child_pass, "load": child_load, "whole": child_whole}


def measure(kind: str, path: Path, frames: bool) -> dict[str, float]:
    """The quickest of a few children: what disturbs a machine only ever adds time."""
    command = [sys.executable, __file__, "--child", kind, str(path), *(["--frames"] * frames)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NVPROBE_CACHE": "off"}
    answers = []
    for _ in range(RUNS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        answers.append(json.loads(done.stdout))
    return dict(min(answers, key=lambda answer: answer["cpu_s"]))


def grown(folder: Path, repeats: int) -> Path:
    """The real trace repeated so many times."""
    path = folder / f"{repeats}.json"
    subprocess.run(
        [sys.executable, ROOT / "scripts/grow_trace.py", SOURCE, path, str(repeats)], check=True,
        capture_output=True,
    )  # fmt: skip
    return path


def main() -> None:
    """Parse options, measure, print JSON; exit 1 beyond the target."""
    parser = argparse.ArgumentParser(description="Time nvprobe on a grown torch trace.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--frames", action="store_true", help="read Python frames, too")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        start = time.process_time()
        count = CHILDREN[options.child[0]](options.child[1], options.frames)
        spent, peak = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu_s": spent, "count": count, "peak_mb": peak.ru_maxrss / 1024}))
        return
    if not SOURCE.is_file():
        sys.exit(f"torch_trace.py: no corpus at {SHARED} (set NVPROBE_SHARED)")
    with tempfile.TemporaryDirectory(prefix="nvprobe-bench-") as name:
        small = grown(Path(name), 1)
        events = measure("pass", small, False)["count"]
        large = grown(Path(name), -(-options.events // int(events)))
        result: dict[str, float] = {"events": measure("pass", large, False)["count"]}
        for kind in CHILDREN:
            once, many = (measure(kind, path, options.frames) for path in (small, large))
            result[f"{kind}_s"] = round(many["cpu_s"] - once["cpu_s"], 2)
            result[f"{kind}_ratio"] = round(result[f"{kind}_s"] / result["pass_s"], 2)
            result[f"{kind}_peak_mb"] = round(many["peak_mb"])
    print(json.dumps(result, indent=1))
    sys.exit(result["load_ratio"] > TARGET)


if __name__ == "__main__":
    main()
