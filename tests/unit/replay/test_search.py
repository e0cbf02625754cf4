"""The order of changes, what remains of each after others, and what a change does to a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.replay import changes
from nvprobe.analysis.replay.costs import step_of
from nvprobe.analysis.replay.edits.kernels import scaled
from nvprobe.analysis.replay.edits.waits import shorten_gaps
from nvprobe.analysis.replay.levels import Edit, Level, changed
from nvprobe.analysis.replay.model import (
    NEVER,
    NOTHING,
    EventKind,
    HostEvents,
    Model,
    QueuedOps,
)
from nvprobe.analysis.replay.run import replay
from nvprobe.analysis.replay.search import NOTABLE, Proposal, search
from tests.conftest import examples
from tests.unit.replay.models import models


def loop(gap: int, op: int, launches: int = 10, steps: int = 4) -> Model:
    """Steps of equal launches: the slower of host and GPU decides."""
    events, ops = [], []
    for step in range(steps + 1):
        events.append((0, 0, 0, EventKind.STEP, NOTHING, 0, len(ops)))
        for _ in range(launches if step < steps else 0):
            ops.append((len(events), 0, op, 0, 0, NOTHING, 0))
            events.append((0, gap, 0, EventKind.LAUNCH, NOTHING, 0, len(ops) - 1))
    return Model(HostEvents(*np.array(events).T), QueuedOps(*np.array(ops).T), 1, np.array([NEVER]))


def same(model: Model, level: Level) -> None:
    pass


def everywhere(model: Model) -> np.ndarray:
    return np.ones(len(model.events), bool)


def faster(model: Model, remains: float) -> Edit:
    return scaled(np.ones(len(model.ops), bool), remains)


def found(model: Model, *edits: Edit):
    return search([model], [Proposal(edit, 1.0) for edit in edits])


def test_of_long_steps_the_first_model_decides_and_all_bound() -> None:
    """The GPU is the bottleneck by one calibration, the host by the others."""
    bases = [loop(100, 70), loop(50, 70), loop(133, 70)]

    def half(model: Model, level: Level) -> None:
        model.events.gap[:] //= 2

    few, alone, all_ = (
        search(models, [Proposal(half, 1.0)], deciding)[0]
        for models, deciding in ((bases, 1), (bases[:1], None), (bases, None))
    )
    assert few.mid == alone.mid > all_.mid
    assert few.after_previous == alone.after_previous
    assert (few.low, few.high) == (all_.low, all_.high)


def test_an_empty_change_saves_exactly_nothing() -> None:
    model = loop(100, 30)
    assert step_of(changed(model, same, Level.MID)) == step_of(model) == 1000
    assert found(model, same) == []


def test_a_faster_kernel_behind_a_slow_host_saves_nothing() -> None:
    slow_host, slow_gpu = loop(100, 30), loop(30, 100)
    assert found(slow_host, faster(slow_host, 0.5)) == []
    (saving,) = found(slow_gpu, faster(slow_gpu, 0.5))
    assert (saving.low, saving.mid) == (0, pytest.approx(0.25))
    assert saving.high == pytest.approx(0.5 + 0.075)


def test_what_another_change_saves_already_is_another_way() -> None:
    model = loop(100, 30)
    most = shorten_gaps(everywhere(model), sure=True)

    def half(model: Model, level: Level) -> None:
        model.events.gap[:] //= 2

    def all_of_it(model: Model, level: Level) -> None:
        model.events.gap[:] //= 100

    savings = found(model, half, all_of_it)
    assert [(one.proposal, one.instead_of) for one in savings] == [(1, None), (0, 1)]
    assert savings[1].after_previous < NOTABLE <= savings[1].mid
    assert found(model, most) == []  # pauses of 0.1 ms are not what these gaps are


def test_what_saves_only_after_another_change_is_found() -> None:
    model = loop(100, 60)

    def no_host(model: Model, level: Level) -> None:
        model.events.gap[:] = 0

    savings = found(model, faster(model, 0.1), no_host)
    assert [one.proposal for one in savings] == [1, 0]
    host, kernels = savings
    assert host.mid == host.after_previous == pytest.approx(0.4)
    assert kernels.mid == 0
    assert kernels.after_previous == pytest.approx(0.27)
    assert host.after_previous + kernels.after_previous < 1


def less_host(by: float) -> Edit:
    def edit(model: Model, level: Level) -> None:
        model.events.gap[:] = (model.events.gap * by).astype(np.int64)

    return edit


@pytest.mark.parametrize(("remains", "first"), [(0.8, 1), (0.95, 0)])
def test_a_cause_goes_before_a_remedy_for_everything(remains: float, first: int) -> None:
    model = loop(100, 10)
    general, specific = Proposal(less_host(0.3), 1.0, "host"), Proposal(less_host(remains), 1)
    savings = search([model], [general, specific])
    assert savings[0].proposal == first
    assert savings[0].after_previous + savings[1].after_previous <= 0.77


def test_faster_kernels_do_not_go_before_a_remedy_for_the_host() -> None:
    bases = [loop(100, 95), loop(60, 95)]
    kernels = Proposal(faster(bases[0], 0.1), 1.0)
    for general, first in (("host", 0), ("all", 1)):
        host = Proposal(less_host(0.3), 0.9, general)
        savings = search([loop(130, 95), loop(60, 95)], [host, kernels])
        assert savings[0].proposal == first, general


def test_what_is_expected_is_the_mean_of_what_may_be() -> None:
    """Host and GPU take about equally long: a faster kernel saves something if the host is fast."""
    bases = [loop(100, 95), loop(60, 95)]
    (saving,) = search(bases, [Proposal(faster(bases[0], 0.5), 1.0)])
    assert saving.mid == pytest.approx((0 + 0.25) / 2, abs=0.01)


@examples(60)
@given(models(), st.data())
def test_dropping_never_ends_later(model: Model, data: st.DataObject) -> None:
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(model.events),
                                       max_size=len(model.events))))  # fmt: skip
    dropped = model.edit()
    changes.drop(dropped, gone)
    assert replay(dropped).event.max() <= replay(model).event.max()
    again = model.edit()
    changes.unwait(again, gone)
    assert replay(again).event.max() <= replay(model).event.max()
    assert dropped.events.first_op.tolist() == model.events.first_op.tolist()
