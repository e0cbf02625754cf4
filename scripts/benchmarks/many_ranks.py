#!/usr/bin/env python3
"""Grow a job of many ranks from a real one, plant stragglers, and see what `nvprobe ranks` finds.

    many_ranks.py SOURCE FOLDER [--ranks 32 64 128 256] [--seed 7]

SOURCE is the folder of one rank of a job that `nvprobe launch` captured with nsys (its NCCL
kernels and steps are taken as they are). For each number of ranks a job is written into FOLDER:
every rank is a copy with its own clock (a node of eight ranks is off by up to 5 ms), arrivals
that scatter by a few microseconds, and, for a few ranks, a kernel of each step that takes longer,
so that their first collective begins later. Each job is read with one process and with two, nothing
kept in between. Printed is what was planted and found, and what it cost; exit code 1 where a
planted straggler is missing or another one was invented.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCATTER_NS = 4_000
NODE = 8
STRAGGLERS = 5


def collectives(report: Path) -> list[tuple[int, int, int]]:
    """(row id, start, end) of the NCCL kernels in the order of time."""
    with sqlite3.connect(report) as database:
        return database.execute(
            "select k.rowid, k.start, k.end from CUPTI_ACTIVITY_KIND_KERNEL k "
            "join StringIds s on s.id = k.demangledName where s.value like '%nccl%' "
            "order by k.start"
        ).fetchall()


def first_kernels(report: Path) -> list[int]:
    """Row id of the kernel before the first collective of each step: the one to lengthen."""
    with sqlite3.connect(report) as database:
        kernels = database.execute(
            "select k.rowid, k.start, k.end, s.value like '%nccl%' from "
            "CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName "
            "order by k.start"
        ).fetchall()
    out, last, idle = [], 0, 0
    for row, start, end, talks in kernels:
        if talks and start - idle > 5_000_000:  # the first one of a step comes after its forward
            out.append(last)
        if talks:
            idle = end
        else:
            last = row
    return out


def plan(ranks: int, random_: random.Random, step_ns: int) -> dict[int, int]:
    """Delay of each straggler in ns: from 2 to 12 % of a step."""
    chosen = random_.sample(range(ranks), STRAGGLERS)
    return {rank: int(step_ns * random_.uniform(0.02, 0.12)) for rank in sorted(chosen)}


def grow(source: Path, folder: Path, ranks: int, seed: int) -> dict[int, int]:
    """Write a job; the planted delays by rank."""
    random_ = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(
        json.dumps({"schema": "nvprobe.job/1", "job": f"grown-{ranks}"})
    )
    talks, longer = collectives(source / "report.sqlite"), first_kernels(source / "report.sqlite")
    steps = len(longer)
    per_step = len(talks) // steps
    late = plan(ranks, random_, (talks[-1][2] - talks[0][1]) // steps)
    transfer = sorted(end - start for _, start, end in talks)[len(talks) // 4]
    scatter = [[int(abs(random_.gauss(0, SCATTER_NS))) for _ in talks] for _ in range(ranks)]
    begin = [
        [start + scatter[rank][i] + (late.get(rank, 0) if i % per_step == 0 else 0)
         for i, (_, start, _) in enumerate(talks)]
        for rank in range(ranks)
    ]  # fmt: skip
    ends: list[int] = []
    for i in range(len(talks)):  # a stream runs its kernels one after the other
        for row in begin:
            row[i] = max(row[i], (ends[-1] if ends else 0) + SCATTER_NS)
        ends.append(max(row[i] for row in begin) + transfer)
    offsets = [random_.randint(-5_000_000, 5_000_000) for _ in range(ranks // NODE + 1)]
    for rank in range(ranks):
        _write(source, folder / f"rank{rank}", rank, ranks, offsets[rank // NODE],
               [(begin[rank][i], ends[i] + random_.randint(0, 2_000), row)
                for i, (row, _, _) in enumerate(talks)],
               [(late[rank], row) for row in longer] if rank in late else [])  # fmt: skip
    return late


def _write(
    source: Path,
    folder: Path,
    rank: int,
    ranks: int,
    offset: int,
    times: list[tuple[int, int, int]],
    longer: list[tuple[int, int]],
) -> None:
    """One rank: its copy of the report with other times, and its run.json."""
    folder.mkdir()
    run = json.loads((source / "run.json").read_text())
    run |= {"rank": rank, "world_size": ranks}
    (folder / "run.json").write_text(json.dumps(run))
    shutil.copy(source / "report.sqlite", folder / "report.sqlite")
    with sqlite3.connect(folder / "report.sqlite") as database:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        database.execute("pragma synchronous = off")
        database.executemany(f"update {table} set start = ?, end = ? where rowid = ?", times)
        database.executemany(f"update {table} set end = end + ? where rowid = ?", longer)
        session = "update TARGET_INFO_SESSION_START_TIME set utcEpochNs = utcEpochNs + ?"
        database.execute(session, (offset,))
    database.close()


def measure(folder: Path, jobs: int, kept: Path) -> dict[str, Any]:
    """Run the command in a process of its own: its answer, wall and CPU seconds, peak memory."""
    words = [sys.executable, "-m", "nvprobe", "ranks", os.fspath(folder), "--json", "-q"]
    words += ["--jobs", str(jobs), "--summaries", os.fspath(kept)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"document": json.loads(done.stdout), "wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def reduce_alone(folder: Path, kept: Path) -> dict[str, Any]:
    """The comparison alone, all summaries being there: seconds and peak memory."""
    words = [sys.executable, "-c", _REDUCE, os.fspath(folder), os.fspath(kept)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


_REDUCE = """
import json, resource, sys, time
from pathlib import Path
from nvprobe.ranks.job import reduced
from nvprobe.ranks.store import read
paths = sorted(Path(sys.argv[2]).glob("*.parquet"))
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = [rank for path in paths for rank in read(path)]
loaded = time.process_time()
reduced(found)
done = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"read_s": round(loaded - began, 2), "compare_s": round(done - loaded, 2),
                  "base_mb": base // 1024, "peak_mb": peak // 1024}))
"""


def main() -> None:
    """Grow, measure, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    wrong = False
    for ranks in given.ranks:
        job = given.folder / f"job{ranks}"
        planted = grow(given.source, job, ranks, given.seed + ranks)
        runs = {}
        for jobs in (1, 2):
            kept = given.folder / f"kept{ranks}-{jobs}"
            shutil.rmtree(kept, ignore_errors=True)
            runs[jobs] = measure(job, jobs, kept)
        kept = given.folder / f"kept{ranks}-1"
        files = [file.stat().st_size for file in kept.glob("*.parquet")]
        found = {one["rank"]: one["late_ns"] for one in runs[1]["document"]["stragglers"]}
        causes = {one["rank"]: one["cause"] for one in runs[1]["document"]["stragglers"]}
        wrong |= found.keys() != planted.keys()
        same = runs[1].pop("document") == runs[2].pop("document")
        print(json.dumps({
            "ranks": ranks, "planted_us": {r: ns // 1000 for r, ns in planted.items()},
            "found_us": {r: found[r] // 1000 for r in sorted(found)}, "causes": causes,
            "one_process": runs[1], "two_processes": runs[2], "same": same,
            "summary_kb": round(sum(files) / len(files) / 1000, 1), **reduce_alone(job, kept),
        }), flush=True)  # fmt: skip
        shutil.rmtree(job)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
