"""Ranks without a GPU: waiting for data is input, not the host's own work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.ranks.discovery import discover
from nvprobe.ranks.job import reduced
from nvprobe.ranks.map import summarize

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def write_cpu_job(folder: Path, slow_us: dict[int, int], *, where: str) -> Path:
    """Two ranks of which each step loads, computes and reduces; the others wait for the slow."""
    folder.mkdir()
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for step in range(6):
            more = slow_us.get(rank, 0)
            load, work = 500 + more * (where == "data"), 800 + more * (where == "forward")
            reduce = 100 + max(slow_us.values()) - more
            at = 1_000 + step * 20_000
            begun = at + load + work + 20
            events += [
                scope(f"ProfilerStep#{step}", at, begun + reduce + 10 - at, rank),
                scope(NEXT, at + 5, load, rank),
                scope("aten::stack", at + 10, load - 10, rank, "cpu_op"),
                scope("forward", at + 10 + load, work, rank),
                scope("gloo:all_reduce", begun, reduce, rank),
            ]
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        text = json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def scope(
    name: str, at: int, length: int, rank: int, kind: str = "user_annotation"
) -> dict[str, Any]:
    pid = 900 + rank
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": pid, "ts": at, "dur": length}


@pytest.mark.parametrize(
    ("where", "cause", "path"), [("data", "input", NEXT), ("forward", "host", "forward")]
)
def test_the_cause_of_a_late_rank(tmp_path: Path, where: str, cause: str, path: str) -> None:
    job = write_cpu_job(tmp_path / "job", {1: 3_000}, where=where)
    found = reduced([one for source in discover([job]) for one in summarize(source)])
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (1, cause)
    assert late.path is not None
    assert path in late.path
    assert {one.kind for one in found.paths} == {cause}
