"""docs/accuracy.md: measured fixes held against findings, and the targets that they are held to."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEAD = ("program", "as it is", "fixed", "saved", "predicted", "cause", "first finding", "line", "")
OTHERS = ("program", "change", "as it is", "changed", "saved", "predicted", "")
LEAST = 2.0  # percent of the step that a fix has to save to be worth a finding
HEALTHY = 5.0  # percent of the step that a finding about a healthy program may expect


def accuracy_page(docs: Path) -> str:
    """The page, each set of programs apart."""
    kept = json.loads((docs / "accuracy.json").read_text())
    out = [(docs / "accuracy.head.md").read_text().rstrip()]
    for name in dict.fromkeys(row["set"] for row in kept):
        rows = [row for row in kept if row["set"] == name]
        out += [f"## {name}", reached(rows), grid(HEAD, [pair(row) for row in rows])]
        if others := [line for row in rows for line in beside(row)]:
            out += ["Other changes of these programs that were measured:", grid(OTHERS, others)]
    return "\n\n".join((*out, (docs / "accuracy.tail.md").read_text().rstrip())) + "\n"


def grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")


def reached(rows: list[Row]) -> str:
    """What a set of pairs reached, and the targets."""
    captured = [row for row in rows if row.get("captured")]
    worth = [row for row in captured if is_worth(row)]
    idle = [row for row in captured if not is_worth(row)]
    named = [row for row in captured if row["finding"]]
    marked = [row for row in named if row.get("lines")]
    apart = [abs(row["finding"]["mid"] - saved(row)) for row in named]
    steps = [row["finding"]["step_ms"] / row["plain"]["median"] for row in named]
    mean = f", {statistics.mean(apart):.1f} on average" if apart else ""
    return grid(
        ("held", "reached", "target"),
        [
            ("the cause, or rightly none, comes first", of(captured, is_right), "8 of 10"),
            ("of fixes worth making", of(worth, is_right), ""),
            ("of fixes not worth making, and healthy programs", of(idle, is_right), ""),
            (
                "the saving lies within the bounds, where the cause is named",
                of(named, within),
                "9 of 10",
            ),
            (
                "expected at most 10 points beside measured",
                of(apart, lambda points: points <= 10) + mean,
                "8 of 10, 6.0 on average",
            ),
            ("the line is one that holds the cause", of(marked, on_line), ""),
            (
                "the step without a profiler is known to 15%",
                of(steps, lambda ratio: abs(ratio - 1) <= 0.15),
                "8 of 10",
            ),
        ],
    )


def of(some: list[Any], holds: Any) -> str:
    """How many hold."""
    return f"{sum(map(holds, some))} of {len(some)}"


def saved(row: Row) -> float:
    """Percent of the step that the fix saves."""
    return less(row, row["fixed"])


def less(row: Row, changed: Row) -> float:
    """Percent of the step that a change saves."""
    return float(100 * (1 - changed["median"] / row["plain"]["median"]))


def is_worth(row: Row) -> bool:
    """Whether a finding should name the cause."""
    return row["cause"] != "none" and saved(row) >= LEAST


def within(row: Row) -> bool:
    """Whether the measured saving lies within the bounds."""
    return holds(row["finding"], saved(row))


def holds(finding: Row, percent: float) -> bool:
    """Whether a saving lies within the bounds of a finding."""
    return bool(finding["low"] <= percent <= finding["high"])


def is_right(row: Row) -> bool:
    """Whether the cause comes first; of a fix not worth making: whether no finding names it.

    Of a healthy program, or one of whose changes none is worth making, what comes first may expect
    5% at most.
    """
    if is_worth(row):
        return bool(row["first"] == row["cause"])
    if row["cause"] != "none" and len(row.get("changes", ())) < 2:
        return row["finding"] is None
    return row["first"] == "none" or (row.get("expected") or 100.0) <= HEALTHY


def on_line(row: Row) -> bool:
    """Whether the finding's line is one that the program marks."""
    return (row["line"] or "").rsplit("/", 1)[-1] in row["lines"]


def pair(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    found = row["finding"]
    marks = []
    if not row.get("captured"):
        marks.append("not captured")
    elif not is_right(row):
        marks.append(wrong(row))
    if found and not within(row):
        marks.append("out of bounds")
    line = "–"
    if found and row.get("lines"):
        line = "right" if on_line(row) else "another" if row["line"] else "none"
    return (
        f"`{row['name']}`", f"{row['plain']['median']:.2f} ms", f"{row['fixed']['median']:.2f} ms",
        f"{saved(row):.1f}%", bounds(found), f"`{row['cause']}`",
        f"`{row['first']}`" if row["first"] else "–", line, ", ".join(marks),
    )  # fmt: skip


def bounds(finding: Row | None) -> str:
    """What a finding predicts."""
    if not finding:
        return "–"
    return f"{finding['low']:.0f} … {finding['high']:.0f}% ({finding['mid']:.0f})"


def beside(row: Row) -> list[tuple[str, ...]]:
    """A row for each change that was measured beside the one of the cause."""
    lines = []
    for kind, changed in row.get("changes", {}).items():
        if kind != row["cause"]:
            finding, percent = row.get("findings", {}).get(kind), less(row, changed)
            mark = "out of bounds" if finding and not holds(finding, percent) else ""
            lines.append((
                f"`{row['name']}`", f"`{kind}`", f"{row['plain']['median']:.2f} ms",
                f"{changed['median']:.2f} ms", f"{percent:.1f}%", bounds(finding), mark,
            ))  # fmt: skip
    return lines


def wrong(row: Row) -> str:
    """What is wrong with the findings of a program."""
    if row["cause"] == "none":
        return "nothing to save"
    if not is_worth(row):
        return "not worth a finding"
    return "not first" if row["finding"] else "not named"
