#!/usr/bin/env python3
"""Jobs of two GPUs captured anew, and `nvprobe ranks` held against calculation by hand.

    python3 scripts/gpu/ranks_captures.py --out FOLDER [--nsys PATH] [--only KIND,KIND]
        [--seconds 540]

First the bus bandwidth of all-reduce, all-gather and reduce-scatter by CUDA events, from 1 MB to
256 MB. Then each kind of `programs/two_ranks.py`: the step alone, then under `nvprobe launch
torchrun` (steps 10 to 14), as it is and with rank 1 late. Written: ``ranks_captures.json`` (a
line each: step times, what launch printed, the stragglers and collectives, the checks) and
``ranks_captures.tar.xz`` (the captures, for the corpus once sanitized). About six minutes; a
failure is a line in the JSON. Where the libraries of the analysis are missing, captures are kept
and the checks are not made.

Checks: the bus bandwidth that `ranks` gives each size lies within 25 % of the one by events (the
longest of the two ranks); DDP's exposed transfer is at most its bytes by that bandwidth; the late
rank is named with its kernel in `step` and a delay within 15 % of the spin; `blocking` has the
finding `exposed_transfer` and `hidden` has not, and what it promised is not less than half of
what came of it.
"""

from __future__ import annotations

import argparse
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAM = HERE / "programs" / "two_ranks.py"
LATE_CYCLES = 3_000_000
JOBS = [
    (name, kind, late)
    for kind in ("ddp", "fsdp2", "tensor", "compiled")
    for name, late in ((kind, 0), (f"{kind}_late", LATE_CYCLES))
] + [("blocking", "blocking", 0), ("hidden", "hidden", 0)]
KEPT = ("report.sqlite", "run.json", "job.json", "ranks.json", "sidecar.*.jsonl")

BANDWIDTH = """
import json, os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
n, rows = dist.get_world_size(), []
def timed(call):
    for _ in range(5): call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier(); torch.cuda.synchronize(); begin.record()
    for _ in range(20): call()
    end.record(); torch.cuda.synchronize()
    return begin.elapsed_time(end) / 20 / 1e3
for megabytes in (1, 4, 16, 32, 64, 256):
    size = megabytes * 2**20
    part = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    whole = torch.zeros(n * size // 2, dtype=torch.bfloat16, device="cuda")
    for kind, call, moved in (
        ("all_reduce", lambda: dist.all_reduce(part), 2 * (n - 1) / n * size),
        ("all_gather", lambda: dist.all_gather_into_tensor(whole, part), (n - 1) * size),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(part, whole), (n - 1) * size),
    ):
        seconds = timed(call)
        row = {"kind": kind, "bytes": size, "seconds": seconds, "bus_bytes_s": moved / seconds}
        rows.append(row)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda._sleep(1000); begin.record(); torch.cuda._sleep(CYCLES); end.record()
torch.cuda.synchronize()
if rank == 0: print(json.dumps({"rows": rows, "spin_s": begin.elapsed_time(end) / 1e3}), flush=True)
dist.destroy_process_group()
""".replace("CYCLES", str(LATE_CYCLES))


def main() -> int:
    """Run what was asked for; 1 where a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nsys", default=shutil.which("nsys") or "")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=540)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted, began, rows = set(filter(None, given.only.split(","))), time.monotonic(), {}
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "bandwidth.py")
        script.write_text(BANDWIDTH)
        by_hand = last_line(run([*torchrun(), str(script)]))
        rows["bandwidth"] = by_hand
        for name, kind, late in JOBS:
            if wanted and not wanted & {name, kind}:
                continue
            if time.monotonic() - began > given.seconds:
                rows[name] = {"error": "no time left"}
                continue
            rows[name] = captured(name, kind, late, given.nsys, Path(scratch), by_hand)
            print(json.dumps({name: rows[name]}), flush=True)
            (given.out / "ranks_captures.json").write_text(json.dumps(rows, indent=1))
        rows["planted"] = planted(rows)
        (given.out / "ranks_captures.json").write_text(json.dumps(rows, indent=1))
        pack(Path(scratch), given.out / "ranks_captures.tar.xz")
    failed = [name for name, row in rows.items() if "error" in row or False in checks(row)]
    print(json.dumps({"failed": failed}))
    return int(bool(failed))


def checks(row: dict[str, Any]) -> list[bool]:
    """The outcomes of a line's checks."""
    return list(row.get("checks", {}).values())


def torchrun() -> list[str]:
    """Two ranks of this machine."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(words: list[str], environment: dict[str, str] | None = None) -> Any:
    """Run to the end; a failure carries its stderr."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        words, capture_output=True, text=True, timeout=170, check=True,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )  # fmt: skip


def last_line(done: Any) -> dict[str, Any]:
    """The last object that a program printed."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1]))


def captured(
    name: str, kind: str, late: int, nsys: str, scratch: Path, by_hand: dict[str, Any]
) -> dict[str, Any]:
    """One job alone, then launched, and what `ranks` makes of it."""
    row: dict[str, Any] = {}
    words, folder = [str(PROGRAM), kind, "--late", str(late)], scratch / "runs" / name
    try:
        row |= last_line(run([*torchrun(), *words]))
        launch = [sys.executable, "-m", "nvprobe", "launch", "--steps", "10:14", "-o", str(folder)]
        done = run([*launch, *torchrun(), *words], {"NVPROBE_NSYS": nsys})
        row["printed"] = re.sub(r"/(?:[\w.+-]+/)+", "", done.stderr)[-4000:]
        if (folder / "ranks.json").exists():
            document = json.loads((folder / "ranks.json").read_text())
            keys = ("verdict", "stragglers", "collectives", "findings", "clock", "warnings")
            row |= {key: document[key] for key in keys}
            row["ranks"] = document["ranks"]
            row["checks"] = held(kind, late, document, by_hand)
    except (subprocess.SubprocessError, ValueError, KeyError, OSError, IndexError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
        row["stderr"] = str(getattr(error, "stderr", ""))[-1500:]
    return row


def held(
    kind: str, late: int, document: dict[str, Any], by_hand: dict[str, Any]
) -> dict[str, bool]:
    """The document against the calculation by hand."""
    out = {"adds_up": all(r["wait_ns"] + r["transfer_ns"] == r["communication_ns"]
                          for r in document["ranks"])}  # fmt: skip
    named = [one["rank"] for one in document["stragglers"]]
    if late:
        spin = by_hand["spin_s"] * 1e9
        (one, *_) = document["stragglers"] or [{"rank": None, "late_ns": 0, "path": None}]
        out["late_rank_named"] = one["rank"] == 1 and one["path"] == "step"
        out["delay"] = abs(one["late_ns"] - spin) < 0.15 * spin
    else:
        out["nobody_named"] = not named
    for one in document["collectives"]:
        usual = bandwidth(by_hand["rows"], one["kind"], one["bytes"])
        if usual and one["bus_bytes_s"] and one["count"] >= 4:
            key = f"bus_{one['kind']}_{one['bytes']}"
            out[key] = 0.75 < one["bus_bytes_s"] / usual < 1.33
    if kind == "ddp" and not late:
        moved = sum(
            one["count"] * one["bytes"] / bandwidth(by_hand["rows"], "all_reduce", one["bytes"])
            for one in document["collectives"] if one["kind"] == "all_reduce"
        )  # fmt: skip
        exposed = [f["evidence"]["exposed_transfer_ns"] for f in document["findings"]
                   if f["id"] == "exposed_transfer"]  # fmt: skip
        out["exposed_by_hand"] = 4 * max(exposed, default=0) <= 1.25e9 * moved
    return out


def bandwidth(rows: list[dict[str, Any]], kind: str, size: int | None) -> float:
    """Bus bandwidth by events at the nearest measured size; 0 for a kind that was not measured."""
    some = [row for row in rows if row["kind"] == kind and size and size >= 2**20]
    return (
        min(some, key=lambda row: abs(row["bytes"] - (size or 0)))["bus_bytes_s"] if some else 0.0
    )


def planted(rows: dict[str, Any]) -> dict[str, Any]:
    """Collectives on the compute stream, then beside the backward pass: finding, then none."""
    before, after = rows.get("blocking", {}), rows.get("hidden", {})
    if "findings" not in before or "findings" not in after:
        return {}
    promised = [f["saves_ns"] for f in before["findings"] if f["id"] == "exposed_transfer"]
    gain = (before["step_ms"] - after["step_ms"]) * 1e6
    return {
        "promised_ns": promised,
        "gain_ns": gain,
        "checks": {
            "found_before": bool(promised),
            "none_after": not any(f["id"] == "exposed_transfer" for f in after["findings"]),
            "gain_within_the_promise": bool(promised) and gain <= 1.1 * promised[0],
            "half_of_it_came": bool(promised) and gain >= 0.5 * promised[0],
        },
    }


def pack(scratch: Path, archive: Path) -> None:
    """The captures without what no fixture needs."""
    with tarfile.open(archive, "w:xz") as tar:
        for pattern in KEPT:
            for file in sorted(scratch.glob(f"runs/**/{pattern}")):
                tar.add(file, arcname=str(file.relative_to(scratch / "runs")))


if __name__ == "__main__":
    sys.exit(main())
