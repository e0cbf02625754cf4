#!/usr/bin/env python3
"""What instrumentation costs a training step on a GPU, and whether it finds six planted syncs.

    python scripts/gpu/annotate_cost.py [--out FOLDER] [--seconds 3] [--only small,large]

Runs ``scripts/benchmarks/step_cost.py`` (a small and a large transformer, eager and compiled, plain
and instrumented processes taking turns) and, while its processes start, a program with six implicit
synchronizations. Each row is printed, and ``annotate_cost.json`` written, as soon as it is known.
Two plain processes differ by several percent, too (``control``): whether an eager step takes 1 %
more is for ``turns_cost.py --alone``, in one process. ``--nsys PATH`` repeats the eager rows under
nsys. Under a minute; a failure is a line in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEP_COST = ROOT / "scripts" / "benchmarks" / "step_cost.py"

SYNCS = """
import nvprobe
nvprobe.instrument()
import torch
x = torch.arange(8, device="cuda") - 3.0
for _ in range(4):
    x.sum().item()          # planted item
    x.nonzero()             # planted nonzero
    x[x > 0]                # planted boolean index
    x.cpu()                 # planted cpu
    x.tolist()              # planted tolist
    bool(x.any())           # planted truth value
"""


def find_syncs(scratch: Path) -> dict[str, Any]:
    """Run six implicit synchronizations and compare the sidecar's lines with where they are."""
    script = scratch / "six.py"
    script.write_text(SYNCS)
    folder = scratch / "side"
    subprocess.run(
        [sys.executable, str(script)],
        env=environment() | {"NVPROBE_SIDECAR": str(folder)},
        cwd=scratch,
        check=True,
        timeout=180,
    )
    lines = [json.loads(line) for one in folder.iterdir() for line in one.read_text().splitlines()]
    found = sorted({line["source"] for line in lines if line["kind"] == "sync"})
    planted = [f"six.py:{n}" for n, line in enumerate(SYNCS.splitlines(), 1) if "planted" in line]
    counts = {line["source"]: line["count"] for line in lines if line["kind"] == "sync"}
    return {"planted": sorted(planted), "found": found, "counts": counts}


def environment() -> dict[str, str]:
    """The tree's own nvprobe, and no inherited instrumentation."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_")}
    paths = [str(ROOT), kept.get("PYTHONPATH", "")]
    deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return kept | deterministic | {"PYTHONPATH": os.pathsep.join(one for one in paths if one)}


def step_rows(words: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of step_cost.py, one by one; what it says of a failure as the last one."""
    command = [sys.executable, str(STEP_COST), *words]
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=said, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                yield json.loads(line)
        if child.returncode:
            said.seek(0)
            yield {"error": said.read()[-1500:] or "the weights differ"}


def main() -> int:
    """Measure everything; exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Measure the cost of instrumentation on a GPU.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default="", help="path of nsys: measure eager under it, too")
    parser.add_argument("--only", default="small,large", help="models, separated by commas")
    parser.add_argument("--seconds", type=float, default=3, help="of turns, a row")
    parser.add_argument("--device", default="cuda", help="cpu: to try the script out")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"steps": []}
    words = ["--device", chosen.device, "--models", chosen.only, "--seconds", str(chosen.seconds)]
    runs = [words]
    if chosen.nsys:
        runs.append([*words, "--modes", "eager", "--nsys", chosen.nsys])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        syncs = pool.submit(find_syncs, Path(folder)) if chosen.device == "cuda" else None
        for run in runs:
            for row in step_rows(run):
                result["steps"].append(row | {"nsys": "--nsys" in run})
                print(json.dumps(result["steps"][-1]), flush=True)
                (chosen.out / "annotate_cost.json").write_text(json.dumps(result, indent=1))
        try:
            result["syncs"] = syncs.result() if syncs else None
        except (subprocess.SubprocessError, OSError) as error:
            result["syncs"] = {"error": str(error)}
    text = json.dumps(result, indent=1)
    (chosen.out / "annotate_cost.json").write_text(text)
    print(json.dumps(result["syncs"]))
    return int('"error"' in text)


if __name__ == "__main__":
    sys.exit(main())
