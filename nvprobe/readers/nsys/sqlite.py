"""SQLite exports of nsys, read through adbc straight into Arrow.

The file is opened immutable: no lock is taken, nothing is written and no ``-wal`` or ``-shm``
appears beside it. A database with unfinished transactions beside it (``-wal``, ``-journal``) is
read from a private copy, where SQLite may finish or undo them.

Only real tables are read, and never more rows than the file can hold: a view or a virtual table
is computed, and pages that name one another make a table without end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa

from nvprobe import limits
from nvprobe.readers.input_errors import EXPORT_AGAIN, base_name, printable, too_much, unusable
from nvprobe.readers.nsys.assemble import assemble
from nvprobe.readers.nsys.tables import Rows, declared_type, texts_of, valid_texts
from nvprobe.readers.nsys.versions import COLUMNS, MARKERS, RARE, is_blob, is_text, table_named
from nvprobe.trace import Column, Source, Trace

_ALL_ROWS = str(2**30)
"""adbc takes the type of a column from its first batch: make the first batch everything."""
_STRETCH = 8_000_000
"""Rows read at once: 8 million texts stay under the 2 GiB of one Arrow string array."""
_MOST_STRETCHES = 1000
"""More of them only come from row ids with gaps: read such a table in one go."""
_FEW = 1000
"""Up to so many strings are looked up by id; more are cheaper to read whole."""
_LONGEST_DEFAULT = 1000
"""A longer default value, which every row that lacks the column has, is not read."""
_ROWS_PER_BYTE = 0.25
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"


def load_nsys_sqlite(path: str | os.PathLike[str]) -> Trace:
    """The Trace of an SQLite export of any nsys from 2020 on.

    Raises :class:`~nvprobe.errors.InputError` where the file is not such an export, or damaged.
    """
    path = Path(path)
    with opened(path) as tables:
        return assemble(tables, Source("nsys-sqlite", base_name(path), None, None, {}))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[SqliteTables]:
    """The tables of an export; errors of SQLite become one line about the file."""
    with contextlib.ExitStack() as stack:
        try:
            readable = stack.enter_context(_settled(path))
            tables = SqliteTables(readable, path)
            stack.callback(tables.close)
            if not MARKERS & tables.columns.keys():
                raise unusable(path, "is an SQLite database, but not one of nsys", EXPORT_AGAIN)
            yield tables
        except (adbc_driver_manager.Error, sqlite3.Error, OSError, UnicodeError) as error:
            raise unusable(path, _fault(error), EXPORT_AGAIN) from error


def _fault(error: Exception) -> str:
    text = str(error)
    if "malformed" in text or "disk I/O error" in text or isinstance(error, UnicodeError):
        return "is truncated or damaged"
    if "not a database" in text:
        return "is not a readable SQLite database (encrypted or damaged)"
    return f"cannot be read ({printable(text)})"


@contextlib.contextmanager
def _settled(path: Path) -> Iterator[Path]:
    """``path``, or a private copy of it if a transaction beside it has to be finished first."""
    beside = [Path(f"{path}-wal"), Path(f"{path}-journal")]
    pending = [file for file in beside if _is_pending(file)]
    if not pending:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="nvprobe-") as folder:
        copy = Path(folder, "export.sqlite")
        shutil.copyfile(path, copy)
        for file in pending:
            shutil.copyfile(file, f"{copy}{str(file)[len(str(path)) :]}")
        with contextlib.closing(sqlite3.connect(copy)) as database:
            database.execute("PRAGMA journal_mode = DELETE").fetchall()
        yield copy


def _is_pending(beside: Path) -> bool:
    """Whether a ``-wal`` or ``-journal`` holds something that the database lacks."""
    try:
        with beside.open("rb") as file:
            head = file.read(len(_JOURNAL_MAGIC))
    except FileNotFoundError:
        return False
    return bool(head) if beside.name.endswith("-wal") else head == _JOURNAL_MAGIC


class SqliteTables:
    """The tables of one SQLite export, read whole and one after the other."""

    def __init__(self, path: Path, given: Path) -> None:
        """Open ``path`` read-only; raises the errors of adbc or sqlite3.

        ``given`` is the file as the user names it.
        """
        self._given = given
        self._size = path.stat().st_size
        self._most = limits.rows(self._size, _ROWS_PER_BYTE)
        self._uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
        self._database = adbc_driver_sqlite.connect(self._uri)
        self._connection = adbc_driver_manager.AdbcConnection(self._database)
        self.columns: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        self._database.close()

    def read(self, table: str) -> Rows | None:
        """The declared columns that ``table`` has, None where the file lacks the table."""
        if table not in self.columns:
            return None
        return self._all(table, self._filled(table))

    def strings(self, ids: Column) -> pa.StringArray:
        """The texts of sorted, unique string ids, null where an id is unknown."""
        if self.columns.get("StringIds") != ["id", "value"] or not len(ids):
            return pa.nulls(len(ids), pa.string())
        if len(ids) > _FEW:
            return texts_of(ids, self._all("StringIds", ["id", "value"]))
        few = f" WHERE id IN ({','.join(map(str, ids.tolist()))})"
        return texts_of(ids, Rows(self._select("StringIds", ["id", "value"], few)))

    def _look(self) -> None:
        """Note the columns of the tables we know (others, with what ails them, are ignored)."""
        present = self._query(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 "
            "AND sql LIKE 'CREATE TABLE%'"
        )
        names = valid_texts(present.column(0)).to_pylist() if present.num_rows else []
        for table, declared in COLUMNS.items():
            name = table_named(table, names)
            if name is None:
                continue
            sql = (
                f"SELECT name FROM pragma_table_info({_literal(name)}) "  # noqa: S608
                f"WHERE ifnull(length(dflt_value), 0) <= {_LONGEST_DEFAULT}"
            )
            has = set(self._query(sql).column(0).to_pylist())
            self._names[table] = name
            self.columns[table] = [column for column in declared.split() if column in has]

    def _filled(self, table: str) -> list[str]:
        """The columns of a table but those of payloads that are NULL throughout.

        Looking for a value takes a quarter of the time of reading that there is none.
        """
        columns = self.columns[table]
        rare = [column for column in columns if (table, column) in RARE]
        if not rare:
            return columns
        counts = ", ".join(f"count({_identifier(column)})" for column in rare)
        names = ", ".join(map(_identifier, rare))
        rows = f"SELECT {names} FROM {_identifier(self._names[table])} LIMIT {self._most}"  # noqa: S608
        found = self._query(f"SELECT {counts} FROM ({rows})")  # noqa: S608
        empty = {name for name, n in zip(rare, found.columns, strict=True) if not n[0].as_py()}
        return [column for column in columns if column not in empty]

    def _all(self, table: str, columns: list[str]) -> Rows:
        parts: list[pa.Table] = []
        for span in self._spans(table):
            parts.append(self._select(table, columns, span))
            self._check(table, sum(map(len, parts)), sum(part.nbytes for part in parts))
        return Rows(pa.concat_tables(parts) if len(parts) > 1 else parts[0])

    def _check(self, table: str, rows: int, size: int) -> None:
        """InputError where a table has more rows or bytes than the file can hold."""
        if rows > self._most:
            raise too_much(
                self._given,
                f"{table} has more than {self._most:,} rows, the file only {self._size:,} bytes",
            )
        if size > limits.unpacked(self._size):
            raise too_much(
                self._given, f"{table} takes {size >> 20:,} MiB, the file only {self._size:,} bytes"
            )

    def _spans(self, table: str) -> list[str]:
        """Conditions that cut a very large table into stretches an Arrow array can hold."""
        of = f"FROM {_identifier(self._names[table])}"
        try:  # one aggregate a query, or SQLite reads the whole table
            bounds = self._by_adbc(f"SELECT (SELECT min(rowid) {of}), (SELECT max(rowid) {of})")
        except adbc_driver_manager.Error:  # a table without rowids
            return [""]
        first, last = (column[0].as_py() for column in bounds.columns)
        if first is None or not _STRETCH < last - first < _MOST_STRETCHES * _STRETCH:
            return [""]
        starts = range(first, last + 1, _STRETCH)
        return [f" WHERE rowid BETWEEN {start} AND {start + _STRETCH - 1}" for start in starts]

    def _select(self, table: str, columns: list[str], where: str) -> pa.Table:
        """Columns of a table in their declared types; what does not fit them becomes NULL."""
        source = f"FROM {_identifier(self._names[table])}{where} LIMIT {self._most + 1}"
        if not columns:
            return self._query(f"SELECT count(*) FROM (SELECT 1 {source})").select([])  # noqa: S608
        plain = self._query(f"SELECT {', '.join(map(_identifier, columns))} {source}")
        unfit = {c for c in columns if plain.column(c).type != declared_type(table, c)}
        if any(plain.column(c).null_count < len(plain) for c in unfit):
            wanted = ", ".join(_cast(table, c) if c in unfit else _identifier(c) for c in columns)
            plain = self._query(f"SELECT {wanted} {source}")
        return _declared(table, plain)

    def _query(self, sql: str) -> pa.Table:
        """Run one statement: by adbc, else (what it cannot read) by sqlite3."""
        try:
            return self._by_adbc(sql)
        except (adbc_driver_manager.Error, pa.ArrowException, UnicodeError):
            return self._by_sqlite3(sql)

    def _by_adbc(self, sql: str) -> pa.Table:
        statement = adbc_driver_manager.AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": _ALL_ROWS})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            return pa.RecordBatchReader._import_from_c(stream.address).read_all()
        finally:
            statement.close()

    def _by_sqlite3(self, sql: str) -> pa.Table:
        """The slow way, which reads whatever SQLite itself can read."""
        with contextlib.closing(sqlite3.connect(self._uri, uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            cursor = database.execute(sql)
            names = [item[0] for item in cursor.description]
            rows = self._counted(cursor)
            columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(names)
        arrays = [_array(values) for values in columns]
        return pa.table(arrays, names=names)

    def _counted(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        """The rows of a cursor, as long as they are not more than the file can hold."""
        most, size = limits.unpacked(self._size), 0
        for row in cursor:
            size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if size > most:
                raise too_much(
                    self._given,
                    f"a table takes more than {most >> 20:,} MiB, the file "
                    f"only {self._size:,} bytes",
                )
            yield row


def _array(values: tuple[Any, ...]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds <= {bytes}:
        return pa.array(values, pa.binary())
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def _declared(table: str, read: pa.Table) -> pa.Table:
    """Every column in its declared type; a column without values arrives as int64."""
    out = {}
    for name in read.column_names:
        values, kind = read.column(name), declared_type(table, name)
        if values.type != kind:
            values = pa.chunked_array([pa.nulls(len(read), kind)])
        out[name] = valid_texts(values) if is_text(table, name) else values
    return pa.table(out)


def _cast(table: str, column: str) -> str:
    """SQL that yields the declared type of a column, NULL for a value that is something else."""
    name = _identifier(column)
    if is_blob(table, column):
        return f"CAST({name} AS BLOB) AS {name}"
    if is_text(table, column):
        return f"CAST({name} AS TEXT) AS {name}"
    number = f"typeof({name}) IN ('integer', 'real')"
    return f"CASE WHEN {number} THEN CAST({name} AS INTEGER) END AS {name}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
