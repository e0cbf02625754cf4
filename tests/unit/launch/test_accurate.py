"""Two runs of one program: CUDA graphs whole, then by node where there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvprobe.errors import UsageError
from nvprobe.launch import accurate, rundir
from nvprobe.launch.options import LaunchOptions, Outcome
from nvprobe.launch.plan import Plan
from nvprobe.launch.run import launch
from nvprobe.launch.target import Target
from nvprobe.merging.graph_nodes import NODES

TARGET = Target(("python", "train.py"), "train")
OPTIONS = LaunchOptions(accurate=True, analyze=False)


class Runs:
    """Stands in for the runs: which plans were carried out, and where."""

    def __init__(self, *problems: str | None) -> None:
        self.problems = list(problems)
        self.made: list[tuple[bool, Path]] = []

    def __call__(self, plan: Plan, folder: Path) -> Outcome:
        self.made.append((plan.options.kernels_in_graphs, folder))
        assert not plan.options.analyze
        problem = self.problems.pop(0)
        files = [] if problem else [folder / "report.nsys-rep", folder / "report.sqlite"]
        return Outcome(3 if len(self.made) == 1 else 0, folder, files, problem=problem)


def both(
    monkeypatch: pytest.MonkeyPatch, folder: Path, runs: Runs, *, graphs: bool = True
) -> Outcome:
    monkeypatch.setattr(accurate, "_has_graphs", lambda _export: graphs)
    return accurate.run_twice(Plan("nsys", TARGET, TARGET, OPTIONS), folder, runs)


def test_the_second_run_lies_in_the_folder_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(None, None)
    outcome = both(monkeypatch, tmp_path, runs)
    assert runs.made == [(False, tmp_path), (True, tmp_path / NODES)]
    assert (outcome.code, outcome.folder, outcome.problem) == (3, tmp_path, None)
    assert "a second time" in outcome.notes[-1]


def test_a_program_without_graphs_runs_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(None)
    outcome = both(monkeypatch, tmp_path, runs, graphs=False)
    assert runs.made == [(False, tmp_path)]
    assert "one run is accurate" in outcome.notes[-1]


def test_a_run_that_left_nothing_is_not_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs("no report was written")
    outcome = both(monkeypatch, tmp_path, runs)
    assert len(runs.made) == 1
    assert (outcome.problem, outcome.notes) == ("no report was written", [])


def test_a_second_run_that_fails_leaves_the_first_one_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = both(monkeypatch, tmp_path, Runs(None, "the disk is full"))
    assert outcome.problem is None
    assert "without what is in its CUDA graphs: the disk is full" in outcome.notes[-1]


def test_a_folder_of_one_name_for_who_writes_and_who_reads() -> None:
    assert rundir.GRAPH_NODES == NODES


@pytest.mark.parametrize("command", [["torchrun", "train.py"], ["python", "-c", "pass"]])
def test_ranks_of_a_job_cannot_run_twice(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    if command[0] == "python":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="which ranks of a job cannot"):
        launch(command, OPTIONS)


def test_torch_profiler_has_no_whole_graphs() -> None:
    with pytest.raises(UsageError, match="--accurate needs nsys"):
        launch(["python", "-c", "pass"], replace(OPTIONS, backend="torch"))
