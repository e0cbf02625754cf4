"""Values of payloads as a table: keyed, and filtered with the events they were attached to."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import pytest

from nvprobe.analysis.selection import Selection, select
from nvprobe.readers import load
from nvprobe.report.database import write_database
from nvprobe.report.event_tables import event_tables
from tests.unit.readers.exports import THREAD, kernel, launch, strings, write
from tests.unit.readers.payloads import TABLES, attached, blob


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two ranges, a mark in each, all with a number; the second pair in a domain of its own."""

    def number(value: int) -> bytes:
        return blob(17, struct.pack("<q", value))

    events = [
        {**attached("mine", 0, 0, None), "eventType": 75, "domainId": 2},
        attached("a", 100, 200, number(1)),
        attached("m", 150, 0, number(2), eventType=34),
        {**attached("b", 300, 400, number(3)), "domainId": 2},
        {**attached("n", 350, 0, number(4), eventType=34), "domainId": 2},
    ]
    tables = {
        "StringIds": strings("cudaLaunchKernel", "k"),
        "NVTX_EVENTS": events,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 110, 120), launch(2, 310, 320)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 500, 600), kernel(2, 700, 800)],
    }
    return write(tmp_path / "x.sqlite", tables, TABLES)


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(), [1, 2, 3, 4]),
        (Selection(domains=("mine",)), [3, 4]),
        (Selection(ranges=("a",)), [1, 2, 4]),  # marks belong to no path
        (Selection(time=(250, None)), [3, 4]),
        (Selection(time=(180, 340)), [1, 3]),
        (Selection(threads=(THREAD & 0xFFFFFF,)), [1, 2, 3, 4]),
    ],
)
def test_filters_choose_payloads_too(
    export: Path, tmp_path: Path, selection: Selection, numbers: list[int]
) -> None:
    attribution = select(load(export), selection)
    table = event_tables(attribution)["payload_values"].to_pydict()
    assert sorted(table["integer"]) == numbers
    from nvprobe.analysis import analyze

    write_database(analyze(attribution), tmp_path / "out.sqlite")
    database = sqlite3.connect(tmp_path / "out.sqlite")
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    rows = database.execute(
        "SELECT v.integer, n.name FROM payload_values v JOIN range_events r ON r.id = v.range_id "
        "JOIN names n ON n.id = r.name_id ORDER BY 1"
    ).fetchall()
    database.close()
    assert rows == [(n, name) for n, name in ((1, "a"), (3, "b")) if n in numbers]
