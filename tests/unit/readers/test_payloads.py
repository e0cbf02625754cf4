"""Structured NVTX payloads: every kind of field, and whatever damage they may have."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nvprobe.readers import load
from nvprobe.trace import NO_PAYLOAD, NO_ROW, Trace
from tests.unit.readers.exports import THREAD, Row, strings, write
from tests.unit.readers.payloads import (
    NCCL_ENTRIES,
    NCCL_SCHEMAS,
    TABLES,
    all_reduce,
    attached,
    blob,
    entries,
    schema,
    send,
)

NAMES = strings("cudaLaunchKernel_v7000", "kernel", "forward", "model.py")


def _load(tmp_path: Path, events: list[Row], **tables: list[Row]) -> Trace:
    given = {"StringIds": NAMES, "NVTX_EVENTS": events, **tables}
    return load(write(tmp_path / "x.sqlite", given, TABLES))


def _values(trace: Trace) -> list[tuple[Any, ...]]:
    """(range, field, element, value) of every value."""
    table = trace.payloads
    assert table is not None
    out = []
    texts = zip(trace.texts(table.field), trace.texts(table.text), strict=True)
    for row, (field, text) in enumerate(texts):
        value: Any = text
        if text is None:
            integer = int(table.integer[row])
            value = float(table.real[row]) if integer == NO_PAYLOAD else integer
        out.append((int(table.range[row]), field, int(table.element[row]), value))
    return out


def _one(
    tmp_path: Path, payload: bytes, *fields: tuple[Any, ...], kind: int = 1, **tables: Any
) -> Trace:
    """One payload of one schema of these fields."""
    more = dict(tables)
    rows = [*entries(100, *fields), *more.pop("more_entries", [])]
    about = [schema(100, "mine", kind), *more.pop("more_schemas", [])]
    return _load(
        tmp_path,
        [attached("r", 1, 9, blob(100, payload))],
        NVTX_PAYLOAD_SCHEMAS=about,
        NVTX_PAYLOAD_SCHEMA_ENTRIES=rows,
        **more,
    )


def _pairs(trace: Trace) -> list[tuple[str, Any]]:
    return [(field, value) for _, field, _, value in _values(trace)]


def test_payloads_of_nccl(tmp_path: Path) -> None:
    """Schemas as in the corpus, registered by two processes alike; the enumeration is lacking."""
    events = [
        attached("ncclAllReduce", 1, 9, all_reduce(0xF234567890ABCDEF, 4096, 2)),
        attached("plain", 10, 11, None),
        attached("ncclSend", 12, 20, send(5, 77, 3)),
    ]
    trace = _load(
        tmp_path,
        events,
        NVTX_PAYLOAD_SCHEMAS=NCCL_SCHEMAS * 2,
        NVTX_PAYLOAD_SCHEMA_ENTRIES=NCCL_ENTRIES * 2,
    )
    assert _values(trace) == [
        (0, "NCCL communicator ID", 0, 0xF234567890ABCDEF - 2**64),
        (0, "Message size [bytes]", 0, 4096),
        (0, "Reduction operation", 0, "Max"),
        (2, "NCCL communicator ID", 0, 5),
        (2, "Message size [bytes]", 0, 77),
        (2, "Peer rank", 0, 3),
    ]
    assert trace.payloads.integer[2] == 2
    assert trace.payloads.start.tolist() == [1, 1, 1, 12, 12, 12]
    assert trace.warnings == ()
    assert not [m for m in trace.missing if "payload" in m.what]


def test_numbers_of_every_width(tmp_path: Path) -> None:
    """Offsets by alignment where the schema tells none."""
    kinds = {11: "b", 12: "B", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 19: "f",
             20: "d", 42: "e", 128: "Q", 5: "i", 22: "Q"}  # fmt: skip
    code, values = "", []
    for place, letter in enumerate(kinds.values()):
        code += letter
        values.append(place - 3 if letter.islower() else place)
    payload = struct.pack("@" + code, *values)
    trace = _one(tmp_path, payload, *((f"f{kind}", kind) for kind in kinds))
    assert _pairs(trace) == [(f"f{k}", v) for k, v in zip(kinds, values, strict=True)]


def test_arrays_texts_and_bytes(tmp_path: Path) -> None:
    payload = struct.pack("<3i8s4s4s", 1, -2, 3, b"abc\0junk", b"wxyz", b"\x00\xff\x10\x20")
    trace = _one(
        tmp_path,
        payload,
        ("list", 5, None, 16, 3),
        ("text", 75, None, None, 8),
        ("chars", 1, None, 16, 4),
        ("raw", 32, None, 16, 4),
    )
    assert [row[1:] for row in _values(trace)] == [
        ("list", 0, 1), ("list", 1, -2), ("list", 2, 3),
        ("text", 0, "abc"), ("chars", 0, "wxyz"), ("raw", 0, "00ff1020"),
    ]  # fmt: skip


def test_texts_of_any_length(tmp_path: Path) -> None:
    """Zero-terminated and counted texts, wide ones, bytes that are no UTF-8; a number after all."""
    wide = "größe".encode("utf-16-le") + b"\0\0"
    head = b"caf\xc3\xa9\0" + b"bad\xff\0"
    head += b"\0" * (-len(head) % 2) + wide
    head += b"\0" * (-len(head) % 4) + struct.pack("<I", 4) + b"four"
    head += b"\0" * (-len(head) % 8) + struct.pack("<q", 42)
    trace = _one(
        tmp_path,
        head,
        ("utf8", 76, None, 32),
        ("broken", 75, None, 32),
        ("wide", 77, None, 32),
        ("length", 16),
        ("counted", 75, None, 48, 3),
        ("after", 17),
        kind=2,
    )
    assert _pairs(trace) == [
        ("utf8", "café"), ("broken", "bad�"), ("wide", "größe"), ("length", 4),
        ("counted", "four"), ("after", 42),
    ]  # fmt: skip


def test_frames_of_python_backtraces(tmp_path: Path) -> None:
    """The schemas that nsys itself registers: an enumeration, and a counted array of structures."""
    payload = struct.pack("<QII", 9, 2, 2) + struct.pack("<QQiI", 3, 4, 12, 0)
    payload += struct.pack("<QQiI", 3, 99, 7, 0)
    trace = _one(
        tmp_path,
        payload,
        ("Thread state ID", 18),
        ("Thread state", 4294967300, 8),
        ("Frames count", 16, 12),
        ("Frames", 300, 16, 48, 2),
        kind=2,
        more_schemas=[schema(300, payloadSize=24)],
        more_entries=entries(300, ("Function", 80), ("File", 80, 8), ("Line", 15, 16)),
        NVTX_PAYLOAD_ENUMS=[{"domainId": 1, "schemaId": 4294967300, "size": 4}],
        NVTX_PAYLOAD_ENUM_ENTRIES=[
            {"domainId": 1, "schemaId": 4294967300, "idx": 0, "name": "Running", "value": 1},
            {"domainId": 1, "schemaId": 4294967300, "idx": 1, "name": "Blocking Wait", "value": 2},
        ],
    )
    assert [row[1:] for row in _values(trace)] == [
        ("Thread state ID", 0, 9),
        ("Thread state", 0, "Blocking Wait"),
        ("Frames count", 0, 2),
        ("Frames.Function", 0, "forward"), ("Frames.Function", 1, "forward"),
        ("Frames.File", 0, "model.py"), ("Frames.File", 1, 99),
        ("Frames.Line", 0, 12), ("Frames.Line", 1, 7),
    ]  # fmt: skip


def test_flags_unions_and_structures_inside(tmp_path: Path) -> None:
    payload = struct.pack("<iiqi", 5, 1, 2, 8)
    payload += struct.pack("<i", 0) + struct.pack("<d", 2.5)
    trace = _one(
        tmp_path,
        payload,
        ("mode", 4294967300, 0),
        ("which", 5, 4),
        ("either", 301, 8, None, 1),
        ("inner", 302, 16),
        more_schemas=[schema(301, kind=3, payloadSize=8), schema(302, payloadSize=16)],
        more_entries=[
            *entries(301, ("real", 20), ("number", 17)),
            *entries(302, ("level", 5), ("share", 20, 8)),
        ],
        NVTX_PAYLOAD_ENUM_ENTRIES=[
            {"domainId": 1, "schemaId": 4294967300, "idx": i, "name": n, "value": v, "isFlag": 1}
            for i, (n, v) in enumerate([("read", 1), ("write", 2), ("sync", 4)])
        ],
    )
    assert _pairs(trace) == [
        ("mode", "read|sync"), ("which", 1), ("either.number", 2),
        ("inner.level", 8), ("inner.share", 2.5),
    ]  # fmt: skip


def test_a_predefined_type_alone(tmp_path: Path) -> None:
    events = [
        attached("a", 1, 2, blob(76, b"hello\0")),
        attached("b", 3, 4, blob(17, struct.pack("<q", -5))),
        attached("c", 5, 6, blob(75, b"not terminated")),
        attached("d", 7, 8, blob(1022, b"pointed into")),
    ]
    trace = _load(tmp_path, events)
    assert [(row[0], row[3]) for row in _values(trace)] == [
        (0, "hello"), (1, -5), (2, "not terminated"),
    ]  # fmt: skip
    assert trace.warnings == ()


def test_payloads_of_spans_and_marks(tmp_path: Path) -> None:
    events = [
        attached("m", 5, 0, blob(17, struct.pack("<q", 1)), eventType=34),
        attached("s", 6, 9, blob(17, struct.pack("<q", 2)), eventType=60, endGlobalTid=THREAD),
        attached("r", 7, 8, blob(17, struct.pack("<q", 3))),
    ]
    trace = _load(tmp_path, events)
    assert trace.payloads.range.tolist() == [NO_ROW, NO_ROW, 0]
    assert trace.payloads.integer.tolist() == [1, 2, 3]
    assert trace.payloads.start.tolist() == [5, 6, 7]


def test_where_the_header_ends_the_payload(tmp_path: Path) -> None:
    """The fourth number was also seen to be the end of the bytes."""
    data = struct.pack("<q", 11)
    trace = _load(tmp_path, [attached("r", 1, 2, blob(17, data, place=40))])
    assert _values(trace) == [(0, "value", 0, 11)]


def test_schema_belongs_to_the_domain_of_the_event(tmp_path: Path) -> None:
    """Captures of 2025.3 begin every header with 1, whatever the domain of NCCL is."""
    data = struct.pack("<q", 11)
    trace = _load(tmp_path, [attached("r", 1, 2, blob(17, data, domain=7))])
    assert _values(trace) == [(0, "value", 0, 11)]
    schemas = [{**schema(500, payloadSize=8), "domainId": 2}]
    rows = [{**row, "domainId": 2} for row in entries(500, ("size", 17, 0))]
    event = {**attached("r", 1, 2, blob(500, data, domain=1)), "domainId": 2}
    given = {
        "StringIds": NAMES,
        "NVTX_EVENTS": [event],
        "NVTX_PAYLOAD_SCHEMAS": schemas,
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": rows,
    }
    trace = load(write(tmp_path / "two.sqlite", given, TABLES))
    assert _values(trace) == [(0, "size", 0, 11)]


def test_payloads_as_json(tmp_path: Path) -> None:
    text = '{"NCCL communicator ID": 18446744073709551615, "sizes": [1, 2.5], "in": {"x": "y"}}'
    events: list[Row] = [
        {**attached("a", 1, 2, None), "jsonText": text},
        {**attached("b", 3, 4, None), "jsonTextId": 5},
        {**attached("c", 5, 6, None), "jsonText": "{"},
    ]
    given = {"StringIds": [*NAMES, {"id": 5, "value": "[true, null]"}], "NVTX_EVENTS": events}
    trace = load(write(tmp_path / "x.sqlite", given, TABLES))
    assert [row[:2] + row[3:] for row in _values(trace)] == [
        (0, "NCCL communicator ID", -1), (0, "sizes", "[1,2.5]"), (0, "in", '{"x":"y"}'),
        (1, "value", "[true,null]"),
    ]  # fmt: skip
    assert trace.warnings == (
        "1 structured NVTX payload was not (wholly) decoded: 1 of text that is not JSON",
    )


def test_what_cannot_be_decoded_is_counted(tmp_path: Path) -> None:
    fields = (("a", 17), ("b", 17), ("pointer", 17, None, 2), ("c", 5))
    whole = struct.pack("<qqqi", 1, 2, 3, 4)
    events = [
        attached("whole", 1, 2, blob(100, whole)),
        attached("cut", 3, 4, blob(100, whole[:12])),
        attached("lies", 5, 6, blob(100, whole)[:40]),
        attached("unknown", 7, 8, blob(101, whole)),
        attached("twice", 9, 10, blob(102, whole)),
        attached("header", 11, 12, b"short"),
    ]
    trace = _load(
        tmp_path,
        events,
        NVTX_PAYLOAD_SCHEMAS=[schema(100, "mine"), schema(102), schema(102)],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[
            *entries(100, *fields), *entries(102, ("x", 17)), *entries(102, ("x", 5)),
        ],
    )  # fmt: skip
    assert [row[:2] + row[3:] for row in _values(trace)] == [
        (0, "a", 1), (0, "b", 2), (0, "c", 4), (1, "a", 1),
    ]  # fmt: skip
    assert trace.warnings == (
        "5 structured NVTX payloads were not (wholly) decoded: 2 cut short, 1 of a schema defined "
        "in two ways, 1 of no schema, 1 without a header",
        "fields of NVTX payloads whose type or place nvprobe does not decode are left out: "
        "mine: pointer",
    )


@pytest.mark.parametrize("size", [8, 24, 2**22, 2**40])
def test_structures_up_to_one_of_zeros(tmp_path: Path, size: int) -> None:
    """However large the schema says that they are: beyond the payload there are none."""
    given = [(1, 2), (0, 3), (4, 0), (0, 0), (9, 9)]
    payload = b"".join(struct.pack("<II", *pair).ljust(min(size, 24), b"\0") for pair in given)
    trace = _one(
        tmp_path,
        payload,
        ("list", 300, 0, 2 << 4),
        more_entries=entries(300, ("a", 16, 0), ("b", 16, 4)),
        more_schemas=[schema(300, "pair", payloadSize=size)],
    )
    if size > len(payload):
        assert not trace.payloads.recorded
    else:
        found = [value for _, value in _pairs(trace)]
        assert sorted(found) == sorted(number for pair in given[:3] for number in pair)


def test_structures_inside_one_another_without_end(tmp_path: Path) -> None:
    """Two thousand deep: what nobody writes is left out, whatever the stack of Python holds."""
    deep = range(1000, 3000)
    trace = _one(
        tmp_path,
        struct.pack("<ii", 7, 1),
        ("first", 15, 0),
        ("x", deep[0], 4),
        more_entries=[row for n in deep for row in entries(n, ("x", n + 1, 0))]
        + entries(deep[-1] + 1, ("last", 15, 0)),
        more_schemas=[schema(n) for n in (*deep, deep[-1] + 1)],
    )
    assert _pairs(trace) == [("first", 7)]
    assert any("are left out" in warning for warning in trace.warnings)


def test_an_unknown_type_hides_no_other_where_offsets_are_told(tmp_path: Path) -> None:
    payload = struct.pack("<qqq", 1, 2, 3)
    offsets = (("a", 17, 0), ("strange", 16777300, 8), ("c", 17, 16))
    assert _pairs(_one(tmp_path, payload, *offsets)) == [("a", 1), ("c", 3)]
    (tmp_path / "x.sqlite").unlink()
    told_nowhere = (("a", 17), ("strange", 16777300), ("c", 17))
    assert _pairs(_one(tmp_path, payload, *told_nowhere)) == [("a", 1)]


def test_an_export_without_the_bytes_says_so(tmp_path: Path) -> None:
    trace = _load(
        tmp_path,
        [attached("r", 1, 2, None)],
        NVTX_PAYLOAD_SCHEMAS=NCCL_SCHEMAS,
        NVTX_PAYLOAD_SCHEMA_ENTRIES=NCCL_ENTRIES,
    )
    assert not trace.payloads.recorded
    (missing,) = (m for m in trace.missing if m.what == "structured NVTX payloads")
    assert "--include-blobs=true" in missing.how


def test_a_columnar_export_says_the_same(tmp_path: Path) -> None:
    """Columnar exports mark the bytes as text; most are not valid UTF-8."""
    events = [attached("r", i, i + 1, all_reduce(2**63 + 1 + i, 1000 + i)) for i in range(5)]
    trace = _load(
        tmp_path,
        events,
        NVTX_PAYLOAD_SCHEMAS=NCCL_SCHEMAS,
        NVTX_PAYLOAD_SCHEMA_ENTRIES=NCCL_ENTRIES,
    )
    folder = tmp_path / "x_pqtdir"
    folder.mkdir()
    database = sqlite3.connect(tmp_path / "x.sqlite")
    for (table,) in database.execute("SELECT name FROM sqlite_master").fetchall():
        cursor = database.execute(f'SELECT * FROM "{table}"')
        names = [item[0] for item in cursor.description]
        columns = list(zip(*cursor, strict=True))
        arrays = {n: pa.array(c) for n, c in zip(names, columns, strict=True)}
        if "binaryData" in arrays:
            size, buffers = len(events), arrays["binaryData"].buffers()
            arrays["binaryData"] = pa.StringArray.from_buffers(size, *buffers[1:], buffers[0])
        pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
    database.close()
    assert _values(load(folder)) == _values(trace)


def _random_fields(rng: random.Random) -> list[tuple[Any, ...]]:
    kinds = [1, 5, 17, 18, 19, 20, 21, 32, 42, 50, 75, 76, 77, 78, 80, 100, 128, 300, 301, 999]
    flags = [None, 2, 16, 32, 48, 64, 1 << 40, -1]
    numbers = [None, 0, 1, 2, 3, 8, 40, 2**31, 2**62, -5]
    return [
        (f"f{i}", rng.choice(kinds), rng.choice([None, None, *numbers]), rng.choice(flags),
         rng.choice(numbers))
        for i in range(rng.randint(1, 6))
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_crashes(tmp_path: Path, seed: int) -> None:
    """Schemas that contradict themselves and bytes at random: values or a count, never an error."""
    rng = random.Random(seed)
    events = []
    for i in range(8):
        data = blob(rng.choice([100, 300, 301, 76]), rng.randbytes(rng.randint(0, 60)))
        for _ in range(rng.randint(0, 3)):
            place = rng.randrange(len(data))
            data = data[:place] + rng.randbytes(1) + data[place + 1 :]
        events.append(attached("r", i, i + 1, data[: rng.randint(0, len(data))]))
    trace = _load(
        tmp_path,
        events,
        NVTX_PAYLOAD_SCHEMAS=[
            schema(n, None, rng.choice([1, 2, 3, 4, 0]), payloadSize=rng.choice([None, 8, 2**62]),
                   alignTo=rng.choice([None, 1, 3, -1]))
            for n in (100, 300, 301)
        ],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[
            row for n in (100, 300, 301) for row in entries(n, *_random_fields(rng))
        ],
    )  # fmt: skip
    for value in _values(trace):
        assert value[3] is None or not isinstance(value[3], float) or not math.isinf(value[2])
