"""Columnar exports of nsys: a folder with one Parquet (``_pqtdir``) or Arrow file a table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.faults import base_name, printable, shown, unusable
from nvprobe.readers.nsys import assemble
from nvprobe.readers.schema import COLUMNS, is_text, table_named
from nvprobe.readers.tables import Rows, declared_type, texts_of, valid_texts
from nvprobe.trace import Column, Source, Trace

__all__ = ["FolderTables", "load_nsys_parquet"]

_SUFFIXES = (".parquet", ".arrow")
_FEW = 1000
_REMEDY = "export the report again: nsys export --type parquetdir REPORT.nsys-rep"


def load_nsys_parquet(path: str | os.PathLike[str]) -> Trace:
    """The Trace of a ``_pqtdir`` or ``_arwdir``: the same as of the SQLite of that report.

    Raises :class:`~nvprobe.errors.InputError` where a table of the folder cannot be read.
    """
    path = Path(path)
    return assemble(FolderTables(path), Source("nsys-parquet", base_name(path.resolve())))


class FolderTables:
    """The tables of one folder; files that are no known table are ignored."""

    def __init__(self, folder: Path) -> None:
        """Note the files; none is read yet."""
        self._folder = folder
        files = {file.stem: file for file in folder.iterdir() if file.suffix in _SUFFIXES}
        named = ((table, table_named(table, files)) for table in COLUMNS)
        self._files = {table: files[name] for table, name in named if name is not None}

    def read(self, table: str) -> Rows | None:
        """The declared columns that ``table`` has, None where the folder lacks the table."""
        if table not in self._files:
            return None
        file = self._files[table]
        try:
            read = _read(file, COLUMNS[table].split())
            return Rows(_declared(table, read))
        except (pa.ArrowException, OSError) as error:
            fault = f"its {shown(file)} cannot be read ({printable(str(error))})"
            raise unusable(self._folder, fault, _REMEDY) from error

    def strings(self, ids: Column) -> pa.StringArray:
        """The texts of sorted, unique string ids, null where an id is unknown."""
        rows = self.read("StringIds") if len(ids) else None
        if rows is None:
            return pa.nulls(len(ids), pa.string())
        if len(ids) <= _FEW:
            rows = rows.take(np.isin(rows.ints("id", -1), ids))
        return texts_of(ids, rows)


def _read(file: Path, wanted: list[str]) -> pa.Table:
    """The wanted columns that a Parquet or Arrow file has."""
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(file, memory_map=True) as source:
            has = set(source.schema_arrow.names)
            return source.read(columns=[column for column in wanted if column in has])
    with pa.memory_map(str(file)) as mapped:
        try:
            table = pa.ipc.open_file(mapped).read_all()
        except pa.ArrowInvalid:
            mapped.seek(0)
            table = pa.ipc.open_stream(mapped).read_all()
    return table.select([column for column in wanted if column in table.column_names])


def _declared(table: str, read: pa.Table) -> pa.Table:
    """Every column in its declared type; unsigned numbers wrap, as they do in SQLite."""
    out = {}
    for name in read.column_names:
        values, kind = read.column(name), declared_type(table, name)
        if values.type != kind:
            values = pc.cast(values, kind, safe=False)
        out[name] = valid_texts(values) if is_text(table, name) else values
    return pa.table(out) if out else read
