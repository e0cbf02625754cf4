"""Ranks replayed together: they agree with the oracle, and waiting goes away with its cause."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvprobe.analysis.replay import run
from nvprobe.analysis.replay.critical import path_back
from nvprobe.analysis.replay.joint import Joint, joined
from nvprobe.analysis.replay.model import NEVER, NOTHING, EventKind, HostEvents, Model, QueuedOps
from tests.oracle_replay import joint_oracle
from tests.unit.replay.models import models


@st.composite
def jobs(draw) -> tuple[list[Model], list[np.ndarray], list[int]]:
    """Two or three ranks that make some of the same collectives in the same order."""
    ranks = draw(st.lists(models(least=3), min_size=2, max_size=3))
    codes = []
    for model in ranks:
        size = len(model.ops)
        number = draw(st.integers(0, min(size, 5)))
        rows = draw(st.lists(st.integers(0, size - 1), min_size=number, max_size=number,
                             unique=True)) if size else []  # fmt: skip
        known = draw(st.lists(st.integers(0, 6), min_size=number, max_size=number, unique=True))
        code = np.full(size, NOTHING)
        code[sorted(rows)] = sorted(known)
        codes.append(code)
    begins = draw(st.lists(st.integers(0, 20), min_size=len(ranks), max_size=len(ranks)))
    return ranks, codes, begins


@settings(max_examples=120, deadline=None)
@given(jobs(), st.sampled_from([0, 1 << 40]))
def test_the_joint_model_is_the_oracle(job, threshold: int) -> None:
    ranks, codes, begins = job
    with patch.object(run, "_WORTH_A_SCAN", threshold):
        found = joined(ranks, codes, begins)
        times = [found.times(rank) for rank in range(len(ranks))]
    assert [(one.event.tolist(), one.op.tolist()) for one in times] == joint_oracle(*job)


@settings(max_examples=100, deadline=None)
@given(jobs(), st.data())
def test_other_lengths_are_those_of_models_that_have_them(job, data: st.DataObject) -> None:
    ranks, codes, begins = job
    found = joined(ranks, codes, begins)
    longer = []
    for model, code in zip(ranks, found.codes, strict=True):
        more = data.draw(st.lists(st.integers(0, 5), min_size=len(code), max_size=len(code)))
        longer.append(model.ops.dur + np.where(code == NOTHING, np.array(more, np.int64), 0))
    other = [dataclasses.replace(one, ops=one.ops.with_columns(dur=dur))
             for one, dur in zip(ranks, longer, strict=True)]  # fmt: skip
    wanted = joined(other, found.codes, begins)
    assert found.lasting(longer).whole.op.tolist() == wanted.whole.op.tolist()


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_the_critical_path_of_a_job_is_its_time(job) -> None:
    found = joined(*job)
    if not all(len(model.borders) for model in found.models):
        return
    kind, row = found.last()
    path = path_back(found.model, found.whole, (kind, row), 0)
    assert path.ns.sum() == max(int(getattr(found.whole, kind)[row]), 0)


def rank(work: int, steps: int = 3, transfer: int = 10, host: int = 1) -> Model:
    """In each step a kernel and a collective after it, launched by a host that runs ahead."""
    events, ops = [], []
    for _ in range(steps):
        events.append((0, 0, 0, EventKind.STEP, NOTHING, 0, len(ops)))
        for dur in (work, transfer):
            events.append((0, host, 0, EventKind.LAUNCH, NOTHING, 0, len(ops)))
            ops.append((len(events) - 1, 0, dur, 0, 0, NOTHING, 0))
    events.append((0, 0, 0, EventKind.STEP, NOTHING, 0, len(ops)))
    rows = (np.array(one, np.int64).T for one in (events, ops))
    return Model(HostEvents(*next(rows)), QueuedOps(*next(rows)), 1, np.array([NEVER]))


def job_of(*work: int, transfer: int = 10) -> Joint:
    """Ranks that do nothing but that."""
    code = np.array([NOTHING, 0, NOTHING, 1, NOTHING, 2])
    return joined(
        [rank(one, transfer=transfer) for one in work], [code] * len(work), [0] * len(work)
    )


@pytest.mark.parametrize("faster", [10, 30, 50, 90])
def test_less_work_on_the_late_rank_gains_what_it_is_late(faster: int) -> None:
    before, after = job_of(100, 130), job_of(100, 130 - faster)
    assert before.step_ns() == 140
    assert before.step_ns() - after.step_ns() == min(faster, 30)


def test_who_is_not_last_gains_nothing() -> None:
    assert job_of(10, 130).step_ns() == job_of(100, 130).step_ns() == 140
    rank_, _, met = job_of(100, 130, 120).meetings()
    assert met.wait_ns[rank_ == 1].tolist() == [0, 0, 0]
    assert met.wait_ns[rank_ == 0].tolist() == [30, 30, 30]
    assert met.wait_ns[rank_ == 2].tolist() == [10, 10, 10]


def test_nobody_waits_in_a_collective_without_length() -> None:
    found = job_of(100, 130, transfer=0)
    assert [found.rank_step_ns(one) for one in (0, 1)] == [100, 130]


def test_ranks_that_meet_in_other_orders_do_not_wait_for_ever() -> None:
    one, other = np.array([0, 1, 2, 3, NOTHING, 4]), np.array([1, 0, 3, 2, NOTHING, 4])
    found = joined([rank(100), rank(130)], [one, other], [0, 0])
    met = [set(code[code != NOTHING].tolist()) for code in found.codes]
    assert met[0] == met[1]
    assert 4 in met[0]
    assert len(met[0]) == 3  # of each crossing pair one is kept


def test_a_rank_that_begins_later_is_waited_for_once() -> None:
    code = np.array([NOTHING, 0, NOTHING, 1, NOTHING, 2])
    found = joined([rank(100), rank(100)], [code, code], [0, 40])
    _, _, met = found.meetings()
    assert sorted(met.wait_ns.tolist()) == [0, 0, 0, 0, 0, 40]
    assert found.step_ns() == 110
