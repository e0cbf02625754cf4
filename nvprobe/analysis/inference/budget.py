"""Where the time of a usual step goes: the GPU works, or waits for one of the engine's parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.inference.phases import PhaseRows, leading_steps, main_phase
from nvprobe.analysis.model import Steps
from nvprobe.analysis.waiting.host_causes import HOST_LATE, Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Attribution, PathTable
from nvprobe.trace import NO_ROW, Column


class Part(IntEnum):
    """A part of a step."""

    BUSY = 0
    """The GPU works; the others are time in which it waits."""
    SCHEDULE = 1
    PREPARE = 2
    LAUNCH = 3
    """Python, dispatch and launch calls of the model."""
    SAMPLE = 4
    READ_BACK = 5
    """The host waits for the GPU, and is late because of it; what it does with the result."""
    NO_WORK = 6
    DEVICE_WAIT = 7
    OTHER = 8


_NAMES: tuple[tuple[Part, str], ...] = (
    (Part.LAUNCH, r"run_batch|_forward_step|: forward$|^forward|^execute"),
    (
        Part.READ_BACK,
        r"process_batch_result|_update_requests|: (?:bookkeep|postprocess)$|^read back$",
    ),
    (Part.SAMPLE, r"sampl(?:e|er|ing)(?:_|$|[^a-z])"),
    (Part.PREPARE, r"prepare_inputs|: preprocess$|^prepare|process_input_requests"),
    (
        Part.SCHEDULE,
        r"^schedule|_schedule$|get_next_batch|recv_requests|_fetch_new_requests|process_queue",
    ),
)
"""What ranges of engines are; the first that matches decides."""
_CAUSES = {
    Cause.SYNC: Part.READ_BACK,
    Cause.NO_WORK: Part.NO_WORK,
    Cause.DEVICE_WAIT: Part.DEVICE_WAIT,
    Cause.LAUNCH_CALL: Part.LAUNCH,
    Cause.HOST: Part.LAUNCH,
}


@dataclass(frozen=True, slots=True)
class Budget:
    """A mean step of the main phase."""

    phase: int
    step_ns: int
    """Busy and idle time of a step, which the parts add up to."""
    parts: dict[Part, int]
    """ns per step, without those that never occur."""


def budget(attribution: Attribution, steps: Steps, waits: Waits, phases: PhaseRows) -> Budget:
    """Split the steps of the main phase."""
    phase = main_phase(phases)
    rows = leading_steps(steps)
    rows = rows[steps.phase[rows] == phase]
    chosen = np.zeros(len(steps) + 1, bool)
    chosen[rows] = True
    idle = waits.idle
    mine = chosen[idle.next_step]
    part = _part_of_paths(attribution.paths)[idle.path]
    by_cause = np.full(len(Cause), Part.OTHER, np.int64)
    for cause, given in _CAUSES.items():
        by_cause[cause] = given
    own = by_cause[idle.cause]
    if (idle.path >= 0).any():  # outside of all ranges the host launches nothing of the model
        own[(idle.path < 0) & (idle.cause == Cause.HOST)] = Part.OTHER
    named = (part != NO_ROW) & np.isin(idle.cause, HOST_LATE)
    ns = sums(np.where(named, part, own)[mine], idle.ns[mine], len(Part))
    ns[Part.BUSY] = int(steps.gpu_busy_ns[rows].sum())
    each = {one: round(int(ns[one]) / len(rows)) for one in Part if ns[one]}
    return Budget(phase, sum(each.values()), each)


def _part_of_paths(paths: PathTable) -> Column:
    """Part of each path (the last entry: of no path): of the innermost range that has one; -1."""
    own = np.full(len(paths.names), NO_ROW, np.int64)
    for part, pattern in reversed(_NAMES):
        hit = pc.match_substring_regex(paths.names, f"(?i){pattern}")
        own[hit.to_numpy(zero_copy_only=False).astype(bool)] = part
    nearest = paths.nearest(own[paths.name] != NO_ROW)
    return np.append(np.where(nearest >= 0, own[paths.name[nearest]], NO_ROW), NO_ROW)
