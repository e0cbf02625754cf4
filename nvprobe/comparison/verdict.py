"""The one line that a comparison is remembered by."""

from __future__ import annotations

from collections.abc import Sequence

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.model import Counter, Difference, Part, StepComparison
from nvprobe.comparison.words import count, share, what_in_words


def verdict(
    steps: Sequence[StepComparison], counters: Sequence[Counter], found: Sequence[Difference]
) -> str:
    """What became of the step, and the largest part of it."""
    bad = [one.what for one in found if one.decides]
    if bad:
        one = len(bad) == 1 and bad[0] != "filters"
        return f"times cannot be compared: {', '.join(bad)} differ{'s' if one else ''}"
    if not steps:
        return "nothing to compare: no steps that both sides have"
    first = steps[0]
    counted = [f"{one.name} {count(one.before)} to {count(one.after)}"
               for one in (*first.counters, *counters) if one.changed]  # fmt: skip
    also = f"; {counted[0]}" if counted else ""
    paths = [one for one in first.paths if one.gpu is not None and one.gpu.changed and one.before]
    if not first.step.changed:
        step, inside = first.step, ""
        same = "no change beyond the noise" if step.change_ns else "no change"
        if paths and paths[0].gpu is not None:
            inside = f", but GPU time of {paths[0].before} {share(paths[0].gpu)}"
        times = f"{duration(step.before_ns)} to {duration(step.after_ns)} per step"
        return f"{same}: {times}{inside}{also}"
    word = "slower" if first.step.change_ns > 0 else "faster"
    sign = 1 if first.step.change_ns > 0 else -1
    most: Part = max(first.parts, key=lambda part: sign * part.change_ns)
    return (f"{word}: {duration(first.step.before_ns)} to {duration(first.step.after_ns)} per step "
            f"({share(first.step)}), most of it {what_in_words(most.what)} of "
            f"{most.path or 'no range'}{also}")  # fmt: skip
