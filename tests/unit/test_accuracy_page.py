"""docs/accuracy.md: fixes not worth making and healthy programs are judged as well."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from accuracy_page import is_right, pair, reached


def row(
    cause: str, saved: float, first: str, finding: dict[str, float] | None = None, **others: Any
) -> dict[str, Any]:
    times = {"plain": {"median": 10.0}, "fixed": {"median": 10 - saved / 10}}
    said = {"first": first, "finding": finding, "line": None, "captured": True}
    return {"name": "program", "cause": cause, **times, **said, **others}


BOUNDS = {"low": 10.0, "mid": 20.0, "high": 30.0, "step_ms": 12.0}


@pytest.mark.parametrize(
    ("judged", "right", "mark"),
    [
        (row("sync", 25, "sync", BOUNDS), True, ""),
        (row("sync", 40, "sync", BOUNDS), True, "out of bounds"),
        (row("sync", 25, "other", BOUNDS), False, "not first"),
        (row("sync", 25, "other"), False, "not named"),
        (row("sync", 1, "other"), True, ""),
        (row("sync", 1, "other", BOUNDS), False, "not worth a finding, out of bounds"),
        (row("none", 0, "none"), True, ""),
        (row("none", 0, "other", expected=4.0), True, ""),
        (row("none", 0, "other", expected=6.0), False, "nothing to save"),
        (row("none", 0, "other", expected=None), False, "nothing to save"),
    ],
)
def test_what_is_right(judged: dict[str, Any], right: bool, mark: str) -> None:
    assert is_right(judged) is right
    assert pair(judged)[-1] == mark


def test_what_is_counted() -> None:
    rows = [
        row("sync", 25, "sync", BOUNDS, line="folder/program.py:7", lines=["program.py:7"]),
        row("sync", 40, "sync", BOUNDS, line="program.py:8", lines=["program.py:7"]),
        row("none", 0, "none"),
        row("sync", 25, "", captured=False),
    ]
    counted = [line.split(" | ")[1] for line in reached(rows).splitlines()[2:]]
    assert counted == [
        "3 of 3", "2 of 2", "1 of 1", "1 of 2", "1 of 2, 12.5 on average", "1 of 2", "0 of 2",
    ]  # fmt: skip
