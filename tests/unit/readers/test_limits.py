"""Small inputs that ask for gigabytes end with one line, before they get them."""

from __future__ import annotations

import gzip
import pickle
import resource
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers import load
from nvprobe.readers.kineto import load_kineto
from nvprobe.readers.memory_snapshot import load_memory_snapshot
from nvprobe.readers.run_json import read_profiling_cost
from nvprobe.readers.sidecar_kinds import SCHEMA, read_sidecar
from tests.unit.readers import exports

PAGE = 4096
MEMORY = 700 * 2**20
HOW = "--raise-limits 10"


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """No test may take much: the peak of the process begins anew with each."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    yield
    assert peak() - before < MEMORY


def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def event(n: int) -> dict[str, Any]:
    return {
        "start": n, "end": n + 1, "eventType": 59, "text": f"r{n}", "globalTid": exports.THREAD
    }  # fmt: skip


def export(tmp_path: Path) -> Path:
    details = {"globalVid": 0, "duration": 9, "startTime": 0, "stopTime": 9}
    return exports.write(
        tmp_path / "x.sqlite",
        {"ANALYSIS_DETAILS": [details], "NVTX_EVENTS": [event(n) for n in range(3)]},
    )


ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, "
    "hex(zeroblob(1000)) AS value, x AS start, x + 1 AS end, 1 AS deviceId FROM c"
)


@pytest.mark.parametrize("name", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "PROCESSES"])
def test_a_view_is_no_table(tmp_path: Path, name: str) -> None:
    file = export(tmp_path)
    with sqlite3.connect(file) as db:
        db.execute(f"DROP TABLE IF EXISTS {name}")
        db.execute(f"CREATE VIEW {name} AS {ENDLESS}")
    trace = load(file)
    assert len(trace.ranges) == 3
    assert not len(trace.ops)


def test_a_view_with_the_row_of_a_table_in_the_schema_is_none(tmp_path: Path) -> None:
    file = export(tmp_path)
    with sqlite3.connect(file) as db:
        db.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET type = 'table', rootpage = 2 WHERE type = 'view'")
    with pytest.raises(InputError, match="damaged"):
        load(file)


def test_a_virtual_table_is_none(tmp_path: Path) -> None:
    file = export(tmp_path)
    with sqlite3.connect(file) as db:
        db.execute("CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, 'end')")
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)")
    assert not len(load(file).ops)


@pytest.mark.parametrize(
    "column",
    [
        "jsonText TEXT GENERATED ALWAYS AS (hex(zeroblob(10000000))) VIRTUAL",
        f"text TEXT DEFAULT '{'x' * 200_000}'",
    ],
)
def test_what_sqlite_would_make_up_is_not_read(tmp_path: Path, column: str) -> None:
    file = tmp_path / "x.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute(
            f"CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, "
            f"globalTid INTEGER, {column})"
        )
        rows = ((n, n + 1, 59, exports.THREAD) for n in range(10))
        names = "start, end, eventType, globalTid"
        db.executemany(f"INSERT INTO NVTX_EVENTS ({names}) VALUES (?, ?, ?, ?)", rows)
    trace = load(file)
    assert set(trace.texts(trace.ranges.name)) == {"(no name)"}


def test_pages_that_name_one_another_make_no_endless_table(tmp_path: Path) -> None:
    """Three inner pages of 500 cells above one leaf: a hundred million times its rows."""
    file = export(tmp_path)
    with sqlite3.connect(file) as db:
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'"
        ).fetchone()
    data = bytearray(file.read_bytes())
    leaf = bytes(data[(root - 1) * PAGE : root * PAGE])
    last = len(data) // PAGE
    data += leaf + inner(last + 1) + inner(last + 2)
    data[(root - 1) * PAGE : root * PAGE] = inner(last + 3)
    data[28:32] = struct.pack(">I", len(data) // PAGE)
    file.write_bytes(data)
    with pytest.raises(InputError, match=rf"NVTX_EVENTS has more than .* rows.*{HOW}"):
        load(file)


def inner(child: int, cells: int = 500) -> bytes:
    """An inner page of a table whose every cell is one child."""
    start = PAGE - 5 * cells
    head = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child)
    pointers = b"".join(struct.pack(">H", start + 5 * n) for n in range(cells))
    page = head + pointers
    return page.ljust(start, b"\0") + struct.pack(">IB", child, 127) * cells


def test_packed_blanks(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    with gzip.open(file, "wb", compresslevel=9) as packed:
        for _ in range(25):
            packed.write(b" " * 2**23)
    with pytest.raises(InputError, match=rf"^trace.json.gz: more than \d+ MiB of text .*{HOW}"):
        load_kineto(file)
    with limits.raised(10), pytest.raises(InputError, match="no events"):
        load_kineto(file)


@pytest.mark.parametrize(
    "inside", [b"a", b"[", b'{"a":', b" ", b'"name":"', b"\\ud800", b"}] ,", b'\\"']
)
def test_an_event_without_end(tmp_path: Path, inside: bytes) -> None:
    file = tmp_path / "trace.json"
    begin = b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"'
    file.write_bytes(begin + inside * (70 * 2**20 // len(inside)))
    with pytest.raises(InputError, match=r"^trace\.json: "):
        load_kineto(file)


@pytest.mark.parametrize(
    "inside", [b"a", b"[", b'{"a":', b'"name":"', b"\\ud800", b'"ph":', b'{"ph":']
)
def test_a_damaged_event_takes_no_more_time_than_its_length(tmp_path: Path, inside: bytes) -> None:
    file = tmp_path / "trace.json"
    begin = b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"'
    file.write_bytes(begin + inside * (2**21 // len(inside)))
    with pytest.raises(InputError):
        load_kineto(file)


def test_lines_of_a_sidecar(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.0.1.jsonl"
    header = f'{{"kind":"header","schema":"{SCHEMA}","pid":1,"unix_ns":1}}\n'.encode()
    file.write_bytes(header + b"[" * 100_000 + b"\n" + b'{"a":' * 100_000 + b"\n")
    found = read_sidecar(file)
    assert found.warnings == ["sidecar.0.1.jsonl: 1 incomplete lines of the sidecar are lost"]
    assert found.malformed == 1
    with file.open("r+b") as sparse:
        sparse.truncate(2**31)
    with pytest.raises(InputError, match=rf"a line of more than 64 MiB.*{HOW}"):
        read_sidecar(file)


def test_run_json(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(b"[" * 100_000)
    assert read_profiling_cost(tmp_path) is None
    with file.open("r+b") as sparse:
        sparse.truncate(2**31)
    assert read_profiling_cost(tmp_path) is None


def test_a_snapshot_that_names_one_block_a_million_times(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    segment = {"device": 0, "total_size": 1, "blocks": [{"size": 1}] * 50_000}
    with file.open("wb") as out:
        pickle.dump({"segments": [segment] * 50_000, "device_traces": []}, out)
    assert file.stat().st_size < 2**19
    with pytest.raises(InputError, match=rf"more than 1,\d+,\d+ blocks and events.*{HOW}"):
        load_memory_snapshot(file)


@pytest.mark.parametrize(
    "code",
    [
        b"]r\xff\xff\xff\x3f.",  # a memo of a billion places
        b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b"x.",  # 64 GiB of bytes announced
        b"(" * 100_000 + b"t" * 100_000 + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.",
    ],
)
def test_a_snapshot_that_asks_for_memory(tmp_path: Path, code: bytes) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(code)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(InputError):
        load_memory_snapshot(file)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def columnar(folder: Path, table: pa.Table) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({"id": [0], "value": ["x"]}), folder / "StringIds.parquet")
    pq.write_table(table, folder / "NVTX_EVENTS.parquet", compression="zstd")
    return folder


def test_a_parquet_table_of_too_many_rows(tmp_path: Path) -> None:
    table = pa.table({"start": pa.nulls(30_000_000, pa.int64())})
    with pytest.raises(InputError, match=rf"NVTX_EVENTS.parquet: 30,000,000 rows.*{HOW}"):
        load(columnar(tmp_path / "x_pqtdir", table))


def test_a_parquet_text_that_every_row_has(tmp_path: Path) -> None:
    texts = pa.array(["x" * 500_000])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), texts)
    table = pa.table({"start": list(range(50_000)), "text": repeated})
    with pytest.raises(InputError, match=rf"NVTX_EVENTS.parquet: .* MiB in a file of.*{HOW}"):
        load(columnar(tmp_path / "x_pqtdir", table))


def test_an_arrow_table_packed_too_well(tmp_path: Path) -> None:
    (tmp_path / "x_arwdir").mkdir()
    schema = pa.schema({"start": pa.int64()})
    batch = pa.record_batch([pa.array([0] * 2_000_000)], schema=schema)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for name in ("StringIds", "NVTX_EVENTS"):
        file = tmp_path / "x_arwdir" / f"{name}.arrow"
        with pa.ipc.new_file(file, schema, options=options) as out:
            for _ in range(20 if name == "NVTX_EVENTS" else 0):
                out.write_batch(batch)
    with pytest.raises(InputError, match=rf"NVTX_EVENTS.arrow: .* rows of .*{HOW}"):
        load(tmp_path / "x_arwdir")
