#!/usr/bin/env python3
"""What instrumentation costs a training step on a GPU: a small and a large transformer.

    python scripts/gpu/annotate_cost.py [--out FOLDER] [--repeats 3] [--only small,large]

Every measurement is a process of its own, plain and instrumented in turn: eager and compiled, with
no tool attached. ``--nsys PATH`` repeats the eager ones under nsys. Prints one JSON object and
writes it to ``annotate_cost.json``: step times in microseconds (median of the repeats' medians,
and all of them), the ratio, and the lines of six implicit synchronisations found and planted.
About six minutes; a failing measurement is a line in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
SHAPES = {
    "small": {"width": 256, "layers": 4, "heads": 4, "batch": 8, "length": 64},
    "large": {"width": 2048, "layers": 12, "heads": 16, "batch": 8, "length": 512},
}
WARMUP, MEASURED = 15, 60


def build(shape: dict[str, int]) -> tuple[Any, Any, Any]:
    """A transformer of plain modules, its optimizer and a batch on the GPU."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.act = nn.Linear(width, 4 * width), nn.GELU()
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).unbind(2)
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
            return x + self.down(self.act(self.up(self.norm2(x))))

    torch.manual_seed(0)
    width = shape["width"]
    blocks = [Block(width, shape["heads"]) for _ in range(shape["layers"])]
    model = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, 256)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    size = (shape["batch"], shape["length"], width)
    return model, optimizer, torch.randn(*size, device="cuda", dtype=torch.bfloat16)


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """One process: the time of each of `MEASURED` steps, and a digest of the weights after them."""
    if job["instrumented"]:
        import nvprobe

        nvprobe.instrument()
    import hashlib

    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    model, optimizer, batch = build(SHAPES[job["model"]])
    run = torch.compile(model) if job["compiled"] else model
    times = []
    for step in range(WARMUP + MEASURED):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        run(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step >= WARMUP:
            times.append((time.perf_counter_ns() - start) / 1000)
    weights = torch.cat([one.detach().float().flatten() for one in model.parameters()]).cpu()
    return {
        "step_us": statistics.median(times),
        "fastest_us": min(times),
        "digest": hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16],
    }


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
    """Run six implicit synchronisations and compare the sidecar's lines with where they are."""
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


def run_job(job: dict[str, Any], nsys: str, scratch: Path) -> dict[str, Any]:
    """Measure in a fresh process, under nsys where the job says so."""
    command = [sys.executable, str(HERE), "--worker", json.dumps(job)]
    if job["nsys"]:
        report = scratch / f"run{time.monotonic_ns()}"
        options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(report)]
        command = [nsys, "profile", *options, *command]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"step_us"')]
    if done.returncode or not lines:
        return {"error": done.stderr[-1500:]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def compare(model: str, compiled: bool, nsys: str, repeats: int, scratch: Path) -> dict[str, Any]:
    """Plain and instrumented in turn, `repeats` times each."""
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(repeats):
        for instrumented in (False, True):
            job = {"model": model, "compiled": compiled, "instrumented": instrumented}
            runs[instrumented].append(run_job(job | {"nsys": bool(nsys)}, nsys, scratch))
    good = {key: [one for one in rows if "step_us" in one] for key, rows in runs.items()}
    medians = {
        key: statistics.median(one["step_us"] for one in rows) if rows else None
        for key, rows in good.items()
    }
    plain, with_ranges = medians[False], medians[True]
    return {
        "model": model,
        "compiled": compiled,
        "nsys": bool(nsys),
        "plain_us": plain,
        "instrumented_us": with_ranges,
        "ratio": with_ranges / plain if plain and with_ranges else None,
        "weights_equal": len({one["digest"] for rows in good.values() for one in rows}) == 1,
        "runs": runs,
    }


def main() -> int:
    """Measure everything; exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Measure the cost of instrumentation on a GPU.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default="", help="path of nsys: measure eager under it, too")
    parser.add_argument("--only", default="small,large", help="models, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(json.dumps(measure(json.loads(chosen.worker))))
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"steps": []}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            result["syncs"] = find_syncs(scratch)
        except (subprocess.SubprocessError, OSError) as error:
            result["syncs"] = {"error": str(error)}
        variants = [(False, "", chosen.repeats), (True, "", 1)]
        if chosen.nsys:
            variants.append((False, chosen.nsys, 1))
        for model in chosen.only.split(","):
            for compiled, nsys, repeats in variants:
                result["steps"].append(compare(model, compiled, nsys, repeats, scratch))
    text = json.dumps(result, indent=1)
    (chosen.out / "annotate_cost.json").write_text(text)
    print(text)
    return int('"error"' in text)


if __name__ == "__main__":
    sys.exit(main())
