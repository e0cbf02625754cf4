"""A capture made ready to be replayed: a few of its steps, without the profiler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from nvprobe.analysis.model import Steps
from nvprobe.analysis.replay.build import build
from nvprobe.analysis.replay.costs import Calibration, calibration, step_of, variants
from nvprobe.analysis.replay.gate import Fidelity, fidelity
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.run import completion, replay
from nvprobe.analysis.replay.sample import Sample, sample
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.intervals import union_length
from nvprobe.attribution.model import Attribution
from nvprobe.trace import StepTime


@dataclass(frozen=True)
class Replay:
    """The sampled steps of a capture whose replay holds, and the profiler's cost in them."""

    sample: Sample
    fidelity: Fidelity
    calibration: Calibration

    @cached_property
    def models(self) -> list[Model]:
        """The steps by every calibration that may hold, the likeliest first."""
        return variants(self.sample, self.calibration)

    @cached_property
    def steps_ns(self) -> tuple[int, ...]:
        """The unprofiled step by each of ``models``."""
        return tuple(step_of(model) for model in self.models)

    @property
    def _bare(self) -> StepTime | None:
        profiling = self.sample.attribution.trace.profiling
        return None if profiling is None else profiling.bare

    @property
    def step_ns(self) -> int:
        """The unprofiled step: as it was measured, else as it is replayed."""
        return self.steps_ns[0] if self._bare is None else self._bare.step_ns

    @property
    def source(self) -> Literal["measured", "default"]:
        """Whether the unprofiled step was measured."""
        return "default" if self._bare is None else "measured"

    @property
    def busy_share(self) -> float:
        """How much of the unprofiled steps the GPU is busy."""
        model = self.models[0]
        times = replay(model)
        borders = completion(model, times)
        begin = borders[1 if self.sample.steps > 1 else 0]
        start = np.maximum(times.op - model.ops.dur, begin)
        end = np.minimum(times.op, borders[-1])
        busy = union_length(np.zeros(len(start), np.int64), start, np.maximum(end, start), 1)
        return int(busy[0]) / int(borders[-1] - begin) if borders[-1] > begin else 0.0


def replay_of(
    attribution: Attribution, steps: Steps, waits: Waits, process: int | None = None
) -> tuple[Replay | None, Fidelity | None]:
    """(what savings are replayed with, how well the unchanged replay does).

    Both ``None`` where the capture has no steps, calls or ops; the first where the gate fails.
    """
    captured = build(attribution, steps, waits, process)
    if captured is None:
        return None, None
    found = fidelity(captured)
    if not found.passed:
        return None, found
    few = sample(attribution, captured)
    return Replay(few, found, calibration(few)), found
