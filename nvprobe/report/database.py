"""An analysis as an SQLite database: keys, indexes and full-text search, at home in Datasette.

Names are kept once in ``names``; every other text column of the events is a key into it. ``about``
says what each column is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.result import Analysis
from nvprobe.report.event_tables import NAMES, PATH_TEXT, TABLES, EventColumn, event_tables
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import Field as ResultField
from nvprobe.report.schema import fields, flat

_About = tuple[str, str | None, str | None, str]
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
"""What columns of results refer to; those of events say it themselves (``EventColumn.refers``)."""


def write_database(analysis: Analysis, path: Path) -> None:
    """Write everything into a new database at ``path``."""
    import sqlite_utils

    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        database = sqlite_utils.Database(connection)
        results, events = _results(analysis), event_tables(analysis.attribution)
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


def _results(analysis: Analysis) -> dict[str, pa.Table]:
    """Tables of results that have rows, their lists as tables of their own; paths always."""
    tables = (flat(name, table) for name, table in result_tables(analysis).items())
    found = {name: table for some in tables for name, table in some.items()}
    return {name: table for name, table in found.items() if len(table) or name == "paths"}


class _Names:
    """The texts of all event tables, each once."""

    def __init__(self, events: dict[str, pa.Table]) -> None:
        parts = [
            table.column(field.name).combine_chunks().dictionary
            for name, table in events.items()
            for field in TABLES[name].columns
            if field.refers == NAMES and field.name in table.column_names
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
    key = "row" if "row" in columns else "id" if name in TABLES or name == "paths" else None
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
    refers = {field.name: field.refers for field in TABLES[name].columns} if name in TABLES else {}
    columns: dict[str, pa.Array] = {}
    keys = []
    for column in table.column_names:
        values, target = table.column(column).combine_chunks(), refers.get(column)
        if target == PATH_TEXT:
            continue  # path_id says it
        if target == NAMES:
            column, values = f"{column}_id", names.ids(values)
        if target:
            keys.append((column, target, "id"))
        elif (name, column) in _KEYS:
            keys.append((column, _KEYS[name, column], "id"))
        elif column.endswith("_row"):
            keys.append((column, column.removesuffix("_row"), "row"))
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
    rows: list[_About] = [("names", None, None, "every name once")]
    for name in TABLES.keys() & events:
        rows.append((name, None, None, TABLES[name].about))
        rows += [
            (name, _stored(field), field.unit or None, field.about)
            for field in TABLES[name].columns
            if field.refers != PATH_TEXT
        ]
    for name, table in RESULTS.items():
        if name in results:
            rows.append((name, None, None, table.about))
            rows += _described(name, fields(table.row))
    rows = [row for row in rows if row[0] in results | events | {"names"}]
    columns = {"table": str, "column": str, "unit": str, "about": str}
    database["about"].create(columns)
    database.conn.executemany("INSERT INTO about VALUES (?, ?, ?, ?)", rows)


def _described(name: str, columns: Sequence[ResultField]) -> Iterator[_About]:
    """A table of results, and those that hold its lists."""
    for field in columns:
        if pa.types.is_list(field.type):
            yield (f"{name}_{field.name}", None, field.unit, field.about)
        else:
            yield (name, field.name, field.unit, field.about)


def _stored(field: EventColumn) -> str:
    return f"{field.name}_id" if field.refers == NAMES else field.name
