"""An analysis as an SQLite database: keys, indexes and full-text search, at home in Datasette.

Names are kept once in ``names``; every other text column of the events is a key into it. ``about``
tells what each column is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.result import Analysis
from nvprobe.report.event_tables import TABLES, event_tables
from nvprobe.report.result_tables import LISTS, result_tables

__all__ = ["write_database"]

_BATCH = 50_000
_INDEXED = {
    "ops": (["path_id"], ["device_id", "stream", "start_ns"], ["process_id", "correlation"]),
    "calls": (["thread_id", "start_ns"], ["process_id", "correlation"]),
    "range_events": (["path_id"], ["thread_id", "start_ns"]),
    "payload_values": (["range_id"], ["field_id", "integer"]),
    "marks": (["time_ns"],),
    "counters": (["metric_id", "time_ns"],),
    "geometry": (["op_id"],),
    **dict.fromkeys(
        ("call_stacks", "os_stacks", "sample_stacks", "python_stacks", "backtrace_stacks"),
        (["chain", "depth"],),
    ),
}
"""Columns that people filter, join and sort by."""
_KEYS = {("paths", "parent_id"): "paths", ("ledger", "process_id"): "processes"}
"""What columns of results refer to; those of events tell it themselves (``Field.form``)."""


def write_database(analysis: Analysis, path: Path) -> None:
    """Write everything into a new database at ``path``."""
    import sqlite_utils

    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        database = sqlite_utils.Database(connection)
        results, events = result_tables(analysis), event_tables(analysis.attribution)
        names = _Names(events)
        names.write(database)
        tables = {"paths": results["paths"], **events, **results}  # what is referred to comes first
        for name, table in tables.items():
            _write(database, name, table, names)
        _describe(database, set(results), set(events))
        database["names"].enable_fts(["name"], create_triggers=False)
        database["paths"].enable_fts(["path"], create_triggers=False)
        connection.execute("ANALYZE")
        connection.commit()
    finally:
        connection.close()


class _Names:
    """The texts of all event tables, each once."""

    def __init__(self, events: dict[str, pa.Table]) -> None:
        parts = [
            table.column(field.name).combine_chunks().dictionary
            for name, table in events.items()
            for field in TABLES[name]
            if field.form == "text" and field.name in table.column_names
        ]
        self.texts = pa.concat_arrays(parts or [pa.array([], pa.string())]).unique()

    def write(self, database: Any) -> None:
        """The table of names."""
        database["names"].create({"id": int, "name": str}, pk="id")
        rows = enumerate(self.texts.to_pylist())
        database.conn.executemany("INSERT INTO names VALUES (?, ?)", rows)

    def ids(self, column: pa.Array) -> pa.Array:
        """Ids of the texts of a dictionary-encoded column."""
        found = pc.index_in(column.dictionary, self.texts).cast(pa.int64())
        return found.take(column.indices)


def _write(database: Any, name: str, table: pa.Table, names: _Names) -> None:
    """Create one table with its keys and fill it."""
    columns, keys = _columns(name, table, names)
    kinds = {column: _kind(values.type) for column, values in columns.items()}
    # Elsewhere an id is that of a kind of finding, or torch's of a compiled graph: of several rows.
    key = "id" if name in TABLES or name == "paths" else None
    there = [ref for ref in keys if ref[1] == name or database[ref[1]].exists()]
    database[name].create(kinds, pk=key, foreign_keys=there)
    marks = ", ".join("?" * len(columns))
    database.conn.executemany(
        f"INSERT INTO [{name}] VALUES ({marks})",  # noqa: S608
        _rows(list(columns.values())),
    )
    for index in _INDEXED.get(name, ()):
        if set(index) <= columns.keys():
            database[name].create_index(index)


def _columns(
    name: str, table: pa.Table, names: _Names
) -> tuple[dict[str, pa.Array], list[tuple[str, str, str]]]:
    """Columns as SQLite keeps them, and the references among them."""
    forms = {field.name: field.form for field in TABLES.get(name, ())}
    columns: dict[str, pa.Array] = {}
    keys = []
    for column in table.column_names:
        values, form = table.column(column).combine_chunks(), forms.get(column, "")
        if form == "path":
            continue  # path_id says it
        if form == "text":
            column, values = f"{column}_id", names.ids(values)
            keys.append((column, "names", "id"))
        elif form.startswith(">"):
            keys.append((column, form[1:], "id"))
        elif (name, column) in _KEYS:
            keys.append((column, _KEYS[name, column], "id"))
        elif pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        columns[column] = values
    return columns, keys


def _kind(kind: pa.DataType) -> type:
    if pa.types.is_floating(kind):
        return float
    return str if pa.types.is_string(kind) else int


def _rows(columns: list[pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Rows of equal columns, a batch in memory at a time."""
    for start in range(0, len(columns[0]) if columns else 0, _BATCH):
        batch = [column.slice(start, _BATCH).to_pylist() for column in columns]
        yield from zip(*batch, strict=True)


def _describe(database: Any, results: set[str], events: set[str]) -> None:
    """The table that explains the others."""
    rows: list[dict[str, str | None]] = [
        {"table": name, "column": _stored(field.name, field.form), "about": field.about}
        for name, fields in TABLES.items()
        for field in fields
        if name in events and field.form != "path"
    ]
    found = ((name, about) for name, about in LISTS.items() if name in results)
    rows += [{"table": name, "column": None, "about": about} for name, about in found]
    rows.append({"table": "paths", "column": None, "about": "owner paths with their quantities"})
    rows.append({"table": "names", "column": None, "about": "every name once"})
    database["about"].insert_all(rows, columns={"table": str, "column": str, "about": str})


def _stored(column: str, form: str) -> str:
    return f"{column}_id" if form == "text" else column
