"""What was predicted for a finding, and what came of it in a run with the change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nvprobe.analysis import analyze
from nvprobe.analysis.simulation import Asked, simulate
from nvprobe.attribution.model import Attribution
from nvprobe.errors import UsageError


@dataclass(frozen=True, slots=True)
class Verified:
    """One finding, predicted and measured; shares of the step in percent."""

    id: str
    title: str
    low: float
    mid: float
    high: float
    saved: float
    """Negative where the step became longer."""
    before_ns: int
    after_ns: int
    source: Literal["measured", "estimated"]
    """Whether both steps were measured without the profiler, or come from replays."""

    @property
    def holds(self) -> bool:
        """Whether what was saved lies within the bounds."""
        return self.low <= self.saved <= self.high


def verify(before: Attribution, after: Attribution, number: int = 1) -> Verified:
    """Hold finding ``number`` of ``before`` against the steps of ``after``.

    Raises UsageError where there is no such finding, or either run has no GPU work or no steps to
    compare.
    """
    for run, which in ((before, "first"), (after, "second")):
        if not len(run.trace.ops):
            raise UsageError(
                f"the {which} run has no GPU work in its capture; what a change saves is "
                "predicted, and held against a run, from GPU work"
            )
    findings = [one for one in analyze(before).findings or () if one.step_saving is not None]
    if not 1 <= number <= len(findings):
        raise UsageError(f"finding {number}: the first run has {len(findings)} with a prediction")
    found = findings[number - 1]
    saving = found.step_saving
    assert saving is not None
    steps = [_measured(run) for run in (before, after)]
    source: Literal["measured", "estimated"] = "measured" if all(steps) else "estimated"
    if source == "estimated":
        steps = [simulate(run, Asked()).step_ns for run in (before, after)]
    was, now = (step or 0 for step in steps)
    return Verified(
        found.id, found.title, saving.low, saving.mid, saving.high,
        round(100 * (1 - now / max(was, 1)), 1), was, now, source,
    )  # fmt: skip


def _measured(run: Attribution) -> int | None:
    """The unprofiled step that ``nvprobe launch`` measured."""
    measured = run.trace.profiling
    return None if measured is None or measured.bare is None else measured.bare.step_ns
