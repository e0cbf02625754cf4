"""Quantities of a comparison in words, the same wherever they are shown."""

from __future__ import annotations

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.alignment import above
from nvprobe.comparison.model import (
    Comparison,
    Counter,
    Part,
    PathChange,
    StepComparison,
    Time,
)

COLUMNS = ("Before", "After", "Change", "%", "95% bounds")
"""Those of every table of times."""
STATUS = {"same": "still", "gone": "gone", "new": "new"}
"""Words for the status of a finding."""

_WHAT = {
    "gpu": "GPU time", "overlap": "overlap", "host_time": "host time", "host": "idle: host",
    "launch_call": "idle: launch call", "other_call": "idle: other calls",
    "device_wait": "idle: device wait", "": "",
}  # fmt: skip


def what_in_words(what: str) -> str:
    """What a part is, in words."""
    return _WHAT.get(what, f"idle: {what}")


def share(time: Time) -> str:
    """The change in percent; as a factor from ten on."""
    if not time.before_ns:
        return "new" if time.after_ns else "0.0%"
    if time.after_ns >= 10 * time.before_ns:
        return f"×{time.after_ns / time.before_ns:,.0f}"
    return f"{time.change_ns / time.before_ns:+.1%}"


def bounds(time: Time) -> str:
    """The bounds of the change."""
    if time.bounds_ns is None:
        return "–"
    return f"{change(time.bounds_ns[0])} to {change(time.bounds_ns[1])}"


def step_name(step: StepComparison) -> str:
    """``A step (path, phase, batch 8)``."""
    unit = step.unit or "step"
    batch = "" if step.batch is None else f"batch {step.batch}"
    path = None if step.path == unit else step.path
    words = ", ".join(word for word in (path, step.phase, batch) if word)
    if not words:
        return f"A {unit}" if step.path else "The capture"
    return f"A {unit} ({words})"


def parts_shown(step: StepComparison, most: int) -> list[Part]:
    """The largest parts of the difference, then all others as one: together they add up to it."""
    shown = [part for part in step.parts[:most] if part.change_ns]
    rest = step.parts[len(shown) :]
    if not rest:
        return shown
    before, after = sum(part.before_ns for part in rest), sum(part.after_ns for part in rest)
    name = f"{len(rest)} other part{'s' if len(rest) > 1 else ''}"
    return [*shown, Part(before, after, after - before, None, 0, False, name, "")]


def profiler_share(step: StepComparison) -> str | None:
    """What of the difference the profiler costs."""
    if step.unprofiled is None:
        return None
    cost = change(step.step.change_ns - step.unprofiled.change_ns)
    return f"Of this {cost} is the profiler's cost ({step.unprofiled_source})."


def change(ns: int) -> str:
    """A difference with its sign."""
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}" if ns else "0 ns"


def amount_in_words(name: str) -> str:
    """The name of an amount; causes of idle time are indented."""
    kind, colon, cause = name.partition(": ")
    return f"  {what_in_words(cause)}" if colon and kind == "idle" else name


def noise_in_words(found: Comparison) -> str:
    """The noise floor, and how it is known."""
    noise = found.noise
    assert noise is not None
    how = f"measured on {noise.runs} runs" if noise.measured else "assumed: one run per side"
    return f"Noise floor {noise.share:.1%} of a step ({how}); bold and colors: beyond it"


def count(value: float) -> str:
    """A count, with decimals only where it is a mean."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def counted(counter: Counter) -> str:
    """The change of a counter with its sign."""
    more = counter.after - counter.before
    return f"{'+' if more > 0 else '-'}{count(abs(more))}" if more else "0"


def spent(step: StepComparison) -> str:
    """What the time of paths is."""
    on_host = any(part.what == "host_time" for part in step.parts)
    return "Host time" if on_host else "GPU time"


def path_names(one: PathChange) -> str:
    """The path before, and its last name after where that is another."""
    if one.status != "renamed":
        return one.before or ""
    last = (one.after or "").removeprefix(above(one.after or "")).lstrip("/")
    return f"{one.before} → {last}"
