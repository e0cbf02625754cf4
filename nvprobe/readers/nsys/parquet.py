"""Columnar exports of nsys: a folder with one Parquet (``_pqtdir``) or Arrow file per table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe import limits
from nvprobe.readers.input_errors import base_name, printable, shown, too_much, unusable
from nvprobe.readers.nsys.assemble import assemble
from nvprobe.readers.nsys.tables import Rows, declared_type, texts_of, valid_texts
from nvprobe.readers.nsys.versions import COLUMNS, is_text, table_named
from nvprobe.trace import Column, Source, Trace

_SUFFIXES = (".parquet", ".arrow")
_FEW = 1000
_ROWS_PER_BYTE = 50
_REMEDY = "export the report again: nsys export --type parquetdir REPORT.nsys-rep"


def load_nsys_parquet(path: str | os.PathLike[str]) -> Trace:
    """The Trace of a ``_pqtdir`` or ``_arwdir``: the same as of the SQLite of that report.

    Raises :class:`~nvprobe.errors.InputError` where a table of the folder cannot be read.
    """
    path = Path(path)
    source = Source("nsys-parquet", base_name(path.resolve()), None, None, {})
    return assemble(FolderTables(path), source)


class FolderTables:
    """The tables of one folder; other files are ignored."""

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
            _check(file, read.num_rows, 0)
            return Rows(_declared(table, read, file))
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

        schema = pq.read_schema(file, memory_map=True)
        kept = [column for column in wanted if column in schema.names]
        texts = [column for column in kept if pa.types.is_string(schema.field(column).type)]
        # Texts stay in the dictionary they are stored as until their length is known.
        with pq.ParquetFile(file, memory_map=True, read_dictionary=texts) as source:
            facts = source.metadata
            groups = map(facts.row_group, range(facts.num_row_groups))
            _check(file, facts.num_rows, sum(group.total_byte_size for group in groups))
            return source.read(columns=kept)
    with pa.memory_map(str(file)) as mapped:
        try:
            reader = pa.ipc.open_file(mapped)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:
            mapped.seek(0)
            reader = pa.ipc.open_stream(mapped)
            batches = iter(reader)
        kept = [column for column in wanted if column in reader.schema.names]
        parts, rows, size = [], 0, 0
        for batch in batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            _check(file, rows, size)
            parts.append(batch.select(kept))
    schema = pa.schema([reader.schema.field(column) for column in kept])
    return pa.Table.from_batches(parts, schema)


def _check(file: Path, rows: int, size: int) -> None:
    """InputError where a table is out of proportion to its file."""
    packed = file.stat().st_size
    if rows > limits.rows(packed, _ROWS_PER_BYTE) or size > limits.unpacked(packed):
        raise too_much(file, f"{rows:,} rows of {size >> 20:,} MiB in a file of {packed:,} bytes")


def _declared(table: str, read: pa.Table, file: Path) -> pa.Table:
    """Every column in its declared type; unsigned numbers wrap, as they do in SQLite."""
    out = {}
    for name in read.column_names:
        values, kind = read.column(name), declared_type(table, name)
        if pa.types.is_dictionary(values.type):
            _check(file, len(values), _decoded_bytes(values))
        if values.type != kind:
            values = pc.cast(values, kind, safe=False)
        out[name] = valid_texts(values) if is_text(table, name) else values
    return pa.table(out) if out else read


def _decoded_bytes(values: pa.ChunkedArray) -> int:
    """Bytes of a dictionary-encoded column of texts once every row has its own."""
    total = 0
    for chunk in values.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    return total
