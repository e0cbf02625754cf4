"""What the job gains if a late rank does what another one does, and if transfer takes no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.ranks import replays as module
from nvprobe.ranks.discovery import discover
from nvprobe.ranks.document import Finding
from nvprobe.ranks.job import Job, job, of_job
from nvprobe.ranks.map import summarize
from nvprobe.ranks.replays import Replayed, Replays, replays
from nvprobe.ranks.simulation import JointReplay, read_job
from tests.unit.ranks import traces

LATE_US = 100


def gpu_bound(folder: Path, **given: Any) -> Path:
    """Ranks whose GPUs are always busy, on one stream each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "STEP_US", traces.GEMM_US + LATE_US + traces.TRANSFER_US)
        traces.write_job(folder, steps=6, **given)
    for file in folder.iterdir():
        file.write_text(file.read_text().replace('"stream": 30', '"stream": 7'))
    return folder


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 computes longest, rank 2 less so."""
    folder = tmp_path_factory.mktemp("jobs") / "job"
    return gpu_bound(folder, ranks=3, late_us={1: LATE_US, 2: 40}, clock_us={2: 4000})


def compared(folder: Path) -> tuple[Job, dict[int, Replayed]]:
    read = [(one, source) for source in discover([folder]) for one in summarize(source)]
    found = job([one for one, _ in read])
    return found, replays(found, {one.identity: source for one, source in read}).late


def straggler(found: Job, late: dict[int, Replayed]) -> Finding:
    return next(one for one in of_job(found, (), Replays(late)).findings if one.id == "straggler")


def test_the_job_gains_until_the_next_rank_is_last(late: Path) -> None:
    _, found = compared(late)
    assert found[1].other == 2
    assert found[1].saved_ns == pytest.approx([60_000] * len(found[1].saved_ns), abs=3_000)
    assert found[1].gains


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_what_is_gained_is_what_the_rank_is_later_than_all_that_remain(
    late: Path, row: int, other: int
) -> None:
    later_us = [0, LATE_US, 40]
    changed = [*later_us]
    changed[row] = later_us[other]
    gained = max(later_us) - max(changed)
    replay = JointReplay(*read_job(discover([late])))
    assert replay.like_another(row, other) == pytest.approx([gained * 1000] * 6, abs=3_000)


def test_a_slower_host_costs_what_it_takes_longer(tmp_path: Path) -> None:
    """Everything takes 1.4 times as long: without that 2/7 of a step are gained."""
    found, late = compared(traces.write_slower_host(tmp_path / "job", 1.4))
    assert [found.numbers[one.rank] for one, _ in found.stragglers] == [1]
    shares = [saved / late[1].step_ns for saved in late[1].saved_ns]
    assert shares == pytest.approx([2 / 7] * len(shares), rel=0.03)
    one = straggler(found, late)
    assert one.evidence["replayed_like_rank"] == 0
    assert one.saves_ns is not None
    assert one.saves_ns >= int(one.evidence["replayed_saves_ns"] or 0) > 0


def test_who_only_entered_later_is_not_named(tmp_path: Path) -> None:
    """The same host on both; rank 1 begins 30 ms later, so rank 0 waits for it in each step."""
    folder = traces.write_slower_host(tmp_path / "job", 1.0, late_us=30_000)
    found, late = compared(folder)
    assert found.stragglers == ()
    assert late == {}
    replay = JointReplay(*read_job(discover([folder])))
    assert replay.like_another(1, 0) == pytest.approx([0] * 6, abs=2_000)


def test_what_replay_says_decides_the_promise(late: Path) -> None:
    found, _ = compared(late)
    (one, _) = found.stragglers[0]
    assert one.late_ns == pytest.approx(60_000, rel=0.05)
    alone = straggler(found, {}).saves_ns
    assert alone == pytest.approx(60_000, rel=0.05)  # rank 2 is the next one
    for saved, promised, said in (
        ((50_000, 70_000), alone, 60_000),
        ((90_000, 90_000), 90_000, 90_000),
        ((0, -500), None, 0),
        ((-500, 80_000), None, None),
    ):
        finding = straggler(found, {1: Replayed(saved, 700_000, 2)})
        assert finding.saves_ns == promised
        assert finding.evidence.get("replayed_saves_ns") == said
        assert ("not shorter" in finding.title) == (said == 0)


def test_transfer_that_nothing_hides_is_what_the_job_gains_without_it(late: Path) -> None:
    """An all-reduce of 100 µs on the stream of the compute, after each step's product."""
    read = [(one, source) for source in discover([late]) for one in summarize(source)]
    found = job([one for one, _ in read])
    transfer = replays(found, {one.identity: source for one, source in read}).transfer
    assert transfer is not None
    saved = list(transfer.saved_ns)
    assert saved == pytest.approx([traces.TRANSFER_US * 1000] * len(saved), abs=3_000)
    assert exposed(found, transfer) == [max(saved)]
    assert exposed(found, None) == [found.exposed_transfer_ns]
    assert exposed(found, Replayed((0, 90_000), 700_000)) == [90_000]
    assert exposed(found, Replayed((0, 20_000), 700_000)) == []  # 10 µs are expected


def exposed(found: Job, transfer: Replayed | None) -> list[int | None]:
    """What the finding promises, where there is one."""
    findings = of_job(found, (), Replays(transfer=transfer)).findings
    return [one.saves_ns for one in findings if one.id == "exposed_transfer"]


def test_stages_of_a_pipeline_are_not_replayed_together(tmp_path: Path) -> None:
    folder = gpu_bound(tmp_path / "job", ranks=2, late_us={1: LATE_US})
    assert set(compared(folder)[1]) == {1}
    for file in folder.iterdir():
        file.write_text(file.read_text().replace("AllReduce_Sum_bf16_RING_LL", "SendRecv"))
    found, late = compared(folder)
    assert [one.rank for one, _ in found.stragglers] == [1]
    assert late == {}


def test_large_captures_are_not_read_again(late: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 10)
    assert compared(late)[1] == {}


def test_the_report_says_it_in_a_line(late: Path, tmp_path: Path) -> None:
    words = ["ranks", str(late), "--summaries", str(tmp_path / "kept")]
    for _ in range(2):  # also from summaries that were kept
        result = CliRunner().invoke(cli, words, obj=Settings())
        line = next(one for one in result.stdout.splitlines() if "by replay" in one)
        assert line.strip().startswith("if it did what rank 2 does, a step is by replay 6")
    result = CliRunner().invoke(cli, [*words, "--json"], obj=Settings())
    (finding, *_) = json.loads(result.stdout)["findings"]
    assert finding["evidence"]["replayed_like_rank"] == 2
