"""Predictions held against a run with the change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.verification import Verified, verify
from nvprobe.attribution import attribute
from nvprobe.attribution.model import Attribution
from nvprobe.errors import UsageError
from tests.unit.analysis.scenes import BF16_GEMM, Scene, loop, unprofiled

US = 1000


def run(waits: bool, extra: int = 0, measured: bool = True) -> Attribution:
    def body(scene: Scene) -> None:
        for _ in range(6):
            scene.launch(BF16_GEMM, 100 * US + extra)
            if waits:
                scene.item()
            scene.host(80 * US)

    scene = loop(body, steps=6)
    cost = unprofiled(scene)
    if not measured:
        cost = dataclasses.replace(cost, bare=None)
    return attribute(dataclasses.replace(scene.trace(), profiling=cost))


def test_what_was_predicted_came_true() -> None:
    found = verify(run(waits=True), run(waits=False))
    assert (found.id, found.source) == ("implicit_sync", "measured")
    assert found.saved > 25
    assert found.holds


def test_a_change_that_made_it_worse_does_not_hold() -> None:
    found = verify(run(waits=True), run(waits=True, extra=200 * US))
    assert found.saved < 0
    assert not found.holds


def test_steps_that_nobody_measured_come_from_replays() -> None:
    found = verify(run(waits=True, measured=False), run(waits=False))
    assert found.source == "estimated"


def test_bounds_are_part_of_what_holds() -> None:
    found = Verified("x", "x", 10.0, 20.0, 30.0, 30.0, 100, 70, "measured")
    assert found.holds
    assert not dataclasses.replace(found, saved=30.1).holds


def test_savings_need_gpu_work() -> None:
    whole = run(waits=True)
    trace, nothing = whole.trace, np.empty(0, np.int64)
    ops, geometry = trace.ops.take(nothing), trace.geometry.take(nothing)
    on_the_cpu = attribute(dataclasses.replace(trace, ops=ops, geometry=geometry))
    for runs, which in (((on_the_cpu, whole), "first"), ((whole, on_the_cpu), "second")):
        with pytest.raises(UsageError, match=f"the {which} run has no GPU work in its capture"):
            verify(*runs)


@pytest.mark.parametrize("number", [2, 9])
def test_a_finding_that_is_not_there(number: int) -> None:
    with pytest.raises(UsageError, match=f"finding {number}"):
        verify(run(waits=True), run(waits=False), number)
