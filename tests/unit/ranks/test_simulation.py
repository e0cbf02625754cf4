"""`nvprobe simulate` of a job: its ranks are replayed together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nvprobe.analysis.replay.costs import step_of
from nvprobe.analysis.replay.joint_costs import joint_variants
from nvprobe.analysis.simulation import Asked
from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.errors import UsageError
from nvprobe.ranks.discovery import discover
from nvprobe.ranks.simulation import JointReplay, read_job
from tests.unit.ranks import traces

LATE_US = 100


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks whose GPUs are always busy, on one stream each; rank 1 computes longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "STEP_US", traces.GEMM_US + LATE_US + traces.TRANSFER_US)
        folder = tmp_path_factory.mktemp("jobs") / "job"
        traces.write_job(folder, ranks=3, steps=6, late_us={1: LATE_US}, clock_us={2: 4000})
    for file in folder.iterdir():
        file.write_text(file.read_text().replace('"stream": 30', '"stream": 7'))
    return folder


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments)], obj=Settings())


def simulated(*arguments: object) -> dict[str, Any]:
    result = invoked(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_the_ranks_wait_for_the_late_one(job: Path) -> None:
    found = simulated(job)
    assert found["step_ns"] == pytest.approx(700_000, rel=0.01)
    assert found["replay_error"] < 0.01
    assert [one["last"] for one in found["ranks"]] == [0.0, 1.0, 0.0]
    waits = [one["waits_ns"] for one in found["ranks"]]
    assert waits == pytest.approx([LATE_US * 1000, 0, LATE_US * 1000], rel=0.05)
    assert found["critical_path"][0]["rank"] == 1
    assert sum(part["ns"] for part in found["critical_path"]) == pytest.approx(700_000, rel=0.01)


@pytest.mark.parametrize("times", [1.2, 2.0])
def test_a_faster_late_rank_gains_until_another_one_is_last(job: Path, times: float) -> None:
    found = simulated(job, "--speed-up", f"gemm={times}", "--rank", 1)
    assert found["step_with_changes_ns"][1] == pytest.approx(600_000, rel=0.02)
    assert found["saving"]["low"] <= found["saving"]["mid"] <= found["saving"]["high"]
    assert found["ranks_with_changes"][0]["waits_ns"] < 5_000


def test_a_faster_rank_that_is_not_last_gains_nothing(job: Path) -> None:
    found = simulated(job, "--speed-up", "gemm=2", "--rank", 0, "--rank", 2)
    assert found["saving"]["mid"] == 0
    assert found["ranks_with_changes"][0]["waits_ns"] > found["ranks"][0]["waits_ns"]


def test_a_kernel_can_be_dropped_on_one_rank(job: Path) -> None:
    found = simulated(job, "--drop", "gemm_bf16", "--rank", 1)
    assert found["step_with_changes_ns"][1] == pytest.approx(600_000, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rank", 7, "--drop", "gemm_bf16"], "the job has ranks [0, 1, 2]"),
        (["--drop", "no_such_kernel"], "nor a kernel"),
    ],
)
def test_what_the_job_does_not_have_is_refused(job: Path, arguments: list[Any], said: str) -> None:
    error = invoked(job, *arguments).exception
    assert isinstance(error, UsageError)
    assert said in str(error)


def test_a_rank_that_was_not_captured_is_named(job: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copy(job / f"rank{rank}.json", tmp_path)
    assert simulated(tmp_path)["missing_ranks"] == [2]
    assert "Not captured: rank 2" in invoked(tmp_path).stdout
    assert "Not captured" not in invoked(job).stdout


def test_one_rank_is_a_run(job: Path) -> None:
    assert "ranks" not in simulated(job / "rank0.json")
    assert isinstance(invoked(job / "rank0.json", "--rank", 0).exception, UsageError)


def test_a_job_without_common_collectives_is_said_rank_by_rank(tmp_path: Path) -> None:
    folder = traces.write_job(tmp_path / "job", ranks=2, steps=6)
    text = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(text.replace("AllReduce", "AllGather"))
    found = simulated(folder)
    assert "no collective" in found["not_together"]
    assert set(found["ranks_alone"]) == {"0", "1"}
    assert found["schema"] == simulated(folder / "rank0.json")["schema"]
    assert "Rank 1 by itself" in invoked(folder).stdout


def test_a_slower_host_is_slower_without_the_profiler(tmp_path: Path) -> None:
    """Rank 1's host takes 1.4 times as long for everything; a profiler does not tell them apart."""
    job = traces.write_slower_host(tmp_path / "job", 1.4)
    replay = JointReplay(*read_job(discover([job])))
    first, second = (step_of(model) for model in replay.bases[0])
    assert second / first == pytest.approx(1.4, rel=0.03)
    assert [one.last for one in replay.simulate(Asked()).ranks] == [0.0, 1.0]


def test_no_rank_takes_longer_by_itself_than_its_unprofiled_step(tmp_path: Path) -> None:
    """In the capture rank 0's host takes 1 ms, rank 1's 1.4 ms; unprofiled it was 0.7 and 1.4."""
    replay = JointReplay(*read_job(discover([traces.write_slower_host(tmp_path / "job", 1.4)])))
    measured = [700_000, 1_400_000]
    bases = joint_variants(replay.ranks, replay.low, replay.samples, max(measured), measured)
    assert [step_of(model) for model in bases[0]] == pytest.approx(measured, rel=0.01)
    longer = [1_400_000, 1_400_000]  # a rank that waits for the others takes as long as they do
    bases = joint_variants(replay.ranks, replay.low, replay.samples, max(longer), longer)
    assert [step_of(model) for model in bases[0]] == pytest.approx([1e6, 1.4e6], rel=0.03)
