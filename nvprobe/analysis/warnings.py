"""What to distrust in a capture, each in one sentence; a rule says nothing where all is well."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.model import Steps
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Trace

__all__ = ["warnings"]

_ERROR = 3
"""Severity of an error among the profiler's own messages."""
_SHOWN = 3
"""Names listed in a warning before it says "and N more"."""


def warnings(
    attribution: Attribution, suspect: Column, lost: Column, steps: Steps
) -> tuple[str, ...]:
    """The loader's warnings, the profiler's own errors, then those of each rule."""
    trace = attribution.trace
    found = [
        *trace.warnings,
        *_diagnostics(trace),
        _lost_launches(trace, lost, steps),
        _impossible_times(attribution),
        _overlapping_successors(attribution, suspect),
        _started_before_call(attribution),
    ]
    return tuple(text for text in found if text)


def _diagnostics(trace: Trace) -> list[str]:
    """Errors that the profiler wrote into the capture, each once; its warnings are boilerplate."""
    errors = dict.fromkeys(text for severity, text in trace.diagnostics if severity >= _ERROR)
    return [f"the profiler said: {' '.join(text.split())}" for text in errors]


def _lost_launches(trace: Trace, lost: Column, steps: Steps) -> str | None:
    if not len(lost):
        return None
    where = ""
    hit = np.flatnonzero(steps.missing_launches)
    if len(hit):
        word = "step" if len(hit) == 1 else "steps"
        where = f" (in {word} {_listed([str(i) for i in steps.index[hit].tolist()])})"
    noun = "launch call has" if len(lost) == 1 else "launch calls have"
    return (
        f"{len(lost):,} {noun} no GPU record{where}: the profiler lost the kernels, so GPU time is "
        "a lower bound and idle time an upper bound there"
    )


def _impossible_times(attribution: Attribution) -> str | None:
    count = int((~attribution.valid).sum())
    if not count:
        return None
    noun = "GPU record has" if count == 1 else "GPU records have"
    return f"{count:,} {noun} impossible times (end before start, or 0) and count with 0 ns"


def _overlapping_successors(attribution: Attribution, suspect: Column) -> str | None:
    ops, trace = attribution.trace.ops, attribution.trace
    rows = np.flatnonzero(suspect)
    if not len(rows):
        return None
    names = [text or "(unnamed)" for text in trace.texts(np.unique(ops.short_name[rows]))]
    time = int(attribution.duration[rows].sum())
    noun = "op overlaps its" if len(rows) == 1 else "ops overlap their"
    return (
        f"{len(rows):,} {noun} successors on the same stream ({_listed(names)}): work on a stream "
        f"is serial, so these ends are unreliable and {time:,} ns with them"
    )


def _started_before_call(attribution: Attribution) -> str | None:
    ops, calls = attribution.trace.ops, attribution.trace.calls
    rows = np.flatnonzero(attribution.valid & (attribution.call != NO_ROW))
    lead = calls.start[attribution.call[rows]] - ops.start[rows]
    early = lead > 0
    if not early.any():
        return None
    noun = "op starts" if int(early.sum()) == 1 else "ops start"
    return (
        f"{int(early.sum()):,} {noun} up to {int(lead[early].max()):,} ns before the launch: the "
        "clocks of host and GPU differ by that much; owners are kept"
    )


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
