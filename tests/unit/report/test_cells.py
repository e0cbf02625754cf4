"""Names of a capture are data: no spreadsheet calculates with them, no terminal obeys them."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import nvprobe
from nvprobe.report.cells import for_spreadsheet, visible
from tests.unit.readers import exports

HOSTILE = [
    "=HYPERLINK(\"http://x\")", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1",
    "\uff1d1", "\x1b[2Jgone", "\x9b31m", "\u202egpj.exe", "two\nlines",
]  # fmt: skip
HARMLESS = ["forward", "a=b", "-1", "+2.5e-3", "-.5", "", "aten::add", "\u00e9t\u00e9", "x - y"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_cells(kind: pa.DataType) -> None:
    found = for_spreadsheet(pa.array([*HOSTILE, *HARMLESS, None], kind))
    assert found.type == kind
    cells = found.to_pylist()
    assert cells[len(HOSTILE) :] == [*HARMLESS, None]
    for cell in cells[: len(HOSTILE)]:
        assert cell[0] not in "=+-@\t\r\uff1d"
        assert cell.isprintable()
    assert for_spreadsheet(pa.array([], kind)).to_pylist() == []
    assert for_spreadsheet(pa.array([None], kind)).to_pylist() == [None]


@pytest.fixture
def results(tmp_path: Path) -> nvprobe.Results:
    """Ranges with hostile names."""
    rows = [
        {
            "start": 10 * n,
            "end": 10 * n + 5,
            "eventType": 59,
            "text": text,
            "globalTid": exports.THREAD,
        }
        for n, text in enumerate(HOSTILE)
    ]
    details = {"globalVid": 0, "duration": 999, "startTime": 0, "stopTime": 999}
    tables = {"ANALYSIS_DETAILS": [details], "NVTX_EVENTS": rows}
    return nvprobe.analyze(nvprobe.load(exports.write(tmp_path / "x.sqlite", tables)))


def test_a_csv_of_hostile_names(results: nvprobe.Results, tmp_path: Path) -> None:
    results.to_csv(tmp_path / "csv")
    seen = 0
    for file in (tmp_path / "csv").iterdir():
        for row in csv.reader(file.read_text("utf-8").splitlines()):
            for cell in row:
                assert cell.isprintable()
                assert cell[:1] not in "=+@" or not cell
                assert not cell.startswith("-") or cell.lstrip("-").replace(".", "").isdigit()
                seen += "HYPERLINK" in cell
    assert seen > 1


def test_sqlite_and_parquet_keep_names_as_they_are(
    results: nvprobe.Results, tmp_path: Path
) -> None:
    results.to_sqlite(tmp_path / "x.db")
    with sqlite3.connect(tmp_path / "x.db") as db:
        names = {name for (name,) in db.execute("SELECT name FROM names")}
    assert set(HOSTILE) <= names


def test_frames_on_a_terminal(results: nvprobe.Results) -> None:
    events = results.events("range_events")
    assert set(HOSTILE) <= set(events["name"]), "the data are what was recorded"
    shown = [
        repr(part)
        for part in (
            results.ranges, events, events["name"], events.head(9), events[["name"]].iloc[7],
            events.sort_values("start_ns").loc[events.end_ns > 20],
        )
    ] + [events.to_string(), str(events.name)]  # fmt: skip
    for text in shown:
        assert all(char.isprintable() for char in text.replace("\n", ""))
    assert "\\x1b" in events.to_string()


def test_visible_keeps_lines() -> None:
    assert visible("a\n\tb\x1b") == "a\n\tb\\x1b"
