"""Ranges as a real nsys records them, where one is installed."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher

pytestmark = [pytest.mark.nsys, pytest.mark.slow]

PROGRAM = """
    import nvprobe
    nvprobe.instrument(children=False)
    for i in nvprobe.steps(range(3)):
        with nvprobe.range("work", payload=i):
            pass
    try:
        import torch
    except ImportError:
        pass
    else:
        with nvprobe.step():
            torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
"""


def ranges_of(export: Path) -> list[tuple[str, str | None, int | None]]:
    """Text, category and payload of the ranges in the domain, in order; all must have an end."""
    with sqlite3.connect(export) as base:
        columns = {row[1] for row in base.execute("PRAGMA table_info(NVTX_EVENTS)")}
        payload = "int64Value" if "int64Value" in columns else "NULL"
        rows = base.execute(
            f"""
            SELECT coalesce(e.text, s.value), e.category, {payload}, e.end, e.domainId
            FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
            WHERE e.eventType = 59 ORDER BY e.start
            """
        ).fetchall()
        names = dict(
            base.execute(
                """
                SELECT e.category, coalesce(e.text, s.value)
                FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
                WHERE e.eventType = 33
                """
            ).fetchall()
        )
    assert all(row[3] is not None for row in rows)
    return [(row[0], names.get(row[1]), row[2]) for row in rows]


def test_nsys_records_names_categories_and_payloads(launch: Launcher, nsys: Nsys):
    """Started by a shell, so that no launcher's bootstrap instruments it: it does so itself."""
    program = launch.script(PROGRAM)
    result = launch("sh", "-c", f"{sys.executable} {program}")
    assert result.code == 0, result.err
    if result.run["backend"] != "nsys":
        pytest.skip(f"nsys does not start here: {result.run['notes']}")
    export = result.folder / "report.sqlite"
    assert export.exists(), result.err
    recorded = ranges_of(export)
    expected = [
        one
        for i in range(3)
        for one in (("step", "step", i), ("data", "phase", None), ("work", "user", i))
    ]
    assert [(name, kind) for name, kind, _ in recorded[:9]] == [one[:2] for one in expected]
    payloads = [payload for name, _, payload in recorded if name in ("step", "work")]
    if any(payload is not None for payload in payloads):
        assert payloads[:6] == [0, 0, 1, 1, 2, 2]
    if len(recorded) > 9:
        assert [name for name, _, _ in recorded[9:]] == [
            "data",
            "step",
            "forward",
            "Sequential",
            "0",
        ]
