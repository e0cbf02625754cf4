"""Exports of nsys: the tables and columns that nvprobe reads, written anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nvprobe.errors import InputError
from nvprobe.readers.input_errors import printable, shown
from nvprobe.readers.nsys.parquet import FolderTables
from nvprobe.readers.nsys.sqlite import opened
from nvprobe.readers.nsys.tables import Rows, Tables
from nvprobe.readers.nsys.versions import COLUMNS, is_blob, is_text
from nvprobe.sharing.texts import Scrubber

_STRINGS = "StringIds"
_REFERENCES = ("textId", "nameId", "jsonTextId", "demangledName", "shortName", "symbol")
"""Columns that hold ids of strings."""
_EXPORT_FACTS = ("PRODUCT", "SCHEMA", "PLATFORM", "ARCH", "LAZY", "VERSION")
_IN_FACT = ("USER", "HOST", "PATH", "ARGUMENT")
_OF_A_PROCESS = ("globalPid", "globalTid")
_PROCESS_BITS = 24
"""nsys keeps the thread in the lowest bits of a global id."""
_LISTS = ("PROCESSES", "ThreadNames")
"""Tables that name every process of the machine."""
_SCHEDULE = ("SCHED_EVENTS", "OSRT_API", "COMPOSITE_EVENTS")
"""Events that any process has; those of one without GPU work, calls or ranges are not handed on."""


def redact_export(source: Path, target: Path, scrub: Scrubber) -> list[str]:
    """Write a copy of an SQLite or columnar export; returns the tables that were left out."""
    if source.is_dir():
        tables: Tables = FolderTables(source)
        present = {file.stem for file in source.iterdir() if file.suffix in (".parquet", ".arrow")}
        target.mkdir()
        for name, table in _kept(tables, scrub):
            pq.write_table(table, target / f"{name}.parquet", compression="zstd")
        return _left_out(present)
    _learn(source, scrub)
    with (
        opened(source) as found,
        closing(adbc_driver_sqlite.dbapi.connect(str(target))) as database,
        database.cursor() as cursor,
    ):
        for name, table in _kept(found, scrub):
            with _writing(target):
                cursor.adbc_ingest(name, table, mode="create")
        with _writing(target):
            database.commit()
    with closing(_read_only(source)) as given:
        names = {name for (name,) in given.execute("SELECT name FROM sqlite_master")}
    return _left_out(names)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """What fails is about the copy, not about the export."""
    try:
        yield
    except adbc_driver_manager.Error as error:
        fault = printable(str(error).splitlines()[0])
        raise InputError(f"{shown(target)} cannot be written ({fault}); name another") from error


def _read_only(source: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _left_out(present: set[str]) -> list[str]:
    """Tables that hold something and are not read by nvprobe."""
    return sorted(
        name for name in present
        if name.partition("_V")[0] not in COLUMNS and not name.startswith(("ENUM_", "sqlite_"))
    )  # fmt: skip


def _learn(source: Path, scrub: Scrubber) -> None:
    """Users, hosts and secrets that environments and metadata name."""
    with closing(_read_only(source)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        wanted = (
            "SELECT value FROM StringIds WHERE instr(value, '=') OR instr(value, '/')",
            "SELECT name || '=' || value FROM TARGET_INFO_SYSTEM_ENV",
            "SELECT value FROM META_DATA_CAPTURE",
            "SELECT text FROM DIAGNOSTIC_EVENT",
            "SELECT text FROM NVTX_EVENTS WHERE instr(text, '/home/') OR instr(text, '/Users/')",
        )
        for sql in wanted:
            try:
                rows = [str(row[0]) for row in database.execute(f"{sql} LIMIT 1000000") if row[0]]
            except sqlite3.Error:
                continue  # a table that this version does not have
            scrub.learn(row.replace("\0", "\n") for row in rows)
            for row in rows:
                if row.startswith(("Hostname=", "HostName=")):
                    scrub.host(row.partition("=")[2])


def _kept(tables: Tables, scrub: Scrubber) -> Iterator[tuple[str, pa.Table]]:
    """Every table that is read, its texts cleaned; the strings last, when it is known which."""
    found: dict[str, pa.Table] = {}
    for name in COLUMNS:
        rows = tables.read(name) if name != _STRINGS else None
        if rows is not None and rows.table.num_columns:
            found[name] = rows.table
    active = _active_processes(found)
    used: dict[str, list[np.ndarray]] = {"name": [], "program": [], "text": [], "kernel": []}
    for name, table in found.items():
        if active is not None and name in (*_LISTS, *_SCHEDULE):
            table = _of_processes(table, active, scrub)
        for column in set(_REFERENCES) & set(table.column_names):
            ids = Rows(table).ints(column, -1)
            used[_kind(name, column)].append(np.unique(ids[ids >= 0]))
        yield name, _cleaned(name, table, scrub)
    strings = tables.read(_STRINGS)
    if strings is not None:
        yield _STRINGS, _strings(strings, used, scrub)


def _active_processes(found: dict[str, pa.Table]) -> np.ndarray | None:
    """Global ids of the processes with GPU work, calls or ranges; None where no table has any."""
    ids = [
        Rows(table).ints(column, -1)
        for name, table in found.items()
        if name not in (*_LISTS, *_SCHEDULE)
        for column in _OF_A_PROCESS
        if column in table.column_names
    ]
    known = np.concatenate(ids) if ids else np.empty(0, np.int64)
    known = known[known >= 0] if (known >= 0).any() else known[:0]
    return np.unique(known >> _PROCESS_BITS) if len(known) else None


def _of_processes(table: pa.Table, active: np.ndarray, scrub: Scrubber) -> pa.Table:
    column = next((one for one in _OF_A_PROCESS if one in table.column_names), None)
    if column is None:
        return table
    mine = np.isin(Rows(table).ints(column, -1) >> _PROCESS_BITS, active)
    if not mine.all():
        scrub.found["rows of processes that were not profiled"] += int((~mine).sum())
    return table.filter(pa.array(mine))


def _kind(table: str, column: str) -> str:
    """How the strings of a column are cleaned."""
    if table == "ThreadNames":
        return "program"
    if table == "NVTX_EVENTS":
        return "name" if column == "textId" else "text"
    return "text" if column == "symbol" or table.startswith("GENERIC") else "kernel"


def _cleaned(name: str, table: pa.Table, scrub: Scrubber) -> pa.Table:
    """The texts and bytes of a table."""
    if name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        return _export_facts(table)
    for column in table.column_names:
        place = table.column_names.index(column)
        if is_blob(name, column):
            clean = [None if one is None else scrub.blob(one) for one in table[column].to_pylist()]
            table = table.set_column(place, column, pa.array(clean, pa.binary()))
        elif is_text(name, column) and pa.types.is_string(table[column].type):
            table = table.set_column(place, column, _texts(name, column, table[column], scrub))
    return table


def _export_facts(table: pa.Table) -> pa.Table:
    """Product and versions."""
    names = table["name"].to_pylist()
    keep = [
        any(word in (name or "") for word in _EXPORT_FACTS)
        and not any(word in (name or "") for word in _IN_FACT)
        for name in names
    ]
    return table.filter(pa.array(keep, pa.bool_()))


def _texts(name: str, column: str, texts: pa.ChunkedArray, scrub: Scrubber) -> pa.Array:
    """A column of texts, each distinct one looked at once."""
    coded = texts.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    clean = [_text(name, column, one, scrub) for one in coded.dictionary.to_pylist()]
    return pa.array(clean, pa.string()).take(coded.indices)


def _text(table: str, column: str, text: str | None, scrub: Scrubber) -> str | None:
    if text is None or column in ("busLocation", "pciBusId", "metricName"):
        return text
    if table == "PROCESSES":
        return scrub.program(text)
    if table == "NVTX_EVENTS" and column == "text":
        return scrub.name(text)
    if column in ("jsonText", "data"):
        return _json(text, scrub)
    return scrub.text(text)


def _json(text: str, scrub: Scrubber) -> str:
    """A JSON text stays one."""
    if not text.lstrip().startswith(("{", "[")):
        return scrub.text(text)
    try:
        return msgspec.json.encode(scrub.value(msgspec.json.decode(text))).decode()
    except (msgspec.MsgspecError, RecursionError):
        return scrub.text(text)


def _strings(rows: Rows, used: dict[str, list[np.ndarray]], scrub: Scrubber) -> pa.Table:
    """The strings that a kept row refers to, cleaned by what refers to them."""
    ids, texts = rows.ints("id", -1), rows.texts("value")
    of = {kind: np.unique(np.concatenate(some)) if some else np.empty(0, np.int64)
          for kind, some in used.items()}  # fmt: skip
    keep = np.isin(ids, np.concatenate(list(of.values())))
    scrub.found["strings that nothing refers to"] += int((~keep).sum())
    ids, kept = ids[keep], texts.filter(pa.array(keep))
    program, name = np.isin(ids, of["program"]), np.isin(ids, of["name"])
    text = np.isin(ids, of["text"])
    clean = []
    for one, is_program, is_name, other in zip(
        kept.to_pylist(), program.tolist(), name.tolist(), text.tolist(), strict=True
    ):
        how = scrub.program if is_program else scrub.name if is_name else scrub.text
        if not (is_program or is_name or other):
            clean.append(scrub.kernel(one) if one is not None else None)
        else:
            clean.append(one if one is None else _json(one, scrub) if other and not is_name
                         and one[:1] in "{[" else how(one))  # fmt: skip
    return pa.table({"id": ids, "value": pa.array(clean, pa.string())})
