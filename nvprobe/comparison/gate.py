"""The gate: whether a comparison shows a regression, shows none, or cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.model import (
    Check,
    Comparison,
    Counter,
    Gate,
    Outcome,
    StepComparison,
    Time,
)
from nvprobe.comparison.steps import LEAST_SHARE
from nvprobe.comparison.words import change, share

COUNTED = ("syncs", "graph breaks", "recompilations")
"""More of these is a regression, however small."""
_LEAST_CHANGE = 0.001
"""Of the step: what matters to nobody, however many times longer a small path takes."""


def gate(checks: Sequence[Check]) -> Gate:
    """One outcome of all checks."""
    outcomes = {check.outcome for check in checks}
    outcome: Outcome = "pass"
    if outcomes & {"fail", "cannot tell"} or not checks:
        outcome = "fail" if "fail" in outcomes else "cannot tell"
    return Gate(outcome, list(checks))


def gated(found: Comparison, checks: Sequence[Check]) -> Comparison:
    """The comparison with what came of the checks."""
    return msgspec.structs.replace(found, gate=gate(checks))


def regressions(found: Comparison, most: float) -> list[Check]:
    """Counts, then the step and the GPU time of paths; ``most``: the share they may grow by."""
    limit = f"+{most:.4g}".rstrip("0").rstrip(".") if most >= 1 else f"+{most:.1%}"
    bad = [one for one in found.differences if one.decides]
    if bad or not found.steps:
        named = ", ".join(one.what for one in bad)
        why = f"the sides differ in {named}" if bad else "no steps that both sides have"
        return [Check("times", limit, "cannot tell", f"times: cannot tell, {why}")]
    counters = [*(one for step in found.steps for one in step.counters), *found.counters]
    return [
        *(_count(one) for one in counters if one.name in COUNTED),
        *(check for step in found.steps for check in _times(step, most, limit)),
    ]


def _count(one: Counter) -> Check:
    outcome: Outcome = "fail" if one.changed and one.after > one.before else "pass"
    line = f"{one.name}: {one.before:,.4g} to {one.after:,.4g}{' per step' if one.per_step else ''}"
    return Check(one.name, "no more", outcome, line)


def _times(found: StepComparison, most: float, limit: str) -> list[Check]:
    """The step, then exposed communication and paths that are large enough to count."""
    step = found.unprofiled or found.step
    name = "step time" + (f" of {found.phase}" if found.phase else "")
    source = f", {found.unprofiled_source} without the profiler" if found.unprofiled else ""
    checks = [_time(name, step, most, limit, found.step, source)]
    for one in found.amounts:
        if one.name == "exposed communication":
            checks.append(_time(one.name, one, most, limit, found.step))
    on_host = any(part.what == "host_time" for part in found.parts)
    spent = "host time" if on_host else "GPU time"
    for path in found.paths:
        if path.gpu is not None and _large(path.gpu, found.step):
            checks.append(_time(f"{spent} of {path.before}", path.gpu, most, limit, found.step))
    return checks


def _large(time: Time, step: Time) -> bool:
    return max(time.before_ns / max(step.before_ns, 1),
               time.after_ns / max(step.after_ns, 1)) >= LEAST_SHARE  # fmt: skip


def _time(name: str, time: Time, most: float, limit: str, step: Time, source: str = "") -> Check:
    """Fails where the least change is beyond the budget, the noise floor and 0.1% of the step."""
    allowed = most * time.before_ns
    least = max(allowed, time.floor_ns, _LEAST_CHANGE * step.before_ns)
    numbers = (f"{name}: {duration(time.before_ns)} to {duration(time.after_ns)} "
               f"({share(time)}{source})")  # fmt: skip
    if time.bounds_ns is None:
        return Check(name, limit, "cannot tell", f"{numbers}; a single step cannot tell")
    low, high = time.bounds_ns
    if low > least:
        line = f"{numbers}; at least {change(low)}, the limit is {limit}"
        return Check(name, limit, "fail", line)
    if high <= allowed + least:
        return Check(name, limit, "pass", numbers)
    line = f"{numbers}; between {change(low)} and {change(high)}: capture more steps or runs"
    return Check(name, limit, "cannot tell", line)
