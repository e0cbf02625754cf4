"""Calls that are left out: what they launch, and the host's work between two of them."""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.replay.build import build
from nvprobe.analysis.replay.edits.calls import without
from nvprobe.analysis.replay.levels import Level, changed
from nvprobe.analysis.replay.model import ALL
from nvprobe.analysis.replay.sample import Sample, sample
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.waits import waits
from nvprobe.attribution import attribute
from tests.unit.analysis.scenes import ADD, Scene, loop

US = 1000


def three_launches(scene: Scene) -> None:
    for before in (20 * US, 30 * US, 40 * US):
        scene.host(before)
        scene.launch(ADD, 2 * US)


def sampled() -> tuple[Sample, np.ndarray]:
    """(a few steps, rows of their launches: one row a step)."""
    attribution = attribute(loop(three_launches, steps=6).trace())
    found = steps(attribution, lost_launches(attribution))
    captured = build(attribution, found, waits(attribution, found))
    assert captured is not None
    some = sample(attribution, captured)
    launches = np.flatnonzero(some.model.op_end() > some.model.events.first_op)
    return some, launches.reshape(-1, 3)


def gaps(some: Sample, left_out: np.ndarray, level: Level) -> np.ndarray:
    chosen = np.zeros(len(some.model.events), bool)
    chosen[left_out] = True
    return changed(some.model, without(some, chosen), level).events.gap


def test_the_work_between_two_calls_left_out_goes_and_that_before_the_first_stays() -> None:
    some, launches = sampled()
    had, left_out = some.model.events.gap, launches[:, 1:].ravel()
    expected = had.copy()
    expected[launches[:, 2]] = 0
    assert (had[left_out] > 0).all()
    np.testing.assert_array_equal(gaps(some, left_out, Level.MID), expected)
    expected[left_out] = 0
    np.testing.assert_array_equal(gaps(some, left_out, Level.HIGH), expected)
    np.testing.assert_array_equal(gaps(some, left_out, Level.LOW), had)


def test_the_work_after_a_call_that_stays_does_not_go() -> None:
    some, launches = sampled()
    had, left_out = some.model.events.gap, launches[:, [0, 2]].ravel()
    np.testing.assert_array_equal(gaps(some, left_out, Level.MID), had)


def test_the_work_with_a_value_that_was_waited_for_does_not_go() -> None:
    some, launches = sampled()
    model = some.model.edit()
    model.events.awaits[launches[:, 1]] = ALL
    had = model.events.gap
    left_out = launches[:, 1:].ravel()
    np.testing.assert_array_equal(
        gaps(dataclasses.replace(some, model=model), left_out, Level.MID), had
    )


def test_calls_of_two_threads_do_not_follow_each_other() -> None:
    some, launches = sampled()
    lane = some.model.events.lane.copy()
    lane[launches[:, 1]] = 1
    model = dataclasses.replace(
        some.model, events=dataclasses.replace(some.model.events, lane=lane), lanes=2
    )
    other = dataclasses.replace(some, model=model)
    had = model.events.gap
    expected = had.copy()
    expected[launches[:, 2]] = 0  # of its own lane, after the first
    expected[launches[1:, 1]] = 0  # the only launches of the second
    np.testing.assert_array_equal(gaps(other, launches.ravel(), Level.MID), expected)
