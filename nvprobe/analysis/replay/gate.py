"""Whether a model may speak: replayed unchanged it must give the captured step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.replay.build import Captured
from nvprobe.analysis.replay.model import NEVER, Model
from nvprobe.analysis.replay.run import replay, steady_step, step_times

__all__ = ["CLOSE", "Fidelity", "fidelity"]

CLOSE = 0.01
"""The replayed median step is this near the captured one, or nothing is replayed."""
CLOSE_USUAL = 0.03
"""The same with one gap and one latency for all ops."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well the unchanged replay gives the captured step."""

    captured_ns: int
    replayed_ns: int
    usual_ns: int
    """Replayed with one gap and one latency for all ops."""
    late_ns: int
    lost_ops: int

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
        return self.captured_ns > 0 and close


def fidelity(captured: Captured) -> Fidelity:
    """Replay the model as it is, and with the usual gap and latency for every op."""
    model = captured.model
    return Fidelity(
        captured_ns=steady_step(np.diff(captured.completion())),
        replayed_ns=steady_step(step_times(model, replay(model))),
        usual_ns=steady_step(step_times(model, replay(_usual(captured)))),
        late_ns=captured.edges.late_ns,
        lost_ops=captured.lost_ops,
    )


def _usual(captured: Captured) -> Model:
    """One gap and one latency for all ops but the nodes of graphs."""
    ops, found = captured.model.ops, captured.edges
    launched = ops.lat != NEVER
    return dataclasses.replace(
        captured.model,
        ops=dataclasses.replace(
            ops,
            gap=np.where(launched, found.typical_gap, ops.gap),
            lat=np.where(launched, found.typical_lat, ops.lat),
        ),
    )
