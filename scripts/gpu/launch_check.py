#!/usr/bin/env python3
"""Launch six kinds of program on a GPU by ``nvprobe launch``, unedited, and hold what comes back.

    python scripts/gpu/launch_check.py --nsys PATH [--out FOLDER] [--only eager,six_syncs]

For each program: its step time alone; then ``nvprobe launch --steps 16:20``;
then ``nvprobe analyze --json`` of the run folder. Writes ``launch_check.json`` (exit codes, notes,
ledgers, sync lines found and planted, overheads, seconds) and ``launch_check.tar.xz`` (slim exports
and sidecars, without environment, paths or host). Then the backends and options that need a GPU:
torch.profiler, a torch trace beside nsys, GPU metrics. Unattended: one program's failure is a line
in the JSON. About six minutes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from examples_capture import FOLDER, scrub_line, slim

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOST = re.compile(r'"host_name": "[^"]*",?')
PROGRAMS = ("eager", "six_syncs", "manual_graph", "workers", "compiled", "reduce_overhead")
WARM = ["--warmup", "8"]
EXTRAS = {
    "eager_torch_backend": ("eager", ["--backend", "torch", "--steps", "16:18"]),
    "eager_with_torch_trace": ("eager", ["--with-torch-trace", *WARM, "--steps", "16:18"]),
    "eager_gpu_metrics": ("eager", ["--gpu-metrics", "--steps", "16:18"]),
    "eager_not_annotated": ("eager", ["--annotate", "off"]),
    "eager_whole_run": ("eager", []),
    "graph_whole": ("manual_graph", ["--graphs-whole", *WARM, "--steps", "16:20"]),
}
WINDOW = [*WARM, "--steps", "16:20"]


def main() -> int:
    """Run everything; exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Launch programs on a GPU and check the runs.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=shutil.which("nsys") or "", help="path of nsys")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=330, help="start nothing after this")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wanted = set(filter(None, chosen.only.split(",")))
    jobs = [(name, name, WINDOW) for name in PROGRAMS]
    jobs += [(name, program, words) for name, (program, words) in EXTRAS.items()]
    begin = time.monotonic()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, program, words in jobs:
            if wanted and name not in wanted:
                continue
            if time.monotonic() - begin > chosen.seconds:
                rows[name] = {"error": "no time left"}
                continue
            rows[name] = check(name, program, words, chosen.nsys, Path(scratch))
            print(json.dumps({name: rows[name]}), flush=True)
            (chosen.out / "launch_check.json").write_text(json.dumps(rows, indent=1))
        pack(Path(scratch), chosen.out / "launch_check.tar.xz")
    return int(any("error" in row for row in rows.values()))


def check(name: str, program: str, words: list[str], nsys: str, scratch: Path) -> dict[str, Any]:
    """One program alone, launched and analyzed."""
    script = HERE / "programs" / f"{program}.py"
    folder = scratch / name
    row: dict[str, Any] = {}
    begin = time.monotonic()
    try:
        if name == program:
            row["plain_step_ms"] = step_ms(run([sys.executable, str(script)]))
        launched = run(
            [sys.executable, "-m", "nvprobe", "launch", "--no-analyze", "-o", str(folder), *words,
             str(script)],
            {"NVPROBE_NSYS": nsys},
        )  # fmt: skip
        row["launched_step_ms"] = step_ms(launched)
        row["stderr"] = tail(launched.stderr)
        row["run"] = told(folder)
        row |= analyzed(folder, script)
        keep(folder, scratch / "kept", name)
    except (subprocess.SubprocessError, ValueError, KeyError, OSError, IndexError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
        row["stderr"] = tail(getattr(error, "stderr", None) or row.get("stderr", ""))
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def run(command: list[str], environment: dict[str, str] | None = None) -> Any:
    """Run to the end; a failure carries its stderr."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        command, capture_output=True, text=True, timeout=170, check=True,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )  # fmt: skip


def step_ms(done: Any) -> float:
    """The step time that a program printed."""
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"step_ms"')]
    return float(json.loads(lines[-1])["step_ms"])


def tail(text: str) -> str:
    """The end of a program's stderr."""
    return re.sub(r"/(?:[\w.+-]+/)+", "", str(text))[-1500:]


def told(folder: Path) -> dict[str, Any]:
    """What run.json says, and how large the files are."""
    document = json.loads((folder / "run.json").read_text())
    keys = ("backend", "nsys", "window", "exit_code", "problem", "notes", "steps", "overhead")
    sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}
    return {key: document[key] for key in keys} | {"bytes": sizes}


def analyzed(folder: Path, script: Path) -> dict[str, Any]:
    """Ledger, steps, verdict and sync lines of the run folder, and the lines that were planted."""
    done = run([sys.executable, "-m", "nvprobe", "analyze", str(folder), "--json"])
    document = json.loads(done.stdout)
    ledger = dict(document["ledger"])
    ledger.pop("by_process", None)
    planted = [
        f"{script.name}:{number}"
        for number, line in enumerate(script.read_text().splitlines(), 1)
        if line.endswith("# sync")
    ]
    found = sorted(
        {Path(str(row["source"])).name for row in document["syncs"] or [] if row.get("source")}
    )
    return {
        "ledger": ledger,
        "verdict": document["verdict"],
        "warnings": document["warnings"],
        "devices": document["devices"],
        "steps": len(document["steps"] or []),
        "paths": [row["path"] for row in document["ranges"] or []][:80],
        "syncs_planted": planted,
        "syncs_found": found,
        "syncs_missed": [line for line in planted if line not in found],
        "findings": [row["id"] for row in document["findings"] or []],
        "missing": [row["what"] for row in document["missing"] or []],
    }


def keep(folder: Path, kept: Path, name: str) -> None:
    """Slim copies of what may become a fixture."""
    kept.mkdir(exist_ok=True)
    if (folder / "report.sqlite").exists():
        slim(folder / "report.sqlite", kept / f"{name}.sqlite")
    lines = [
        scrub_line(line)
        for file in sorted(folder.glob("sidecar.*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    if lines:
        (kept / f"{name}.sidecar.jsonl").write_text("\n".join(lines) + "\n")
    for trace in folder.glob("trace.*.json.gz"):
        if trace.stat().st_size < 2**20:
            with (
                gzip.open(trace, "rt") as whole,
                gzip.open(kept / f"{name}.torch.json.gz", "wt") as clean,
            ):
                clean.writelines(HOST.sub("", FOLDER.sub("", line)) for line in whole)


def pack(scratch: Path, target: Path) -> None:
    """All kept files in one archive."""
    with tarfile.open(target, "w:xz") as archive:
        for file in sorted((scratch / "kept").glob("*")) if (scratch / "kept").exists() else ():
            archive.add(file, arcname=file.name)


if __name__ == "__main__":
    sys.exit(main())
