#!/usr/bin/env python3
"""The runs of docs/tutorial.md on a GPU, before and after the change, and that of example 00.

    python3 scripts/gpu/tutorial_captures.py --out FOLDER [--side 24, to try it without a GPU]

Writes ``tutorial.tar.xz``: the run folders ``first``, ``before`` and ``after`` as the pages read
them, the reports slimmed to the tables that nvprobe reads, without folders, hosts and environments;
and ``tutorial.log``: what each command printed. About a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "gpu")]
from examples_capture import scrub_line, slim  # noqa: E402

RUNS = {
    "before": ["20:30", "examples/tutorial/train.py"],
    "after": ["20:30", "examples/tutorial/train.py", "--workers", "8"],
    "first": ["10:15", "examples/00_train.py"],
}
"""The steps to capture and the command of each run."""


def launched(folder: Path, words: list[str]) -> str:
    """One run of the program; what was printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [
        sys.executable, "-m", "nvprobe", "launch", "--force", "-o", str(folder), "--steps", *words,
    ]  # fmt: skip
    done = subprocess.run(
        ["timeout", "120", *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return f"$ {' '.join(command[1:])}\n{done.stdout}\n(exit code {done.returncode})\n"


def clean(folder: Path, target: Path) -> None:
    """The report, the sidecar and run.json of a run, without what names the machine."""
    target.mkdir(parents=True)
    slim(folder / "report.sqlite", target / "report.sqlite")
    for sidecar in folder.glob("sidecar.*.jsonl"):
        lines = [scrub_line(line) for line in sidecar.read_text().splitlines()]
        (target / sidecar.name).write_text("\n".join(lines) + "\n")
    about = json.loads((folder / "run.json").read_text())
    (target / "run.json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> int:
    """Capture both runs and pack them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--side", help="width of a picture")
    given = parser.parse_args()
    out, side = given.out.resolve(), ["--side", given.side] if given.side else []
    out.mkdir(parents=True, exist_ok=True)
    log = ""
    with tarfile.open(out / "tutorial.tar.xz", "w:xz") as archive:
        for name, words in RUNS.items():
            log += launched(out / "runs" / name, [*words, *(side if name != "first" else [])])
            (out / "tutorial.log").write_text(log)
            if (out / "runs" / name / "report.sqlite").exists():
                clean(out / "runs" / name, out / "clean" / name)
                archive.add(out / "clean" / name, arcname=name)
    print(log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
