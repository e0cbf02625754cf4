"""Captured jobs replayed as a whole: steps of each rank are met, and what a spin costs is known."""

from __future__ import annotations

import functools

import pytest

from nvprobe.analysis.replay.gate import CLOSE
from nvprobe.analysis.simulation import Asked
from nvprobe.ranks.discovery import discover
from nvprobe.ranks.simulation import JointReplay, read_job
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")

SPIN_NS = 1_516_000
"""3,000,000 cycles on rank 1 in each step."""


@functools.cache
def joint(job: str) -> JointReplay:
    return JointReplay(*read_job(discover([CORPUS / "runs" / job])))


@pytest.mark.parametrize("job", ["ddp", "fsdp"])
def test_the_unchanged_joint_replay_is_every_rank_s_captured_step(job: str) -> None:
    found = joint(job).fidelity
    assert len(found) == 2
    assert all(one.passed and one.error < CLOSE / 10 for one in found)


@pytest.mark.parametrize("job", ["ddp", "fsdp"])
def test_no_change_saves_nothing(job: str) -> None:
    found = joint(job).simulate(Asked())
    assert found.saving[1] == 0
    assert found.ranks == found.ranks_with
    total = sum(part.ns for _, part in found.before)
    assert total == pytest.approx(found.step_ns, rel=0.001)


def test_without_the_spin_the_step_is_shorter_by_about_it() -> None:
    found = joint("ddp").simulate(Asked(drop=["spin_kernel"]), [1])
    gained = found.step_ns - found.step_with_ns[1]
    assert 0.75 * SPIN_NS < gained < 1.1 * SPIN_NS
    assert found.saving[0] <= SPIN_NS / found.step_ns <= found.saving[2]
    assert [one.last > 0.5 for one in found.ranks] == [False, True]
    assert [one.last > 0.5 for one in found.ranks_with] == [True, False]
    assert found.ranks[0].waits_ns > SPIN_NS > 50 * found.ranks_with[0].waits_ns


def test_two_processes_of_one_capture_are_ranks() -> None:
    found = joint("../nsys/public/2026.2_two_gpus.sqlite").simulate(Asked(speed_up={"gemm": 2.0}))
    assert [one.rank for one in found.ranks] == [0, 1]
    assert found.replay_error < CLOSE
    assert found.saving[1] > 0.05


def test_a_copy_that_waits_for_an_earlier_event_is_no_gap() -> None:
    """FSDP's copies into a collective's buffer wait for an event that is many ops back."""
    for one in joint("fsdp").ranks.captures:
        assert one.captured.model.ops.gap.max() < 300_000
