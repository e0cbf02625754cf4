"""Whether a model may speak: replayed unchanged it must give the captured step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.replay.build import Captured
from nvprobe.analysis.replay.model import NEVER, Model
from nvprobe.analysis.replay.run import replay, replay_cost, step_times
from nvprobe.trace import Column

CLOSE = 0.01
"""The replayed median step is this near the captured one, or nothing is replayed."""
MANY, LEAST = 60_000, 4
"""Events that are replayed of a capture with more of them, and steps in each of three pieces."""
CLOSE_USUAL = 0.03
"""The same with one gap and one latency for all ops."""
LONGEST = 15_000
"""A step that costs more to replay is not: findings need some hundreds of replays."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well the unchanged replay gives the captured step."""

    captured_ns: int
    replayed_ns: int
    usual_ns: int
    """Replayed with one gap and one latency for all ops."""
    late_ns: int
    lost_ops: int
    too_long: bool = False
    """A replay of a step would take too long, so none was made."""

    @property
    def error(self) -> float:
        """Of the replayed step, as a share of the captured one."""
        return abs(self.replayed_ns - self.captured_ns) / max(self.captured_ns, 1)

    @property
    def usual_error(self) -> float:
        """The same with one gap and one latency for all ops."""
        return abs(self.usual_ns - self.captured_ns) / max(self.captured_ns, 1)

    @property
    def passed(self) -> bool:
        """Whether savings may be replayed."""
        close = self.error <= CLOSE and self.usual_error <= CLOSE_USUAL
        return self.captured_ns > 0 and close and not self.too_long


def too_long(captured: Captured) -> bool:
    """Whether a replay of a step would take too long."""
    return replay_cost(captured.model) > LONGEST * (len(captured.model.borders) - 1)


def fidelity(captured: Captured) -> Fidelity:
    """Replay the model as it is, and with the usual gap and latency for every op.

    Of a long capture not all steps are replayed, but some from its begin, middle and end.
    """
    recorded = np.diff(captured.completion())
    late_ns, lost_ops = captured.edges.late_ns, captured.lost_ops
    if too_long(captured):
        return Fidelity(int(np.median(recorded)), 0, 0, late_ns, lost_ops, too_long=True)
    plain = usual(captured)
    lengths: tuple[list[Column], ...] = ([], [], [])
    for low, high in pieces(len(captured.uncut.events), len(recorded)):
        lengths[0].append(recorded[low + 1 : high])
        for model, out in ((captured.uncut, lengths[1]), (plain, lengths[2])):
            if high - low < len(recorded):
                model = model.section(low, high, captured.events.begin)
            out.append(step_times(model, replay(model))[1:])
    captured_ns, replayed_ns, usual_ns = (int(np.median(np.concatenate(one))) for one in lengths)
    return Fidelity(captured_ns, replayed_ns, usual_ns, late_ns, lost_ops)


def pieces(events: int, steps: int) -> list[tuple[int, int]]:
    """(first step, last step + 1) of what is replayed. The first step of each fills the queue."""
    few = max(MANY * steps // (3 * max(events, 1)), LEAST)
    if events <= MANY or 3 * few >= steps:
        return [(0, steps)]
    return [(low, low + few) for low in (0, (steps - few) // 2, steps - few)]


def usual(captured: Captured) -> Model:
    """One gap and one latency for all ops but nodes of graphs and copies that the host stages."""
    ops, found = captured.uncut.ops, captured.edges
    launched = (ops.lat != NEVER) & ~captured.staged
    return dataclasses.replace(
        captured.uncut,
        ops=dataclasses.replace(
            ops,
            gap=np.where(launched, found.typical_gap, ops.gap),
            lat=np.where(launched, found.typical_lat, ops.lat),
        ),
    )
