#!/usr/bin/env python3
"""Jobs of two GPUs captured anew, and `nvprobe ranks` held against calculation by hand.

    python3 scripts/gpu/ranks_captures.py --out FOLDER [--nsys PATH] [--only JOB,JOB]
        [--seconds 240]

First `programs/two_ranks_alone.py`: bandwidths by CUDA events, and the step of each kind without a
profiler. Then each kind of `programs/two_ranks.py` under `nvprobe launch torchrun` (steps 10 to
14), as it is, with rank 1 late, and with an eighth more tokens on rank 1, for which it has to be
named. Whatever fails or takes too long is a line in
``ranks_captures.json``, which is written after each job, as is ``JOB.tar.xz`` with its captures and
what it printed (without reports of nsys, which hold environments; 14 MB at most in all).

Checks: waiting and transfer add up. The late rank is named with `step`, its kernel, and a delay
within 15 % of the spin; where its GPU idles for longer than the spin in each step, the spin costs
nothing, and only its kernel has to be seen. Otherwise nobody is named but for a host that takes as
much longer per step as is said, counted by hand in both SQLite files. The transfer of each
collective takes between 3/4 and 4/3 of its time by events; so does, of `tensor` and `blocking`, the
exposed transfer, which is all that they communicate, and of `ddp`, where it is the last bucket, it
is between 0.6 of that and twice that; there is no finding where the GPU that arrives last idles
longer than that, or where it is less than 2 % of a step. `blocking` has the finding
`exposed_transfer`; what came of it lies between 0.4 and 1.1 times what was promised at most, and
`hidden` promises no more than what did not come.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs"
LATE_CYCLES = 3_000_000
UNEVEN = 0.125
"""Of the tokens: so many more rank 1 has in a job that is called uneven."""
ALONE = ("ddp", "blocking", "hidden", "tensor", "fsdp2")
JOBS = (
    "ddp_late", "ddp", "blocking", "hidden", "fsdp2_late", "tensor_late", "tensor", "compiled_late",
    "fsdp2", "compiled", "ddp_uneven",
)  # fmt: skip
ALONE_S, JOB_S, END_S = 80.0, 60.0, 5.0
"""Limits: without a profiler, of a job, and between an interrupt and the kill."""
LARGE_BYTES = 2**20
"""Smaller messages take what a launch takes, not what the network does."""
ARCHIVES_BYTES = 14_000_000
KEPT = ("report.sqlite", "run.json", "job.json", "ranks.json", "sidecar.*.jsonl", "*.txt")
WITHIN = (0.75, 4 / 3)
EXPOSED = {"tensor": WITHIN, "blocking": WITHIN, "ddp": (0.6, 2.0)}
"""Bounds of exposed transfer by what it is by hand, of jobs where that can be said."""
SMALL = 0.02
"""Of a step: less is not worth a finding."""
BLOCKS_NS = 100_000
"""A call that takes longer waits for the GPU, or for a place in its queue."""
HOST_NS = """
    SELECT step.end - step.start - coalesce((
        SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
        WHERE call.start >= step.start AND call.start < step.end AND end - start > ?), 0)
    FROM NVTX_EVENTS AS step LEFT JOIN StringIds ON id = textId
    WHERE coalesce(text, value) = 'step' AND step.end IS NOT NULL ORDER BY step.start"""


def main() -> int:
    """Run what was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nsys", default=shutil.which("nsys") or "")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=240)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    wanted = [job for job in JOBS if not given.only or job in given.only.split(",")]
    end, rows = time.monotonic() + given.seconds, dict[str, Any]()
    scratch = Path(tempfile.mkdtemp())
    try:
        kinds = [kind for kind in ALONE if any(kind in job for job in wanted)]
        rows["alone"] = guarded(lambda: alone(scratch, kinds, min(ALONE_S, given.seconds)))
        show(rows, "alone", given.out)
        for name in wanted:
            if end - time.monotonic() < JOB_S / 3:
                rows[name] = {"error": "no time left"}
                continue
            limit = min(JOB_S, end - time.monotonic())
            rows[name] = guarded(lambda n=name, s=limit: captured(n, given.nsys, scratch, s))  # type: ignore[misc]
            rows[name]["checks"] = guarded(lambda n=name: held(n, rows[n], rows["alone"]))  # type: ignore[misc]
            show(rows, name, given.out)
            rows[name]["archive"] = guarded(lambda n=name: pack(scratch / "runs" / n, given.out))  # type: ignore[misc]
        rows["planted"] = guarded(lambda: {"checks": planted(rows)})
    finally:
        show(rows, "planted", given.out)
        for folder in sorted(scratch.glob("runs/*")):
            if not (given.out / f"{folder.name}.tar.xz").exists():
                guarded(lambda f=folder: pack(f, given.out))  # type: ignore[misc]
        shutil.rmtree(scratch, ignore_errors=True)
    failed = [f"{job}: {name}" for job in rows for name in failures(rows[job])]
    print(json.dumps({"failed": failed}))
    return int(bool(failed))


def guarded(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a call gives, or its error: nothing of one job may cost another."""
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def show(rows: dict[str, Any], name: str, out: Path) -> None:
    """Keep all rows, and print what is short of one."""
    text = json.dumps(rows, indent=1, default=str)
    (out / "ranks_captures.json").write_text(text)
    keys = ("error", "seconds", "rc", "verdict", "checks", "exposed")
    row = rows.get(name, {})
    print(json.dumps({name: {key: row[key] for key in keys if key in row}}), flush=True)


def failures(row: dict[str, Any]) -> list[str]:
    """What went wrong in a row."""
    checks = row.get("checks", {})
    return [key for key in ("error",) if key in row] + [
        key for key, value in checks.items() if value is not True
    ]


def torchrun(program: str, *words: str) -> list[str]:
    """Two ranks of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, "--nproc-per-node", "2", str(PROGRAMS / program), *words]


def run(words: list[str], folder: Path, limit_s: float, **environment: str) -> dict[str, Any]:
    """Run with its output in files of a folder; interrupted, then killed when it takes too long."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environ = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    began, row = time.monotonic(), dict[str, Any]()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**environ, **environment},
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            row["error"] = f"stopped after {limit_s:.0f} s"
        finally:
            stop(process)
    row |= {"rc": process.returncode, "seconds": round(time.monotonic() - began, 1)}
    return row | {"stderr": (folder / "stderr.txt").read_text(errors="replace")[-6000:]}


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started, if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def alone(scratch: Path, kinds: list[str], limit_s: float) -> dict[str, Any]:
    """Bandwidths and steps without a profiler."""
    row = run(torchrun("two_ranks_alone.py", *kinds), scratch / "alone", limit_s)
    for line in (scratch / "alone" / "stdout.txt").read_text().splitlines():
        if line.startswith("{"):
            row |= json.loads(line)
    return row


def captured(name: str, nsys: str, scratch: Path, limit_s: float) -> dict[str, Any]:
    """One job launched, and what `ranks` says of it."""
    kind, _, late = name.partition("_")
    folder, beside = scratch / "runs" / name / "job", scratch / "runs" / name
    launch = [sys.executable, "-m", "nvprobe", "launch", "--steps", "10:14", "-o", str(folder)]
    plant = {"late": ("--late", str(LATE_CYCLES)), "uneven": ("--uneven", str(UNEVEN))}
    words = torchrun("two_ranks.py", kind, *plant.get(late, ()))
    row = run([*launch, *words], beside, limit_s, NVPROBE_NSYS=nsys)
    if (folder / "ranks.json").exists():
        row |= json.loads((folder / "ranks.json").read_text())
    row["hosts_ns"] = [guarded(lambda f=one: {"steps": hosts(f)})  # type: ignore[misc]
                       for one in sorted(folder.glob("rank*/report.sqlite"))]  # fmt: skip
    return row


def hosts(report: Path) -> list[int]:
    """ns of the host in each step of a report, without calls that block."""
    with contextlib.closing(sqlite3.connect(f"file:{report}?mode=ro", uri=True)) as found:
        return [row[0] for row in found.execute(HOST_NS, (BLOCKS_NS,))]


def held(name: str, row: dict[str, Any], by_hand: dict[str, Any]) -> dict[str, Any]:
    """A job's document against the calculation by hand; a check that fails to run is its error."""
    if "ranks" not in row:
        return {"analyzed": False}
    kind, _, late = name.partition("_")
    checks: dict[str, Callable[[], bool]] = {
        "adds_up": lambda: all(one["wait_ns"] + one["transfer_ns"] == one["communication_ns"]
                               for one in row["ranks"]),
        "printed": lambda: row["verdict"][:40] in row["stderr"],
    }  # fmt: skip
    if late == "uneven":
        checks["late_rank_named"] = lambda: any(
            (one["rank"], one["cause"]) == (1, "compute") for one in row["stragglers"]
        )
    elif late:
        checks |= of_the_plant(row, by_hand.get("spin_s", 0) * 1e9)
    else:
        checks["named_by_hand"] = lambda: all(slower(one, row) for one in row["stragglers"])
    for one in row["collectives"]:
        if (one["bytes"] or 0) >= LARGE_BYTES and one["count"] >= 4:
            where = (one["path"] or "").rpartition("/")[2]
            key = f"transfer_{one['kind']}_{one['bytes']}_{where}"
            checks[key] = lambda o=one: within(ratio(o, by_hand), WITHIN)  # type: ignore[misc]
    if kind in EXPOSED and not late:
        row["exposed"] = guarded(lambda: exposed(kind, row, by_hand))
        checks["exposed_by_hand"] = lambda: exposed_agrees(row["exposed"], EXPOSED[kind])
    return {key: checked(check) for key, check in checks.items()}


def of_the_plant(row: dict[str, Any], spin_ns: float) -> dict[str, Callable[[], bool]]:
    """Rank 1 is named for its spin, or the spin is seen where its GPU idles for longer anyway."""
    if row["ranks"][1]["idle_ns"] > spin_ns:
        spins = [one["gpu_ns"] / row["ranks"][1]["steps"] for one in row["differences"]
                 if one["kind"] == "kernel" and one["ranks"] == [1]]  # fmt: skip
        return {
            "plant_seen": lambda: abs(max(spins) / spin_ns - 1) < 0.15,
            "named_by_hand": lambda: all(slower(one, row) for one in row["stragglers"]),
        }
    delays = [one["late_ns"] for one in row["stragglers"]
              if (one["rank"], one["path"]) == (1, "step")]  # fmt: skip
    return {
        "late_rank_named": lambda: len(delays) == 1,
        "delay": lambda: abs(delays[0] / spin_ns - 1) < 0.15,
    }


def slower(one: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether the host of a rank that is said to be late takes about as much longer by hand."""
    own, other = (float(np.median(row["hosts_ns"][rank]["steps"][1:]))
                  for rank in (one["rank"], 1 - one["rank"]))  # fmt: skip
    return one["cause"] == "host" and within(one["late_ns"] / (own - other), WITHIN)


def checked(check: Callable[[], bool]) -> bool | str:
    """Whether it holds, or why that cannot be said."""
    try:
        return bool(check())
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def within(value: float, bounds: tuple[float, float]) -> bool:
    """Whether a ratio lies in its bounds."""
    return bounds[0] <= value <= bounds[1]


def ratio(one: dict[str, Any], by_hand: dict[str, Any]) -> float:
    """A collective's transfer by its time by CUDA events."""
    return float(one["transfer_ns"]) / by_events(one, by_hand)


def by_events(one: dict[str, Any], by_hand: dict[str, Any]) -> float:
    """ns of such a collective by CUDA events, between the two measured sizes next to it."""
    rows = [row for row in by_hand["bandwidth"] if row["kind"] == one["kind"]]
    sizes, seconds = [row["bytes"] for row in rows], [row["seconds"] for row in rows]
    return float(np.interp(one["bytes"], sizes, seconds)) * 1e9


def exposed(kind: str, row: dict[str, Any], by_hand: dict[str, Any]) -> dict[str, Any]:
    """Exposed transfer of a step as `ranks` has it, and by hand.

    `blocking` and `tensor` wait for all that they send, DDP for what is ready only when the
    backward pass ends: its last large bucket.
    """
    steps = max(one["steps"] for one in row["ranks"])
    ours = [one["evidence"]["exposed_transfer_ns"] for one in row["findings"]
            if one["id"] == "exposed_transfer"]  # fmt: skip
    parts = [one for one in row["collectives"]
             if one["kind"] == "all_reduce" and (one["bytes"] or 0) >= LARGE_BYTES]  # fmt: skip
    if kind == "ddp":
        buckets = [int(size) for size in by_hand["ddp"]["buckets"].split(",")]
        last = [size for size in buckets if size >= LARGE_BYTES][-1]
        parts = [{"kind": "all_reduce", "bytes": last, "count": steps}]
    hand = sum(one["count"] * by_events(one, by_hand) for one in parts) / steps
    last = max(row["ranks"], key=lambda one: one["last"])
    found = {"ours_ns": ours, "by_hand_ns": hand, "idle_ns": last["idle_ns"],
             "of_step": hand / max(one["step_ns"] for one in row["ranks"])}  # fmt: skip
    if kind == "ddp":
        found["by_no_sync_ns"] = (by_hand["ddp"]["step_s"] - by_hand["ddp"]["local_s"]) * 1e9
    return found


def exposed_agrees(found: dict[str, Any], bounds: tuple[float, float]) -> bool:
    """Whether the finding says what it is by hand, or is not there for a reason."""
    if not found["ours_ns"]:
        return bool(found["of_step"] < SMALL or found["idle_ns"] > found["by_hand_ns"])
    return within(found["ours_ns"][0] / found["by_hand_ns"], bounds)


def planted(rows: dict[str, Any]) -> dict[str, Any]:
    """Collectives on the compute stream, then beside the backward pass: less is left to gain."""
    before, after = rows.get("blocking", {}), rows.get("hidden", {})
    if "findings" not in before or "findings" not in after:
        return {}
    promised, left = ([f["saves_ns"] for f in one["findings"] if f["id"] == "exposed_transfer"]
                      for one in (before, after))  # fmt: skip
    alone = rows["alone"]
    gain = (alone["blocking"]["step_s"] - alone["hidden"]["step_s"]) * 1e9
    rows["planted_ns"] = {"promised": promised, "left": left, "gain": gain}
    return {
        "found_before": bool(promised),
        "less_after": not left or left[0] <= 1.1 * promised[0] - gain,
        "gain_within_the_promise": bool(promised) and gain <= 1.1 * promised[0],
        "enough_of_it_came": bool(promised) and gain >= 0.4 * promised[0],
    }


def pack(folder: Path, out: Path) -> dict[str, Any]:
    """The captures of a job without what no fixture needs."""
    archive = out / f"{folder.name}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=1) as tar:
        for file in sorted({one for pattern in KEPT for one in folder.rglob(pattern)}):
            tar.add(file, arcname=f"{folder.name}/{file.relative_to(folder)}")
    size, sizes = archive.stat().st_size, [one.stat().st_size for one in out.glob("*.tar.xz")]
    if sum(sizes) > ARCHIVES_BYTES:
        archive.unlink()
        return {"error": f"{size} bytes: more than {ARCHIVES_BYTES} in all"}
    return {"bytes": size}


if __name__ == "__main__":
    sys.exit(main())
