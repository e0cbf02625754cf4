"""Inference: phases and their rates, where a step's time goes, the slowest steps and why."""

from __future__ import annotations

from dataclasses import dataclass

from nvprobe.analysis.inference.budget import Budget, budget
from nvprobe.analysis.inference.families import Families, families
from nvprobe.analysis.inference.phases import PhaseRows, leading_steps, phase_rows
from nvprobe.analysis.inference.slowest import SlowStep, slowest
from nvprobe.analysis.kernels.classes import OpClasses
from nvprobe.analysis.model import Steps
from nvprobe.analysis.verdict import duration
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.engines import StepPhase
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column


@dataclass(frozen=True, slots=True)
class Inference:
    """What the steady steps of the leading process do."""

    rows: Column
    """Their rows of the steps."""
    phases: PhaseRows
    budget: Budget
    slowest: list[SlowStep]
    families: Families


_LARGE_GAP = 0.1
"""From this share of a step on, the gap before it is in the verdict."""


def main_step(found: Inference | None) -> str:
    """The usual step of the main phase in numbers, for the verdict; empty without phases."""
    if found is None:
        return ""
    table = found.phases
    name = StepPhase(int(table.phase[0])).name.lower()
    wall, busy = int(table.wall_p50_ns[0]), int(table.busy_ns[0])
    if busy > wall:  # the host runs ahead
        return (
            f"a {name} step takes the GPU {duration(busy)} (median of {int(table.steps[0]):,}), "
            f"the host {duration(wall)}"
        )
    gap = int(table.gap_ns[0])
    after = f", after a gap of {duration(gap)}" if gap >= _LARGE_GAP * wall else ""
    return (
        f"a {name} step takes {duration(wall)} (median of {int(table.steps[0]):,}), "
        f"the GPU works for {duration(busy)} of it{after}"
    )


def inference(
    attribution: Attribution, steps: Steps, waits: Waits, classes: OpClasses, step_of_op: Column
) -> Inference | None:
    """Phases, budget, slowest steps and kernels; ``None`` where no step has a phase."""
    phases = phase_rows(steps)
    if phases is None:
        return None
    return Inference(
        rows=leading_steps(steps),
        phases=phases,
        budget=budget(attribution, steps, waits, phases),
        slowest=slowest(attribution, steps, waits, phases),
        families=families(attribution, steps, classes, step_of_op, leading_steps(steps)),
    )
