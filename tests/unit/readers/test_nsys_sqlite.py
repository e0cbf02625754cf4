"""Loading synthetic exports: odd values, odd files, and the input never being touched."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvprobe.errors import InputError
from nvprobe.readers import load
from nvprobe.readers.nsys.gpu import by_context
from nvprobe.readers.nsys.sqlite import SqliteTables
from nvprobe.trace import NO_NAME, NO_PAYLOAD, NO_ROW, OPEN, Ops, Syncs
from tests.conftest import examples
from tests.unit.readers.exports import (
    DDL,
    PROCESS,
    THREAD,
    kernel,
    launch,
    pushed,
    strings,
    texts,
    write,
)

NAMES = strings("cudaLaunchKernel_v7000", "void gemm<float>(int)", "registered")
PLAIN = {
    "StringIds": NAMES,
    "NVTX_EVENTS": [pushed("step", 100, 900)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 200, 210)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 400)],
}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write(tmp_path / "plain.sqlite", PLAIN)


def _listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "a#b.sqlite",
        "a?mode=rwc.sqlite",
        "100%41.sqlite",
        "two words.sqlite",
        "line\nbreak.sqlite",
        "ünï.sqlite",
        "a\\b.sqlite",
        "&x;y'\".sqlite",
    ],
)
def test_any_file_name_opens_that_file_and_no_other(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, PLAIN)
    before = _listing(tmp_path)
    trace = load(path)
    assert len(trace.ops) == 1
    assert trace.sources[0].file == name
    assert _listing(tmp_path) == before


def test_a_name_that_is_no_text_opens(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.sqlite")
    write(tmp_path / "x.sqlite", PLAIN).rename(path)
    assert len(load(path).processes) == 1


def test_a_hostile_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[2J\n.sqlite"
    path.write_text("log")
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("mode", ["DELETE", "WAL", "TRUNCATE", "PERSIST"])
def test_nothing_appears_beside_the_input(plain: Path, mode: str) -> None:
    database = sqlite3.connect(plain)
    database.execute(f"PRAGMA journal_mode = {mode}")
    database.execute("CREATE TABLE edits (x)")
    database.commit()
    database.close()
    plain.chmod(0o444)
    before = _listing(plain.parent)
    assert len(load(plain).processes) == 1
    assert _listing(plain.parent) == before


def test_rows_still_in_the_write_ahead_log_are_read(plain: Path) -> None:
    writer = sqlite3.connect(plain, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    before = _listing(plain.parent)
    assert "plain.sqlite-wal" in before
    trace = load(plain)
    assert len(trace.ops) == 2
    assert _listing(plain.parent) == before
    writer.close()


def test_a_locked_database_shows_what_was_committed(plain: Path) -> None:
    writer = sqlite3.connect(plain, isolation_level=None)
    writer.execute("PRAGMA cache_spill = 1")
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    trace = load(plain)
    assert len(trace.ops) == 1
    writer.execute("ROLLBACK")
    writer.close()


def test_a_half_written_transaction_is_undone_in_a_copy(plain: Path, tmp_path: Path) -> None:
    """A hot journal: the writer died after writing to the database itself."""
    writer = sqlite3.connect(plain, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 350")
    writer.execute("CREATE TABLE filler (x)")
    writer.executemany("INSERT INTO filler VALUES (?)", [("x" * 2000,)] * 2000)
    crashed = tmp_path / "crashed.sqlite"
    crashed.write_bytes(plain.read_bytes())
    Path(f"{crashed}-journal").write_bytes(Path(f"{plain}-journal").read_bytes())
    writer.execute("ROLLBACK")
    writer.close()
    before = _listing(tmp_path)
    trace = load(crashed)
    assert trace.ops.end.tolist() == [400]
    assert _listing(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "empty"),
        (b"Traceback: something failed\n", "text file"),
        (b"SQLite format 3\x00" + b"\xff" * 500, "SQLite"),
        (b"\x00\x01\x02\x03" * 100, "unknown format"),
    ],
)
def test_what_is_no_database_is_said(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=fault) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_another_programs_database_is_said(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE urls (id INTEGER, url TEXT)")
    database.close()
    with pytest.raises(InputError, match=r"history\.db: .*not one of nsys"):
        load(path)


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.sqlite: there is no such file"):
        load(tmp_path / "nowhere.sqlite")
    with pytest.raises(InputError, match="empty folder"):
        load(tmp_path)


@example(cut=0, seed=0, flips=9)  # a schema that is no UTF-8
@given(cut=st.integers(0, 40_000), seed=st.integers(0, 2**32 - 1), flips=st.integers(0, 20))
@examples(60)
def test_damage_gives_a_trace_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int, seed: int, flips: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(write(folder / "whole.sqlite", PLAIN).read_bytes())[: cut or None]
    rng = np.random.default_rng(seed)
    for place in rng.integers(0, max(len(content), 1), flips):
        if place < len(content):
            content[place] = int(rng.integers(0, 256))
    path = folder / "damaged.sqlite"
    path.write_bytes(bytes(content))
    message = ""
    try:
        load(path)
    except InputError as error:
        message = str(error)
    assert not message or message.isprintable()


# --- the values ------------------------------------------------------------------------------


def test_adbc_reads_it_all(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow path must never be taken in silence."""
    monkeypatch.setattr(SqliteTables, "_by_sqlite3", lambda *_: pytest.fail("slow path"))
    assert len(load(plain).processes) == 1


def test_the_slow_path_reads_the_same(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = load(plain)
    monkeypatch.setattr(SqliteTables, "_by_adbc", SqliteTables._by_sqlite3)
    slow = load(plain)
    assert fast.strings.equals(slow.strings)
    for table in ("calls", "ops", "geometry", "ranges"):
        left, right = getattr(fast, table).columns(), getattr(slow, table).columns()
        assert {k: v.tolist() for k, v in left.items()} == {k: v.tolist() for k, v in right.items()}


def test_values_of_another_type_become_null_or_are_cast(tmp_path: Path) -> None:
    loose = {"NVTX_EVENTS": DDL["NVTX_EVENTS"].replace(" INTEGER", "").replace(" NOT NULL", "")}
    path = write(
        tmp_path / "loose.sqlite",
        PLAIN
        | {
            "NVTX_EVENTS": [
                pushed("real", 100.0, 200.0),
                pushed("text", "soon", 200),
                pushed("blob", 300, b"\x00\xff"),
                pushed("null", None, 5),
                pushed(b"bytes \xff", 500, 600),
                pushed(12, 700, 800),
            ]
        },
        loose,
    )
    trace = load(path)
    assert texts(trace, trace.ranges.name) == ["real", "blob", "bytes \ufffd", "12"]
    assert trace.ranges.start.tolist() == [100, 300, 500, 700]
    assert trace.ranges.end.tolist() == [200, OPEN, 600, 800]
    assert "2 rows of NVTX_EVENTS have no possible time" in trace.warnings[0]


def test_large_integers_keep_every_digit_beside_a_real(tmp_path: Path) -> None:
    loose = {"NVTX_EVENTS": DDL["NVTX_EVENTS"].replace(" INTEGER", "").replace(" NOT NULL", "")}
    exact = 2**53 + 1
    rows = [pushed("a", exact, exact + 2), pushed("b", 1.0, 2)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}, loose))
    assert trace.ranges.start.tolist() == [exact, 1]


def test_types_are_those_of_all_rows_not_of_the_first(tmp_path: Path) -> None:
    """adbc guesses from the first 1,024 rows: a text after as many NULLs must still be one."""
    rows = [pushed(None, i, i + 1) for i in range(1500)] + [pushed("late", 2000, 2001)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    assert texts(trace, trace.ranges.name[-2:]) == ["(no name)", "late"]


def test_impossible_times_are_counted_never_added_up(tmp_path: Path) -> None:
    huge = 2**63 - 1
    rows = [kernel(1, 300, 400), kernel(2, -huge, huge), kernel(3, 500, huge), kernel(4, -50, -10)]
    calls = [launch(1, 200, 210), launch(2, 0, huge), launch(3, -huge, 5)]
    path = write(
        tmp_path / "x.sqlite",
        PLAIN | {"CUPTI_ACTIVITY_KIND_KERNEL": rows, "CUPTI_ACTIVITY_KIND_RUNTIME": calls},
    )
    trace = load(path)
    assert trace.ops.start.tolist() == [300, 0, 0, -50]
    assert trace.ops.end.tolist() == [400, 0, 0, -10]
    assert len(trace.calls) == 1
    assert trace.end_ns == 900


def test_names_of_any_kind_come_through(tmp_path: Path) -> None:
    wild = ["\x1b[31mred", "[bold]markup[/]", "<script>", "a\x00b"[:1], "y" * 1_000_000, "", "ü/√"]
    rows = [pushed(text, 10 * i, 10 * i + 5) for i, text in enumerate(wild)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    assert texts(trace, trace.ranges.name) == wild


def test_text_and_string_id_may_be_mixed(tmp_path: Path) -> None:
    rows = [
        pushed("inline", 1, 2),
        pushed(None, 3, 4, textId=3),
        pushed("wins", 5, 6, textId=3),
        pushed(None, 7, 8, textId=99),
        pushed(None, 9, 10),
        pushed("registered", 11, 12),
    ]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    name = trace.ranges.name
    assert texts(trace, name) == [
        "inline", "registered", "wins", "(no name)", "(no name)", "registered",
    ]  # fmt: skip
    assert name[1] == name[5]


def test_string_ids_may_be_sparse_and_huge(tmp_path: Path) -> None:
    far = 2**62
    path = write(
        tmp_path / "x.sqlite",
        PLAIN
        | {
            "StringIds": [{"id": 1, "value": "cuLaunchKernel_ptsz"}, {"id": far, "value": "far"}],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 400, name=far), kernel(2, 1, 2, name=7)],
        },
    )
    trace = load(path)
    assert texts(trace, trace.ops.name) == ["far", None]
    assert texts(trace, trace.calls.name) == ["cuLaunchKernel"]


def test_domains_and_categories_are_known_by_process(tmp_path: Path) -> None:
    other = (1 << 48) | (4002 << 24)
    rows = [
        {"start": -5, "eventType": 75, "text": "mine", "globalTid": THREAD, "domainId": 1},
        {"start": -5, "eventType": 75, "text": "theirs", "globalTid": other | 4002, "domainId": 1},
        {"start": -4, "eventType": 33, "text": "io", "globalTid": THREAD, "domainId": 1,
         "category": 5},
        pushed("a", 1, 2, domainId=1, category=5),
        pushed("b", 3, 4, domainId=1, globalTid=other | 4002, category=5),
        pushed("c", 5, 6, domainId=0, category=5),
        pushed("d", 7, 8),
    ]  # fmt: skip
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    assert texts(trace, trace.ranges.domain) == ["mine", "theirs", None, None]
    assert texts(trace, trace.ranges.category) == ["io", None, None, None]
    assert trace.domains == ("mine", "theirs")


def test_spans_marks_payloads_and_thread_names(tmp_path: Path) -> None:
    worker = PROCESS | 4005
    rows = [
        {"start": 1, "end": 9, "eventType": 60, "text": "span", "globalTid": THREAD,
         "endGlobalTid": worker},
        {"start": 2, "eventType": 60, "text": "open", "globalTid": THREAD},
        {"start": 3, "eventType": 34, "text": "mark", "globalTid": worker},
        {"start": 4, "eventType": 39, "text": "loader", "globalTid": worker},
        pushed("p", 5, 6, int64Value=-7),
        pushed("q", 6, 7, uint32Value=8),
        pushed("r", 7, 8),
    ]  # fmt: skip
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    assert trace.threads.tid.tolist() == [4001, 4005]
    assert texts(trace, trace.threads.name) == [None, "loader"]
    assert trace.spans.end_thread.tolist() == [1, 0]
    assert trace.spans.end.tolist() == [9, OPEN]
    assert trace.marks.time.tolist() == [3]
    assert trace.ranges.payload is not None
    assert trace.ranges.payload.tolist() == [-7, 8, NO_PAYLOAD]


def test_ordinals_lead_to_physical_devices(tmp_path: Path) -> None:
    other = (1 << 48) | (4002 << 24)
    path = write(
        tmp_path / "x.sqlite",
        PLAIN
        | {
            "TARGET_INFO_GPU": [{"id": i, "name": f"GPU {i}", "smCount": 132} for i in range(4)],
            "TARGET_INFO_CUDA_DEVICE": [
                {"gpuId": 3, "cudaId": 0, "pid": 4001},
                {"gpuId": 1, "cudaId": 0, "pid": 4002},
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                kernel(1, 300, 400, deviceId=0),
                kernel(1, 300, 400, deviceId=0, globalPid=other),
            ],
        },
    )
    trace = load(path)
    assert trace.devices.id[trace.ops.device].tolist() == [3, 1]
    assert texts(trace, trace.devices.name) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]


def test_without_a_map_the_ordinal_is_the_device(tmp_path: Path) -> None:
    rows = [kernel(1, 300, 400, deviceId=2), kernel(1, 300, 400, deviceId=0)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"CUPTI_ACTIVITY_KIND_KERNEL": rows}))
    assert trace.devices.id.tolist() == [0, 2]
    assert trace.ops.device.tolist() == [1, 0]


def test_unknown_processes_and_threads_do_not_crash(tmp_path: Path) -> None:
    other = (1 << 48) | (4002 << 24)
    path = write(
        tmp_path / "x.sqlite",
        PLAIN
        | {
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                kernel(1, 300, 400, globalPid=None),
                kernel(1, 300, 400, globalPid=other),
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 200, 210, globalTid=None)],
        },
    )
    trace = load(path)
    assert trace.processes.pid.tolist() == [-1, 4001, 4002]
    assert trace.ops.process.tolist() == [0, 2]
    assert trace.threads.tid[trace.calls.thread].tolist() == [-1]


def test_an_unknown_process_is_the_only_one_there_is(tmp_path: Path) -> None:
    rows = [kernel(1, 300, 400, globalPid=None)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"CUPTI_ACTIVITY_KIND_KERNEL": rows}))
    assert trace.processes.pid.tolist() == [4001]


def test_records_of_copies_syncs_and_graph_nodes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        PLAIN
        | {
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                {"start": 1, "end": 2, "bytes": 64, "copyKind": 1, "srcKind": 0, "dstKind": 2,
                 "globalPid": PROCESS},
                {"start": 3, "end": 4, "bytes": 8, "copyKind": 77, "globalPid": PROCESS},
            ],
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
                {"start": 5, "end": 6, "streamId": 2**32 - 1, "globalPid": PROCESS,
                 "correlationId": 4},
            ],
            "CUDA_GRAPH_EVENTS": [
                {"start": 7, "globalTid": THREAD, "graphNodeId": 2**40, "originalGraphNodeId": 9},
                {"start": 8, "globalTid": THREAD, "graphNodeId": 9},
            ],
        },
    )  # fmt: skip
    trace = load(path)
    assert texts(trace, trace.ops.name[1:]) == ["Memcpy HtoD", "Memcpy"]
    assert trace.ops.source_memory.tolist() == [-1, 1, -1]
    assert trace.ops.target_memory.tolist() == [-1, 3, -1]
    assert trace.syncs.stream.tolist() == [-1]
    assert trace.graph_nodes.node.tolist() == [2**40, 9]
    assert trace.graph_nodes.origin.tolist() == [9, 0]


def test_newer_layouts_and_user_edits(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        {"StringIds": NAMES, "NVTX_EVENTS_V2": [], "NVTX_EVENTS_V3": [pushed("new", 1, 2)],
         "my stats": [{"x": 1}]},
        {"NVTX_EVENTS_V2": DDL["NVTX_EVENTS"], "NVTX_EVENTS_V3": DDL["NVTX_EVENTS"] + ", mine TEXT",
         "my stats": "x"},
    )  # fmt: skip
    database = sqlite3.connect(path)
    database.execute("CREATE VIEW broken AS SELECT * FROM nowhere")
    database.commit()
    database.close()
    trace = load(path)
    assert texts(trace, trace.ranges.name) == ["new"]


def test_absent_and_empty_are_different(tmp_path: Path) -> None:
    trace = load(write(tmp_path / "x.sqlite", {"StringIds": [], "CUPTI_ACTIVITY_KIND_KERNEL": []}))
    assert len(trace.ops) == 0
    assert not trace.calls.recorded
    assert not trace.ranges.recorded


def test_a_table_without_any_known_column(tmp_path: Path) -> None:
    trace = load(
        write(
            tmp_path / "x.sqlite",
            {"StringIds": NAMES, "NVTX_EVENTS": [{"what": 1}]},
            {"NVTX_EVENTS": "what INTEGER"},
        )
    )
    assert len(trace.ranges) == 0


_VALUE = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary(max_size=4)
)


@given(rows=st.lists(st.tuples(*[_VALUE] * 6), max_size=8))
@examples(60)
def test_no_value_in_any_column_crashes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple]
) -> None:
    free = {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"}
    layouts = {
        table: DDL[table].replace(" INTEGER", "").replace(" TEXT", "").replace(" NOT NULL", "")
        for table in free
    }
    columns = ("start", "end", "globalTid", "globalPid", "nameId", "eventType")
    wild = [dict(zip(columns, row, strict=True)) for row in rows]
    content = {"StringIds": NAMES} | {
        table: [
            {k: v for k, v in row.items() if f"{k} " in f"{layouts[table]} ".replace(",", " ")}
            for row in wild
        ]
        for table in free
    }
    trace = load(write(tmp_path_factory.mktemp("wild") / "x.sqlite", content, layouts))
    assert len(trace.ops) == len(rows)
    assert trace.end_ns >= 0
    assert bool((trace.ranges.name != NO_NAME).all())
    assert bool((trace.calls.thread != NO_ROW).all())


def test_large_tables_are_read_in_stretches(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = sqlite3.connect(plain)
    database.executemany(
        "INSERT INTO NVTX_EVENTS (rowid, start, end, eventType, text, globalTid) "
        f"VALUES (?, ?, ?, 59, ?, {THREAD})",
        [(3 * i, i, i + 1, f"n{i}" if i > 20 else None) for i in range(2, 40)],
    )
    database.commit()
    database.close()
    whole = load(plain)
    monkeypatch.setattr("nvprobe.readers.nsys.sqlite._STRETCH", 7)
    parts = load(plain)
    assert whole.ranges.start.tolist() == parts.ranges.start.tolist()
    assert texts(whole, whole.ranges.name) == texts(parts, parts.ranges.name)


def test_texts_that_are_nearly_unique_keep_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvprobe.readers.nsys.tables._LARGE", 10)
    names = [None if i % 7 == 0 else f"op, op_id = {i}" for i in range(50)] + ["twin", "twin"]
    rows = [pushed(text, i, i + 1, textId=3 if i == 7 else None) for i, text in enumerate(names)]
    trace = load(write(tmp_path / "x.sqlite", PLAIN | {"NVTX_EVENTS": rows}))
    expected = [text or "(no name)" for text in names]
    expected[7] = "registered"
    assert texts(trace, trace.ranges.name) == expected
    assert trace.strings.null_count == 0


def test_more_than_two_gigabytes_of_names_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from nvprobe.readers.nsys.tables import StringPool

    monkeypatch.setattr("nvprobe.readers.nsys.tables._MOST_BYTES", 100)
    pool = StringPool()
    handle = pool.add(pa.array(["x" * 1000, None, "y"]))
    strings_ = pool.freeze()
    assert [None if r < 0 else strings_[r].as_py() for r in pool.rows(handle).tolist()] == [
        "x" * 200, None, "y",
    ]  # fmt: skip


def test_records_lie_on_the_device_of_their_context() -> None:
    zero, ids = np.zeros(3, np.int64), np.arange(3)
    columns = {name: np.zeros(2, values.dtype) for name, values in Ops.empty().columns().items()}
    told = {"process": ids[:2], "context": np.ones(2, np.int64), "device": ids[:2]}
    ops = Ops(**{**columns, **told})
    syncs = Syncs(
        process=np.array([0, 1, 2]), device=zero, context=np.array([1, 1, 1]), stream=ids,
        correlation=ids, start=ids, end=ids, event=ids,
    )  # fmt: skip
    found = by_context(syncs, ops)
    assert found.device.tolist() == [0, 1, 0]
    assert by_context(syncs, Ops.absent()) is syncs
    nameless = np.full(3, -1, np.int64)
    ops = dataclasses.replace(ops, process=np.zeros(2, np.int64), context=nameless[:2])
    syncs = dataclasses.replace(syncs, process=zero, context=nameless, device=np.array([1, 0, 1]))
    found = by_context(syncs, ops)
    assert found.device.tolist() == [1, 0, 1], "no context is no context of a device"
