"""Summaries as files, and the map over captures in processes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from nvprobe.demo import unpacked
from nvprobe.errors import NvprobeError
from nvprobe.ranks import run, store
from nvprobe.ranks.discovery import Source, discover
from nvprobe.ranks.map import summarize
from nvprobe.ranks.run import map_locally, workers
from nvprobe.ranks.summary import Summary
from tests.unit.ranks.traces import write_job


def same(first: Summary, second: Summary) -> bool:
    """Whether two summaries are equal, column by column."""
    tables = ("steps", "spent", "collectives", "groups", "kernels")
    equal = all(
        np.array_equal(column, getattr(second, name).columns()[key])
        for name in tables
        for key, column in getattr(first, name).columns().items()
    )
    rest = ("identity", "texts", "utc", "gpu", "compiled", "notes")
    return equal and all(getattr(first, name) == getattr(second, name) for name in rest)


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    (source,) = discover([write_job(tmp_path / "job", ranks=1)])
    found = summarize(source)
    (back,) = store.read(store.write(tmp_path / "kept", "a" * 40, found))
    assert same(found[0], back)
    assert len(found[0].collectives)


def test_keys_follow_content(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", ranks=2)
    first, second = map(store.key_of, discover([job]))
    assert first != second
    os.utime(job / "rank0.json", (1, 1))
    assert [store.key_of(one) for one in discover([job])] == [first, second]
    text = (job / "rank0.json").read_text()
    (job / "rank0.json").write_text(text.replace("gemm", "gemv", 1))
    assert store.key_of(discover([job])[0]) != first


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = discover([write_job(tmp_path / "job", ranks=3)])
    first = map_locally(sources, tmp_path / "kept")
    (broken,) = [one.path for one in first if one.source.rank == 1]
    assert broken is not None
    broken.write_bytes(broken.read_bytes()[:100])
    made: list[str] = []

    def counting(source: Source) -> list[Summary]:
        made.append(source.name)
        return summarize(source)

    monkeypatch.setattr(run, "summarize", counting)
    again = map_locally(sources, tmp_path / "kept")
    assert made == ["job/rank1.json"]  # its file was damaged
    assert [one.path for one in again] == [one.path for one in first]


def test_a_bad_capture_costs_its_rank(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", ranks=3)
    (job / "rank1.json").write_text("")
    found = map_locally(discover([job]), tmp_path / "kept")
    assert [one.error is None for one in found] == [True, False, True]
    assert found[1].failed is not None
    assert "rank1.json" in found[1].failed.error


def test_a_run_that_recorded_nothing_says_so(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", ranks=2)
    with unpacked() as demo, sqlite3.connect(demo) as database:
        for table in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION"):
            database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
        database.execute("DELETE FROM NVTX_EVENTS")
        database.commit()
        shutil.copy(demo, job / "rank2.sqlite")
    found = map_locally(discover([job]), tmp_path / "kept")
    assert [one.error for one in found if one.error] == [
        "job/rank2.sqlite: no GPU work and no range was recorded; nvprobe analyze says why"
    ]


def test_an_unforeseen_error_costs_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: Source) -> list[Summary]:
        if source.rank == 1:
            raise ZeroDivisionError("who knows")
        return summarize(source)

    monkeypatch.setattr(run, "summarize", fails)
    found = map_locally(discover([write_job(tmp_path / "job", ranks=2)]), tmp_path / "kept")
    assert [one.error for one in found] == [None, "ZeroDivisionError: who knows"]


KILLER = """
import os, signal
from nvprobe.ranks import run
summarize = run.summarize
def killed(source):
    if source.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return summarize(source)
run.summarize = killed
"""


def test_a_killed_process_costs_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker that gets rank 1 is killed, also where it has nothing else to do."""
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    sources = discover([write_job(tmp_path / "job", ranks=4)])
    found = map_locally(sources, tmp_path / "kept", jobs=2)
    assert [one.error is None for one in found] == [True, False, True, True]
    assert "killed" in str(found[1].error)


def test_workers_fit_into_memory(tmp_path: Path) -> None:
    sources = discover([write_job(tmp_path / "job", ranks=4)])
    assert workers(sources, None, 1 << 40) == 1  # not worth a process
    assert workers(sources, 3, 1 << 40) == 3
    assert workers(sources, 9, 1 << 40) == 4
    assert workers(sources, 3, 400 << 20) == 2
    assert workers(sources, 3, 0) == 1


def test_nothing_to_find_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NvprobeError, match="empty: no run folder"):
        discover([tmp_path / "empty"])
    with pytest.raises(NvprobeError, match="no such file"):
        discover([tmp_path / "nowhere"])


def test_sources_of_a_launched_job(tmp_path: Path) -> None:
    for rank in (0, 10, 2):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"rank": rank, "world_size": 12}))
    (tmp_path / "job.json").write_text(json.dumps({"job": "abc"}))
    found = discover([tmp_path])
    assert [one.rank for one in found] == [0, 2, 10]
    assert {(one.job, one.world_size, one.said_by) for one in found} == {
        ("job abc", 12, "run.json")
    }
