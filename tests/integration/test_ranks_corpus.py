"""``nvprobe ranks`` on real jobs of the corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.errors import InputError
from nvprobe.merging.load import load
from nvprobe.ranks.discovery import discover
from nvprobe.ranks.document import Document, encode
from nvprobe.ranks.job import reduced
from nvprobe.ranks.map import summarize
from nvprobe.ranks.roster import one_job
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


def document(*inputs: Path) -> Document:
    sources = discover(inputs)
    one_job(sources)
    return reduced([one for source in sources for one in summarize(source)])


def test_the_planted_straggler_of_ddp() -> None:
    """Rank 1 spins for 1.516 ms on its GPU in each step."""
    found = document(CORPUS / "runs/ddp")
    (late,) = found.stragglers
    assert late.rank == 1
    assert 1.4e6 < late.late_ns < 1.7e6
    assert (late.cause, late.path, late.kernel) == ("compute", "step", "spin_kernel")
    assert "--rank 1 --drop spin_kernel" in found.findings[0].try_[1]
    assert late.own_ns is not None
    assert late.usual_ns is not None
    assert 1.5e6 < late.own_ns - late.usual_ns < 1.53e6
    assert found.clock.error_ns is not None
    assert found.clock.error_ns < 20_000
    assert "Rank 1 is late" in found.verdict
    first = found.ranks[0]
    assert first.wait_ns is not None
    assert first.transfer_ns is not None
    assert first.wait_ns + first.transfer_ns == first.communication_ns
    assert {one.kind for one in found.differences if "spin" in one.name} == {"kernel"}
    for one in found.collectives:
        assert one.bytes is not None
        assert one.bus_bytes_s is not None
        assert 1e11 < one.bus_bytes_s < 4.5e11  # NVLink of an H200 carries 450 GB/s each way


def test_fsdp_waits_for_a_rank_that_entered_the_capture_late() -> None:
    """Rank 0 is last at all 96 collectives, and its host takes no longer for a step than rank 1's.

    Rank 1 spins 1.516 ms a step on its GPU; rank 0 arrives another 6 ms after that.
    """
    found = document(CORPUS / "runs/fsdp")
    assert found.ranks[0].last == found.clock.matched == 96
    (late,) = found.stragglers
    assert (late.rank, late.cause, late.path, late.kernel) == (1, "compute", "step", "spin_kernel")
    assert 1.51e6 < late.late_ns < 1.53e6
    assert late.seen_in == "GPU work"
    named = {one.id: one for one in found.findings}
    entered = named["behind"]
    assert entered.ranks == [0]
    assert entered.evidence["entered_later_ns"] == pytest.approx(208.2e6, rel=0.01)
    assert named["straggler"].saves_ns is entered.saves_ns is None
    waits = found.ranks[1].wait_ns
    assert waits is not None
    assert waits > 0.95 * found.ranks[1].communication_ns
    assert [one.name for one in found.differences if one.ranks == [1]] == ["spin_kernel"]
    assert found.verdict.endswith("it entered the capture 208 ms later")


def test_one_rank_alone_is_not_promised_what_it_waits_for_another() -> None:
    """Rank 1 of FSDP waits in every collective; 96 messages of one size, the fastest 0.77 ms."""
    analysis = analyze(attribute(load(CORPUS / "runs/fsdp/rank1")))
    (found,) = (one for one in analysis.findings or () if one.id == "exposed_communication")
    exposed, beyond = (found.evidence[name] for name in ("exposed_ns", "beyond_the_fastest_ns"))
    assert isinstance(exposed, int)
    assert isinstance(beyond, int)
    assert 0.8 * exposed < beyond < exposed
    assert found.saves_ns[1] < 0.25 * exposed


def test_four_of_eight_ranks_of_dlrm() -> None:
    files = sorted((CORPUS / "kineto/public").glob("dlrm_8ranks_worker*.json.gz"))
    found = document(*files)
    assert [one.rank for one in found.ranks] == [0, 1, 2, 3]
    assert found.missing_ranks == [4, 5, 6, 7]
    assert found.world_size == 8
    assert found.verdict.startswith("One step cannot show which rank is late in each; 5")
    assert any("4 of 8 ranks" in line for line in found.warnings)
    assert found.clock.matched == 8
    assert found.clock.error_ns is not None
    assert found.clock.error_ns < 10_000


def test_two_processes_of_one_report() -> None:
    found = document(CORPUS / "nsys/public/2026.2_two_gpus.sqlite")
    assert [one.rank for one in found.ranks] == [0, 1]
    assert {one.said_by for one in found.ranks} == {"the order of the processes"}
    assert found.clock.kind == "one"
    assert {one.kind for one in found.collectives} == {"all_to_all", "send_recv"}
    first, second = (one.wait_ns or 0 for one in found.ranks)
    assert 4 * first < second
    assert found.stragglers == []  # 0 is late in 8 of 14 steps, 1 in 3: chance does as much
    assert found.verdict.startswith("No straggler: no rank is late step after step")


def test_jobs_beside_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"ddp and fsdp: 2 jobs"):
        document(CORPUS / "runs")


def test_a_clock_that_is_off_is_no_straggler() -> None:
    """Rank 1's clock is ahead by 2 ms, as long as a step; rank 3 is late, rank 2 is missing."""
    found = document(CORPUS / "cases/r01")
    assert [one.clock_offset_ns for one in found.ranks] == [0, 2_000_000, 0]
    assert [one.rank for one in found.stragglers] == [3]
    assert [(one.wait_ns, one.transfer_ns) for one in found.ranks] == [
        (900_000, 300_000),
        (840_000, 300_000),
        (0, 300_000),
    ]
    assert json.loads(encode(found))["missing_ranks"] == [2]


def test_ranks_that_are_not_clear_are_refused() -> None:
    with pytest.raises(InputError, match=r"a\.json and r02/b\.json both say rank 0; r02/c\.json"):
        document(CORPUS / "cases/r02")
