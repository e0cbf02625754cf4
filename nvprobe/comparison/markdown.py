"""A comparison in at most 25 lines of Markdown, for a step summary or a comment."""

from __future__ import annotations

from collections.abc import Iterator

from nvprobe.analysis.verdict import duration, short_path
from nvprobe.comparison.model import Comparison, StepComparison, Time
from nvprobe.comparison.words import change, parts_shown, share, what_in_words
from nvprobe.readers.input_errors import printable

MOST_LINES = 25
_PARTS, _CHECKS, _FACTS = 6, 5, 2


def markdown(found: Comparison) -> str:
    """Verdict, gate, the step, and the parts that explain the difference."""
    lines = [f"**{_text(found.verdict)}**", ""]
    gate = found.gate
    if gate is not None:
        lines.append(f"Gate: **{gate.outcome}**, {len(gate.checks)} checks")
        failed = sorted((one for one in gate.checks if one.outcome != "pass"),
                        key=lambda one: one.outcome != "fail")  # fmt: skip
        lines += [f"- {one.outcome}: {_text(one.line)}" for one in failed[:_CHECKS]]
        lines.append("")
    for one in found.differences[:_FACTS]:
        lines.append(f"Not the same: {_text(f'{one.what}: {one.before} → {one.after}')}")
    if found.steps:
        lines += ["", *_table(found.steps[0])]
    return "\n".join(lines[:MOST_LINES]) + "\n"


def _table(step: StepComparison) -> Iterator[str]:
    yield "| a step | before | after | change |"
    yield "|---|---:|---:|---:|"
    yield _row("as profiled", step.step)
    if step.unprofiled is not None:
        yield _row(f"without the profiler ({step.unprofiled_source})", step.unprofiled)
    for part in parts_shown(step, _PARTS):
        name, what = short_path(part.path or "(no range)", 60), what_in_words(part.what)
        yield _row(f"{name}, {what}" if what else name, part)


def _row(name: str, time: Time) -> str:
    cells = duration(time.before_ns), duration(time.after_ns)
    return f"| {_text(name)} | {' | '.join(cells)} | {change(time.change_ns)} ({share(time)}) |"


def _text(text: str) -> str:
    """Text of a capture that cannot end a cell, a line, or become markup."""
    shown = printable(text, 300)
    for mark in "\\`*_{}[]<>|#":
        shown = shown.replace(mark, f"\\{mark}") if mark not in "<>" else shown.replace(
            mark, {"<": "&lt;", ">": "&gt;"}[mark])  # fmt: skip
    return shown
