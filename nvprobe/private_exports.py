"""Take out of an export of nsys what nobody meant to hand on, before anything else can read it.

nsys keeps the environment of every process on the machine (among the strings, and in a table of its
own), the arguments and the printed output of the program, and copies of files. No analysis reads
them, but for the numbers by which launchers say which rank a process is. Their rows are deleted and
the file is written anew, so that their bytes are gone, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvprobe.errors import ToolError
from nvprobe.placement import ENVIRONMENT, launchers_variables

_PRIVATE = ("TARGET_INFO_SYSTEM_ENV", "ProcessStreams", "ANALYSIS_FILE")
"""Tables of environments, of what the program printed, and of files."""
_ENVIRONMENTS = "TARGET_INFO_SYSTEM_ENV"
_CAPTURE = "META_DATA_CAPTURE"
_CAPTURE_NAME = "ENVIRONMENT|ARGUMENT"
_STRINGS = "StringIds"
_NAMES_A_STRING = re.compile(r"(\w*[tT]extId)\b|(\w+)\s+INTEGER[^\n]*REFERENCES\s+StringIds")
_VARIABLE = "[A-Za-z_]*=*"
"""GLOB of an environment with a single variable, which has no NUL; some names look like it, too."""


@contextlib.contextmanager
def private_folder(beside: Path) -> Iterator[Path]:
    """A folder next to ``beside`` that only its owner can enter, for a file in the making."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".nvprobe-", dir=beside.parent))
    except OSError as error:  # about what the user named, not about this folder
        raise OSError(error.errno, error.strerror, str(beside)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def settle(made: Path, output: Path) -> None:
    """Put a finished export, file or folder, in its place; only its owner can read it."""
    made.chmod(0o700 if made.is_dir() else 0o600)
    for file in made.iterdir() if made.is_dir() else ():
        file.chmod(0o600)
    if output.is_dir():
        shutil.rmtree(output)
    made.replace(output)


def drop_private_rows(export: Path) -> None:
    """Delete environments, arguments, printed output and files from an SQLite or columnar export.

    Raises:
        ToolError: the export cannot be rewritten.

    """
    try:
        if export.is_dir():
            _clean_folder(export)
        else:
            _clean_database(export)
    except (sqlite3.Error, OSError) as error:
        raise ToolError(f"the environment cannot be taken out of the export: {error}") from error


def _clean_database(file: Path) -> None:
    clean = file.with_name(f"{file.name}.clean")
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")  # a journal would keep the rows
        database.execute("PRAGMA secure_delete = ON")
        found = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        tables = {name: sql or "" for name, sql in found}
        if _STRINGS in tables:
            _delete_strings(database, tables)
        if _ENVIRONMENTS in tables:
            _keep_launchers_variables(database)
        for table in tables.keys() & {*_PRIVATE} - {_ENVIRONMENTS}:
            database.execute(f"DELETE FROM {table}")  # noqa: S608
        if _CAPTURE in tables:
            for word in _CAPTURE_NAME.split("|"):
                database.execute(f"DELETE FROM {_CAPTURE} WHERE name LIKE '%{word}%'")  # noqa: S608
        # What SQLite moved while nsys wrote has left copies in unused parts of pages.
        database.execute("VACUUM INTO ?", (os.fspath(clean),))
    clean.replace(file)


def _keep_launchers_variables(database: sqlite3.Connection) -> None:
    """Of environments only what says which rank of a job this is: numbers."""
    query = f"SELECT rowid, value FROM {_ENVIRONMENTS} WHERE name = ?"  # noqa: S608
    found = database.execute(query, (ENVIRONMENT,)).fetchall()
    placed = {row: launchers_variables(str(value)) for row, value in found}
    kept = next((row for row, text in placed.items() if text), -1)
    database.execute(f"DELETE FROM {_ENVIRONMENTS} WHERE rowid <> ?", (kept,))  # noqa: S608
    change = f"UPDATE {_ENVIRONMENTS} SET value = ?"  # noqa: S608
    database.execute(change, (placed.get(kept, ""),))


def _delete_strings(database: sqlite3.Connection, tables: dict[str, str]) -> None:
    """Delete environments, and what no table refers to but the private ones."""
    database.execute(f"DELETE FROM {_STRINGS} WHERE instr(value, char(0))")  # noqa: S608
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute("CREATE TEMP TABLE suspects (id INTEGER PRIMARY KEY)")
    add = "INSERT OR IGNORE INTO suspects SELECT"
    database.execute(f"{add} id FROM {_STRINGS} WHERE value GLOB '{_VARIABLE}'")
    for table in tables.keys() & set(_PRIVATE):
        for column in _references(tables[table]):
            database.execute(f"{add} {column} FROM {table} WHERE {column} IS NOT NULL")
    for table in tables.keys() - set(_PRIVATE):
        for column in _references(tables[table]):
            named = "IN (SELECT id FROM suspects)"
            used = f'SELECT "{column}" FROM "{table}" WHERE "{column}" {named}'  # noqa: S608
            database.execute(f"DELETE FROM suspects WHERE id IN ({used})")  # noqa: S608
    database.execute(f"DELETE FROM {_STRINGS} WHERE id IN (SELECT id FROM suspects)")  # noqa: S608
    database.execute("DROP TABLE suspects")


def _references(sql: str) -> set[str]:
    """Columns of a table, by its CREATE statement, that hold ids of strings."""
    return {match[1] or match[2] for match in _NAMES_A_STRING.finditer(sql)}


def _clean_folder(folder: Path) -> None:
    """The same for a folder of Parquet files; needs pyarrow."""
    for table in _PRIVATE:
        for file in folder.glob(f"{table}.*"):
            file.unlink()
    for name, column, pattern in ((_STRINGS, "value", "\\x00"), (_CAPTURE, "name", _CAPTURE_NAME)):
        for file in folder.glob(f"{name}.parquet"):
            _keep_rows_without(file, column, pattern)


def _keep_rows_without(file: Path, column: str, pattern: str) -> None:
    try:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ToolError("a Parquet export needs pyarrow here; use --export sqlite") from error
    table: Any = pq.read_table(file, memory_map=False)
    hit = pc.match_substring_regex(pc.cast(table.column(column), "binary"), pattern)
    pq.write_table(table.filter(pc.invert(pc.fill_null(hit, fill_value=False))), file)
