"""Calibration: what the profiler cost is taken away, and a measured step is met."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.replay.build import build
from nvprobe.analysis.replay.costs import (
    calibrated,
    calibration,
    host_step,
    step_of,
    variants,
)
from nvprobe.analysis.replay.edits.waits import input_wait
from nvprobe.analysis.replay.levels import Level
from nvprobe.analysis.replay.sample import Sample, sample
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.waits import waits
from nvprobe.attribution import attribute
from nvprobe.trace import DEFAULT_COSTS, ProfilingCost, StepTime
from tests.unit.analysis.scenes import ADD, BF16_GEMM, Scene, loop

US = 1000


def host_bound(scene: Scene) -> None:
    for _ in range(40):
        scene.host(20 * US)
        scene.launch(ADD, 2 * US, cost=10 * US)


def gpu_bound(scene: Scene) -> None:
    for _ in range(40):
        scene.launch(BF16_GEMM, 100 * US)


def few(body, bare_ns: int | None, host_ns: int | None = None) -> Sample:
    trace = loop(body, steps=6).trace()
    step = None if bare_ns is None else StepTime(bare_ns, None, 20, 4)
    cost = ProfilingCost("nsys", step, None, DEFAULT_COSTS, None, host_ns=host_ns)
    attribution = attribute(dataclasses.replace(trace, profiling=cost))
    found = steps(attribution, lost_launches(attribution))
    captured = build(attribution, found, waits(attribution, found))
    assert captured is not None
    return sample(attribution, captured)


def test_the_measured_step_is_met() -> None:
    some = few(host_bound, 700 * US)
    by = calibration(some)
    assert by.source == "measured"
    assert step_of(calibrated(some, by)) == pytest.approx(700 * US, rel=0.01)


def test_a_step_that_the_gpu_decides_needs_no_factor() -> None:
    some = few(gpu_bound, 4_000 * US)
    by = calibration(some)
    assert by.source == "default"
    assert step_of(calibrated(some, by)) == pytest.approx(step_of(some.model), rel=0.001)


def test_a_host_that_runs_ahead_is_as_fast_as_it_was_measured() -> None:
    for host_ns in (60 * US, 120 * US):
        some = few(gpu_bound, 4_000 * US, host_ns)
        by = calibration(some)
        assert by.source == "measured"
        assert host_step(calibrated(some, by)) == pytest.approx(host_ns, rel=0.02)
    waiting = calibration(few(gpu_bound, 4_000 * US, 3_900 * US))
    assert waiting.source == "default", "its period is that of the GPU"


def test_waiting_for_data_is_calibrated_with_the_host() -> None:
    def body(scene: Scene) -> None:
        scene.inside("data", lambda: scene.host(2_000 * US))
        scene.launch(BF16_GEMM, 100 * US)

    some = few(body, 3_000 * US)
    model = calibrated(some, calibration(some))
    assert step_of(model) == pytest.approx(3_000 * US, rel=0.01)
    input_wait(some)(model, Level.HIGH)
    assert step_of(model) < 200 * US, "nothing of the wait is left as the host's own work"


def test_without_a_measurement_records_cost_what_they_usually_do() -> None:
    some = few(host_bound, None)
    by = calibration(some)
    assert (by.source, by.slowness) == ("default", 1.5)  # nothing tells how slow the host was
    step = step_of(calibrated(some, by))
    assert step < step_of(some.model) - 40 * DEFAULT_COSTS.launch_ns
    assert step < step_of(calibrated(some, by, 1.33))


def test_the_sample_is_of_neighboring_steps() -> None:
    some = few(host_bound, None)
    assert some.steps == 4
    assert len(some.events) == len(some.model.events)
    assert np.all(np.diff(some.events.begin) >= 0)
    assert step_of(some.model) == pytest.approx(1200 * US, rel=0.01)


def test_the_split_between_records_and_own_work_is_not_known() -> None:
    some = few(host_bound, 700 * US)
    lengths = [step_of(model) for model in variants(some, calibration(some))]
    assert len(lengths) == 6
    assert lengths[3] == pytest.approx(lengths[0], rel=0.01), "as long, with cheaper records"
    assert lengths[1] < lengths[0] < lengths[2]


def test_the_profiler_takes_no_part_of_a_step_that_the_gpu_decides() -> None:
    some = few(gpu_bound, None)
    models = variants(some, calibration(some))
    assert {step_of(model) for model in models} == {step_of(some.model)}
    hosts = [host_step(model) for model in models]
    assert hosts[3] == pytest.approx(hosts[0], rel=0.02), "as long, with cheaper records"
    assert hosts[1] < hosts[0] < hosts[2]


def test_a_host_near_the_gpu_is_not_as_slow_as_its_step_allows() -> None:
    """Any factor up to the one with which the host is the bottleneck gives the measured step."""

    def body(scene: Scene) -> None:
        for _ in range(40):
            scene.host(45 * US)
            scene.launch(BF16_GEMM, 60 * US)

    some = few(body, 2_400 * US, 1_300 * US)
    assert host_step(calibrated(some, calibration(some))) == pytest.approx(1_300 * US, rel=0.02)
