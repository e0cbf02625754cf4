"""Exports of nsys without what nobody meant to hand on: not a byte of it stays."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nvprobe.errors import ToolError
from nvprobe.nsys import Nsys, export
from nvprobe.private_exports import drop_private_rows

SECRET = "zebra-unicorn-4242"
PRIVATE = [
    f"HOME=/root\0RANK=3\0WORLD_SIZE=8\0LOCAL_RANK={SECRET}\0TOKEN={SECRET}",
    f"ONLY={SECRET}",
    f"printed {SECRET}\n",
    f"a file with {SECRET}",
]
USED = ["lr=0.1", "forward", "a name on\ntwo lines", "printed, and the name of a range"]


def nsys_export(file: Path, copies: int = 1) -> None:
    """A database as nsys 2022.4 and 2025.3 lay it out, environments included."""
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        texts = USED + PRIVATE + [f"{PRIVATE[0]}{n}" for n in range(copies)]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts))
        db.execute(
            "CREATE TABLE ProcessStreams (globalPid INTEGER,\n"
            " contentId INTEGER NOT NULL -- REFERENCES StringIds(id)\n)"
        )
        db.executemany("INSERT INTO ProcessStreams VALUES (1, ?)", [(6,), (3,)])
        db.execute("CREATE TABLE ANALYSIS_FILE (contentId INTEGER -- REFERENCES StringIds(id)\n)")
        db.execute("INSERT INTO ANALYSIS_FILE VALUES (7)")
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        db.execute(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', ?)", PRIVATE[:1]
        )
        db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        rows = [("PROCESS_0:ARGUMENTS", SECRET), ("PROCESS_0:ENVIRONMENT", SECRET), ("PID", "1")]
        db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
        db.execute("CREATE TABLE NVTX_EVENTS (textId INTEGER, jsonTextId INTEGER)")
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?)", [(0, 3), (1, None), (2, None)])


def test_no_byte_of_an_environment_stays(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    nsys_export(file, copies=500)
    assert SECRET.encode() in file.read_bytes()
    drop_private_rows(file)
    assert SECRET.encode() not in file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["report.sqlite"]
    with sqlite3.connect(file) as db:
        assert [text for (text,) in db.execute("SELECT value FROM StringIds ORDER BY id")] == USED
        assert db.execute("SELECT name FROM META_DATA_CAPTURE").fetchall() == [("PID",)]
        (kept,) = db.execute("SELECT * FROM TARGET_INFO_SYSTEM_ENV")
        assert kept == ("DeviceEnvironment", "RANK=3\0WORLD_SIZE=8")
        assert db.execute("SELECT count(*) FROM NVTX_EVENTS").fetchone() == (3,)


def test_a_columnar_export_loses_them_too(tmp_path: Path) -> None:
    tables = {
        "StringIds": {"id": list(range(6)), "value": ["forward", *PRIVATE[:1] * 5]},
        "TARGET_INFO_SYSTEM_ENV": {"value": PRIVATE[:1]},
        "META_DATA_CAPTURE": {"name": ["PROCESS_0:ARGUMENTS", "PID"], "value": [SECRET, "1"]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", compression="none")
    drop_private_rows(tmp_path)
    assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.iterdir())
    assert pq.read_table(tmp_path / "StringIds.parquet").to_pydict() == {
        "id": [0],
        "value": ["forward"],
    }


def test_an_export_is_its_owners_alone_and_clean_before_it_is_in_place(tmp_path: Path) -> None:
    """Whatever the umask; nsys itself writes for all to read."""
    nsys_export(tmp_path / "made")
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done\n'
        f'[ -e {tmp_path}/report.sqlite ] || [ -z "$out" ] || cp {tmp_path}/made "$out"\n'
        'chmod 666 "$out"; stat -c %a "$(dirname "$out")" > ' + f"{tmp_path}/mode\n"
    )
    nsys.chmod(0o755)
    before = os.umask(0)
    try:
        export(Nsys(nsys, (2025,), "2025"), tmp_path / "r.nsys-rep", tmp_path / "report.sqlite")
    finally:
        os.umask(before)
    made = tmp_path / "report.sqlite"
    assert made.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mode").read_text() == "700\n", "nobody looks in while it is made"
    assert SECRET.encode() not in made.read_bytes()
    assert not list(tmp_path.glob(".nvprobe-*"))


def test_what_cannot_be_cleaned_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    file.write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    with pytest.raises(ToolError, match="cannot be taken out"):
        drop_private_rows(file)


def test_an_export_cannot_fill_the_disk(tmp_path: Path) -> None:
    """A report of a few bytes that would become 100 MiB."""
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done\n'
        '[ -z "$out" ] || exec head -c 104857600 /dev/zero > "$out"\n'
    )
    nsys.chmod(0o755)
    report = tmp_path / "r.nsys-rep"
    report.write_text("small")
    with pytest.raises(ToolError, match=r"wrote more than 64 MiB .*--raise-limits"):
        export(Nsys(nsys, (2025,), "2025"), report, tmp_path / "report.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nsys", "r.nsys-rep"]
