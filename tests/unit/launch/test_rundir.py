"""Run folders: nothing overwritten, no rank lost, nothing private written."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvprobe.errors import UsageError
from nvprobe.launch.rundir import (
    create,
    create_for_rank,
    job_key,
    keep_private,
    of_ranks,
    plain_words,
    write_json,
)
from nvprobe.placement import Placement


def test_default_folders_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {create(None, "train", force=False) for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.parent == Path("nvprobe-runs") for folder in folders)


def test_an_earlier_run_is_replaced_only_by_force(tmp_path: Path) -> None:
    folder = create(tmp_path / "run", "x", force=False)
    assert create(folder, "x", force=False) == folder, "an empty folder is free"
    for name in ("report.nsys-rep", "sidecar.0.12.jsonl", "notes.txt"):
        (folder / name).write_text("")
    (folder / "rank0").mkdir()
    with pytest.raises(UsageError, match="--force"):
        create(folder, "x", force=False)
    create(folder, "x", force=True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"], "the user's own file stays"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be created"):
        create(tmp_path / "file" / "run", "x", force=False)


def test_ranks_that_race_get_a_folder_each(tmp_path: Path) -> None:
    environ = {"TORCHELASTIC_RUN_ID": "job"}

    def make(rank: int | None) -> Path:
        return create_for_rank(tmp_path / "run", "x", Placement(rank=rank), environ)

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(make, [0, 1, 2, 3, 0, 0, None, None]))
    names = sorted(folder.name for folder in folders)
    pid = f"process{os.getpid()}"
    assert names == sorted(
        [pid, f"{pid}-2", "rank0", "rank0-2", "rank0-3", "rank1", "rank2", "rank3"]
    )


def test_another_jobs_folder_is_refused(tmp_path: Path) -> None:
    place = Placement(rank=0)
    create_for_rank(tmp_path, "x", place, {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"})
    with pytest.raises(UsageError, match="another job"):
        create_for_rank(tmp_path, "x", place, {"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "0"})
    assert "SLURM" not in (tmp_path / "job.json").read_text()


def test_force_replaces_the_ranks_of_another_job_once(tmp_path: Path) -> None:
    """However many ranks begin at one moment: none removes what its neighbor just made."""
    create_for_rank(tmp_path, "x", Placement(rank=9), {"TORCHELASTIC_RUN_ID": "earlier"})
    (tmp_path / "rank9" / "run.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("the user's own")

    def make(rank: int) -> Path:
        environ = {"TORCHELASTIC_RUN_ID": "now"}
        return create_for_rank(tmp_path, "x", Placement(rank=rank), environ, force=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"job.json", "notes.txt", *(f"rank{rank}" for rank in range(8))}
    assert make(0).name == "rank0-2", "the job's own ranks are not replaced"


def test_ranks_that_marked_the_folder_at_once_without_a_lock_are_one_job(tmp_path: Path) -> None:
    environ = {"TORCHELASTIC_RUN_ID": "now"}
    create_for_rank(tmp_path, "x", Placement(rank=0), environ)
    mark = tmp_path / "job.json"
    mark.write_text(mark.read_text() * 2)
    assert create_for_rank(tmp_path, "x", Placement(rank=1), environ).name == "rank1"
    with pytest.raises(UsageError, match="another job"):
        create_for_rank(tmp_path, "x", Placement(rank=2), {"TORCHELASTIC_RUN_ID": "other"})


def test_what_ranks_of_a_job_share() -> None:
    assert job_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "TORCHELASTIC_RUN_ID": "a"}) == "7-1"
    assert job_key({"TORCHELASTIC_RUN_ID": "a/../b"}) == "a-..-b"
    assert job_key({"TORCHELASTIC_RUN_ID": "none"}) == str(os.getppid())


def test_commands_are_written_without_paths_and_secrets() -> None:
    words = ["/home/me/venv/bin/python", "a.py", "--data=/data/x", "--api-key", "abc", "--token=t"]
    assert plain_words(words) == ["python", "a.py", "--data=x", "--api-key", "***", "--token=***"]


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"a": object()})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_lowest_rank_comes_first(tmp_path: Path) -> None:
    names = ["rank8", "rank9", "rank9-2", "rank10", "process7", "process70"]
    for name in (*names, "elsewhere", "rank0"):
        (tmp_path / name).mkdir()
    for name in (*reversed(names), "elsewhere"):  # rank0 recorded nothing
        (tmp_path / name / "run.json").touch()
    assert [folder.name for folder in of_ranks(tmp_path)] == names


@pytest.mark.parametrize("umask", [0, 0o22, 0o277])
def test_a_run_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "empty").mkdir(mode=0o755)
        folders = [
            create(tmp_path / "empty", "x", force=False),
            create(tmp_path / "new", "x", force=False),
            create_for_rank(tmp_path / "job", "x", Placement(rank=0), {}),
        ]
        for folder in folders:
            write_json(folder / "run.json", {})
            for name in ("report.nsys-rep", "report.sqlite", "nsys.log", "trace.0.1.json.gz"):
                (folder / name).touch()
                (folder / name).chmod(0o664)  # as nsys does, whatever the umask
            keep_private(folder)
    finally:
        os.umask(before)
    found = list(tmp_path.rglob("*"))
    assert len(found) == 4 + 3 * 5 + 1
    wrong = {path.name for path in found if path.stat().st_mode & 0o777 != _private(path)}
    assert not wrong


def _private(path: Path) -> int:
    return 0o700 if path.is_dir() else 0o600


def test_a_folder_of_the_users_own_stays_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").touch(0o644)
    (tmp_path / "report.elsewhere").symlink_to(tmp_path / "notes.txt")
    create(tmp_path, "x", force=True)
    (tmp_path / "report.nsys-rep").symlink_to(tmp_path / "notes.txt")
    keep_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "notes.txt").stat().st_mode & 0o777 == 0o644
