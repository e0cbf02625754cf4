"""What ``nvprobe ranks`` says of jobs grown from a real rank, with something planted or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nvprobe.ranks.document import Document
from tests.conftest import CORPUS
from tests.integration.grown_jobs import PER_STEP, grow
from tests.integration.test_ranks_corpus import document

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")

PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def grown(folder: Path, groups: Sequence[Sequence[int]] = PAIRS, **planted: Any) -> Document:
    return document(grow(folder / "job", groups, **planted))


def named(found: Document) -> dict[str, list[int]]:
    """Ranks by finding."""
    return {one.id: one.ranks for one in found.findings}


def test_a_job_without_a_plant(tmp_path: Path) -> None:
    found = grown(tmp_path)
    assert found.findings == []
    assert found.stragglers == []
    assert "arrivals agree within the error of the clocks" in found.verdict
    assert [one.ranks for one in found.groups] == [[2, 3], [4, 5], [6, 7], [0, 1]]
    (warning,) = found.warnings
    assert "no verdict on them" in warning


def test_one_slow_group_is_the_network(tmp_path: Path) -> None:
    """All-reduces of ranks 4 and 5 take 450 µs, those of the other pairs 150 µs."""
    found = grown(tmp_path, transfer_us=lambda group: 450 if group == 2 else 150)
    assert named(found) == {"slow_network": [4, 5]}
    (finding,) = found.findings
    assert finding.evidence["usual_bus_bytes_s"] == pytest.approx(
        3 * float(finding.evidence["bus_bytes_s"] or 0), rel=0.03
    )
    assert found.verdict.startswith("No straggler, but a slow network: all_reduce of ranks 4-5")


def test_a_group_that_is_half_as_slow_again_is_not(tmp_path: Path) -> None:
    found = grown(tmp_path, transfer_us=lambda group: 220 if group == 2 else 150)
    assert found.findings == []


def test_a_late_rank_is_not_the_network(tmp_path: Path) -> None:
    """Rank 5 begins its first collective of each step 1.5 ms later: its pair takes as long."""
    late = {5: 1500}
    found = grown(
        tmp_path, late_us=lambda rank, number: 0 if number % PER_STEP else late.get(rank, 0)
    )
    assert named(found) == {"straggler": [5]}
    (one,) = found.stragglers
    assert one.late_ns == pytest.approx(1.5e6, rel=0.01)
    assert one.cause is None  # nothing that it did longer was recorded
    assert [one.ranks for one in found.groups if one.wait_ns > 1e6] == [[4, 5]]


def test_a_rank_that_was_late_once_is_no_straggler(tmp_path: Path) -> None:
    """Rank 5 begins its first collective of the third of four steps 9 ms later."""
    found = grown(tmp_path, late_us=lambda rank, number: 9000 * ((rank, number) == (5, 18)))
    assert found.stragglers == []
    assert named(found) == {"late_once": [5]}
    (one,) = found.findings
    assert one.evidence["step"] == found.steps[2].index
    assert one.evidence["late_ns"] == pytest.approx(9e6, rel=0.01)
    assert one.saves_ns is None
    assert found.verdict.startswith("No straggler: rank 5 was late once: by 9.00 ms in step")


def test_stages_that_wait_in_turns_are_a_bubble(tmp_path: Path) -> None:
    """Forward the second of each pair waits 1 ms for the first, backward the other way round."""

    def late(rank: int, number: int) -> float:
        forward = number % PER_STEP < PER_STEP // 2
        return 1000 if forward == (rank % 2 == 0) else 0

    found = grown(tmp_path, kernel=SEND, late_us=late)
    assert named(found) == {"pipeline_bubble": list(range(8))}
    (finding,) = found.findings
    assert finding.evidence["wait_ns"] == pytest.approx(4.5e6, rel=0.12)  # four or five of nine
    assert found.stragglers == []


def test_stages_that_do_not_wait_have_no_bubble(tmp_path: Path) -> None:
    assert grown(tmp_path, kernel=SEND).findings == []


def test_the_longest_stage_of_a_pipeline_is_late(tmp_path: Path) -> None:
    def late(rank: int, number: int) -> float:
        return 1000 if rank == 2 and number % PER_STEP == 0 else 0

    found = grown(tmp_path, [[0, 1, 2, 3]], kernel=SEND, late_us=late)
    assert [one.rank for one in found.stragglers] == [2]


def test_a_lag_that_stays_the_same_and_that_compute_hides_costs_nobody(tmp_path: Path) -> None:
    """Rank 2 is 300 µs behind at every collective, while the others compute."""
    found = grown(tmp_path, late_us=lambda rank, number: 300 if rank == 2 else 0)
    assert found.stragglers == []
    assert found.ranks[2].last == 36


@pytest.mark.parametrize(("factor", "found_on"), [(1.15, [3]), (1.05, None)])
def test_imbalance_that_nobody_waits_for(
    tmp_path: Path, factor: float, found_on: list[int] | None
) -> None:
    """Compute of rank 3 takes 15% longer, but its collectives begin with the others'."""
    found = grown(tmp_path, longer=lambda rank: factor if rank == 3 else 1)
    assert named(found).get("imbalance") == found_on
    assert found.stragglers == []


def test_a_recompilation_on_one_rank(tmp_path: Path) -> None:
    found = grown(tmp_path, recompiled=[1])
    assert named(found) == {"recompiled_on_some_ranks": [1]}
    (one,) = (one for one in found.differences if one.name.startswith("recompilation of forward"))
    assert (one.ranks, one.number) == ([1], 1)
    assert "size mismatch at index 0" in one.name


def test_a_recompilation_on_all_ranks_is_no_difference(tmp_path: Path) -> None:
    found = grown(tmp_path, recompiled=range(8))
    assert found.findings == []
    assert found.differences == []
