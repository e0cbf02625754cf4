"""Calibration of a job: one factor for the hosts of all ranks, from the replay of all of them.

A rank that waits for others is as long as they are, whatever its own host does: by itself its
replay cannot say how fast its host is without the profiler. A host on which everything takes longer
than on the others, calls that do next to nothing too, is a slower host and stays one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from nvprobe.analysis.replay.costs import (
    STRETCHES,
    Calibration,
    calibrated,
    default_calibration,
    solved,
    step_of,
    with_cheaper_records,
)
from nvprobe.analysis.replay.gate import CLOSE_USUAL
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.ranks import Ranks
from nvprobe.analysis.replay.sample import Sample


def joint_variants(
    ranks: Ranks, low: int, fews: Sequence[Sample], known_ns: int | None, own_ns: Sequence[int]
) -> list[list[Model]]:
    """The models of all ranks by every calibration that may hold, the likeliest first.

    ``fews``: their steps from ``low`` on. ``known_ns``: their unprofiled step, where it was
    measured; without the profiler no step is longer than with it. ``own_ns``: each rank's, where
    all were measured.
    """

    def models(by: Sequence[Calibration], factor: float = 1.0) -> list[Model]:
        """By these, with their factors times this one."""
        some = [calibrated(few, one, factor) for few, one in zip(fews, by, strict=True)]
        return ranks.without_waiting(some, low, fews[0].steps)

    def solve(by: Sequence[Calibration], target: int) -> list[Calibration] | None:
        """The same with factors that give a step of this length."""
        scale = len(by) / sum(one.factor for one in by)
        found = solved(
            lambda factor: ranks.joint(models(by, factor * scale), low, fews[0].steps).step_ns(),
            target,
        )
        if found is None:
            return None
        return [dataclasses.replace(one, factor=one.factor * found * scale) for one in by]

    by = _at_one_pace([default_calibration(few) for few in fews])
    step = ranks.joint(models(by), low, fews[0].steps).step_ns()
    if known_ns is not None and abs(step - known_ns) > CLOSE_USUAL * known_ns:
        by = solve([dataclasses.replace(one, source="measured") for one in by], known_ns) or by
        by = [_no_longer(*one) for one in zip(fews, by, models(by), own_ns, strict=True)]
        step = ranks.joint(models(by), low, fews[0].steps).step_ns()
    cheaper = solve([with_cheaper_records(one) for one in by], step)
    known = [by] if cheaper is None else [by, cheaper]
    return [models(one, stretch) for one in known for stretch in STRETCHES]


def _at_one_pace(by: Sequence[Calibration]) -> list[Calibration]:
    """With factor and slowness of the middle of all hosts: geometric means."""
    slowness, factor = (
        float(np.exp(np.mean(np.log(values))))
        for values in ([one.slowness for one in by], [one.factor for one in by])
    )
    return [dataclasses.replace(one, slowness=slowness, factor=factor) for one in by]


def _no_longer(few: Sample, by: Calibration, model: Model, own_ns: int) -> Calibration:
    """With a factor by which the rank takes no longer by itself than its unprofiled step.

    That one has waiting for others in it, ``model`` has none.
    """
    if step_of(model) <= (1 + CLOSE_USUAL) * own_ns:
        return by

    def step(factor: float) -> int:
        own = calibrated(few, dataclasses.replace(by, factor=factor))
        return step_of(dataclasses.replace(own, ops=own.ops.with_columns(dur=model.ops.dur)))

    factor = solved(step, own_ns)
    return by if factor is None else dataclasses.replace(by, factor=factor)
