"""Ranks by what an export of nsys keeps of its environment."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from pathlib import Path

import pytest

from nvprobe.ranks.discovery import discover
from nvprobe.ranks.identity import _environment, _of_process
from nvprobe.ranks.map import summarize
from nvprobe.ranks.roster import roster
from nvprobe.ranks.summary import Identity
from nvprobe.readers import load
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


def export(place: Path, environment: str) -> Path:
    """A real export of one process that says no rank, with this environment in it."""
    shutil.copy(CORPUS / "runs/ddp/rank0/report.sqlite", place)
    place.chmod(0o600)
    with sqlite3.connect(place) as database:
        database.execute("delete from TARGET_INFO_SYSTEM_ENV where name = 'DeviceEnvironment'")
        database.execute(
            "insert into TARGET_INFO_SYSTEM_ENV values (1, 'Local', 'DeviceEnvironment', 610, ?)",
            (environment,),
        )
    return place


@pytest.mark.parametrize(
    ("environment", "rank", "size"),
    [
        ("HOME=/root\0RANK=3\0WORLD_SIZE=8\0SLURM_PROCID=0", 3, 8),
        ("OMPI_COMM_WORLD_RANK=5\0OMPI_COMM_WORLD_SIZE=16", 5, 16),
        ("SLURM_PROCID=1\0SLURM_NTASKS=2", 1, 2),
        ("HOME=/root", None, None),
        ("RANK=three", None, None),
    ],
)
def test_a_capture_that_says_no_rank(
    tmp_path: Path, environment: str, rank: int | None, size: int | None
) -> None:
    (source,) = discover([export(tmp_path / "report.sqlite", environment)])
    (found,) = summarize(source)
    assert (found.identity.rank, found.identity.world_size) == (rank, size)
    assert found.identity.said_by == ("nothing" if rank is None else "its environment")


def test_a_job_of_plain_exports(tmp_path: Path) -> None:
    """What ``nsys profile`` inside torchrun writes: names without ranks, all in one folder."""
    for name, rank in (("report1", 1), ("report2", 0)):
        export(tmp_path / f"{name}.sqlite", f"RANK={rank}\0WORLD_SIZE=3")
    found = roster([one for source in discover([tmp_path]) for one in summarize(source)])
    assert [one.identity.source.rpartition("/")[2] for one in found.ranks] == [
        "report2.sqlite",
        "report1.sqlite",
    ]
    assert (found.world_size, found.missing) == (3, (2,))


def test_the_name_of_a_file_counts_more_than_a_shells_environment(tmp_path: Path) -> None:
    """An interactive shell of Slurm says rank 0 to all that is started in it."""
    (source,) = discover([export(tmp_path / "rank4.sqlite", "SLURM_PROCID=0\0SLURM_NTASKS=1")])
    (found,) = summarize(source)
    assert (found.identity.rank, found.identity.said_by) == (4, "the file name")


def test_one_of_several_processes_takes_no_environment(tmp_path: Path) -> None:
    file = export(tmp_path / "report.sqlite", "RANK=3\0WORLD_SIZE=8")
    (source,) = discover([file])
    assert _environment(source).rank == 3
    trace = load(file)
    known = Identity("report.sqlite")
    assert _of_process(known, trace, 0) == dataclasses.replace(known)
