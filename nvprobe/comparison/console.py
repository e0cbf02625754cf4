"""A comparison for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.alignment import above
from nvprobe.comparison.model import Comparison, PathChange, StepComparison, Time
from nvprobe.comparison.words import (
    COLUMNS,
    STATUS,
    amount_in_words,
    bounds,
    change,
    count,
    counted,
    noise_in_words,
    parts_shown,
    path_names,
    profiler_share,
    share,
    spent,
    step_name,
    what_in_words,
)
from nvprobe.report.console.format import plain
from nvprobe.report.console.names import apart
from nvprobe.report.console.tables import new_table

_ROWS = 10
"""Rows of each table; the JSON has all."""
_WIDTH = 44
_OUTCOMES = {"pass": "green", "fail": "bold red", "cannot tell": "yellow"}


def sections(found: Comparison) -> Iterator[RenderableType]:
    """Everything that there is something to say about."""
    yield _heading(found)
    if found.differences:
        yield _differences(found)
    for step in found.steps:
        yield _times(step, found)
        yield _explained(step)
        if step.paths:
            yield _paths(step)
        yield _kernels(step)
    if found.graphs:
        yield _graphs(found)
    if found.findings:
        yield _findings(found)
    if found.gate is not None:
        yield _gate(found)


def _heading(found: Comparison) -> Text:
    out = Text()
    for name, side in (("before", found.before), ("after", found.after)):
        files = ", ".join(run.files[0] if run.files else "?" for run in side)
        steps = sum(run.steps for run in side)
        out.append(plain(f"{name}: {files} ({steps} steps)"), "dim")
        out.append("\n")
    out.append("\n")
    return out.append(plain(found.verdict), "bold")


def _differences(found: Comparison) -> RenderableType:
    table = new_table("Not the same", "Before", "After")
    for one in found.differences:
        style = "bold red" if one.decides else ""
        table.add_row(
            Text(plain(one.what), style), plain(one.before or "–"), plain(one.after or "–")
        )
    return table


def _row(table: Table, name: Text | str, time: Time) -> None:
    style = ("red" if time.change_ns > 0 else "green") if time.changed else ""
    table.add_row(
        name, duration(time.before_ns), duration(time.after_ns),
        Text(change(time.change_ns), style), Text(share(time), style), bounds(time),
    )  # fmt: skip


def _times(step: StepComparison, found: Comparison) -> RenderableType:
    table = new_table(step_name(step), *COLUMNS)
    _row(table, "as profiled", step.step)
    if step.unprofiled is not None:
        _row(table, f"without the profiler ({step.unprofiled_source})", step.unprofiled)
    for one in step.amounts:
        _row(table, f"  {amount_in_words(one.name)}", one)
    for counter in (*step.counters, *found.counters):
        if counter.before or counter.after:
            values = count(counter.before), count(counter.after)
            style = "bold" if counter.changed else "dim"
            change_ = Text(counted(counter), style)
            table.add_row(Text(f"  {counter.name}", style), *values, change_, "", "")
    return table if found.noise is None else Group(table, Text(noise_in_words(found), "dim"))


def _explained(step: StepComparison) -> RenderableType:
    """The parts, largest first, and the rest in one row: the column adds up."""
    title = f"The difference of {change(step.step.change_ns)}, in parts"
    table = new_table(title, "What", *COLUMNS[:3])
    for part in parts_shown(step, _ROWS):
        style = ("red" if part.change_ns > 0 else "green") if part.changed else ""
        table.add_row(_cut(part.path or "(no range)"), what_in_words(part.what),
                      duration(part.before_ns), duration(part.after_ns),
                      Text(change(part.change_ns), style))  # fmt: skip
    more = profiler_share(step)
    return table if more is None else Group(table, Text(more, "dim"))


def _paths(step: StepComparison) -> RenderableType:
    table = new_table(f"{spent(step)} of", *COLUMNS)
    both = [one for one in step.paths if one.gpu is not None]
    moved = [one for one in both if one.gpu is not None and one.gpu.changed] or both[:3]
    for one in moved[:_ROWS]:
        assert one.gpu is not None
        _row(table, _cut(path_names(one)), one.gpu)
    for one in _outermost(step.paths)[:_ROWS]:
        time = duration(one.gpu_ns or 0)
        only = ("–", time, "new") if one.before is None else (time, "–", "gone")
        table.add_row(_cut(one.before or one.after or "–"), *only, "", "")
    return table


def _cut(path: str) -> str:
    return apart([plain(path)], _WIDTH)[0]


def _outermost(paths: Sequence[PathChange]) -> list[PathChange]:
    """Paths that one side alone has, without those below one of them."""
    alone = [one for one in paths if one.status in ("new", "gone")]
    names = {(one.status, one.before or one.after) for one in alone}
    return [one for one in alone
            if (one.status, above(one.before or one.after or "")) not in names]  # fmt: skip


def _kernels(step: StepComparison) -> RenderableType:
    table = new_table("Kernels (GPU time of a step)", *COLUMNS)
    for one in step.kernels[:_ROWS]:
        if one.change_ns:
            _row(table, plain(one.name), one)
    return table if table.row_count else Text("Kernels: the same by class and family")


def _graphs(found: Comparison) -> RenderableType:
    table = new_table("Compiled graph", "Before", "After", "Ops before", "Ops after")
    for one in found.graphs[:_ROWS]:
        times = ("–" if ns is None else duration(ns) for ns in one.gpu_ns)
        ops = ("–" if number is None else count(number) for number in one.ops)
        table.add_row(plain(f"{one.id} {one.phase}"), *times, *ops)
    return table


def _findings(found: Comparison) -> RenderableType:
    out = Text("Findings", "bold")
    for one in found.findings:
        title = one.after or one.before
        style = {"same": "dim", "gone": "green", "new": "red"}[one.status]
        out.append_text(Text(f"\n{STATUS[one.status]}: ", style) + Text(plain(title)))
    return out


def _gate(found: Comparison) -> RenderableType:
    assert found.gate is not None
    shown = [one for one in found.gate.checks if one.outcome != "pass"]
    passed = len(found.gate.checks) - len(shown)
    out = Text(f"Gate: {found.gate.outcome}", _OUTCOMES[found.gate.outcome])
    for one in shown:
        out.append_text(Text(f"\n{one.outcome}: ", _OUTCOMES[one.outcome]) + Text(plain(one.line)))
    if passed:
        out.append(f"\n{passed} check{'s' if passed != 1 else ''} passed", "green")
    return out
