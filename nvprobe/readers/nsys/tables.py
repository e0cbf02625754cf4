"""Foreign tables as Arrow, whatever file they come from: what the nsys loader reads through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.nsys.versions import is_blob, is_text
from nvprobe.trace import Column

__all__ = ["Rows", "Tables", "declared_type", "texts_of", "valid_texts"]


class Tables(Protocol):
    """One export: its tables by their plain name (no layout suffix) and its strings."""

    def read(self, table: str) -> Rows | None:
        """The declared columns that ``table`` has (see ``schema.COLUMNS``), None if absent."""

    def strings(self, ids: Column) -> pa.StringArray:
        """The texts of sorted, unique string ids, null where an id is unknown."""


@dataclass(frozen=True)
class Rows:
    """The rows of one foreign table; every accessor works whether or not the column exists."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has(self, *columns: str) -> bool:
        """Whether all of the columns are in the file."""
        return all(column in self.table.column_names for column in columns)

    def ints(self, column: str, null: int) -> Column:
        """int64 values, ``null`` where the file has none or lacks the column.

        Always a copy: a view would keep every column that was read with it in memory.
        """
        if not self.has(column):
            return np.full(len(self), null, np.int64)
        values = self.table.column(column)
        if values.null_count:
            values = pc.fill_null(values, pa.scalar(null, values.type))
        return np.array(values.to_numpy(), np.int64)

    def known(self, column: str) -> Column:
        """bool: where the column has a value."""
        if not self.has(column):
            return np.zeros(len(self), bool)
        return np.asarray(self.table.column(column).is_valid().to_numpy(), bool)

    def texts(self, column: str) -> pa.StringArray:
        """Texts as one array, null where there is none."""
        if not self.has(column):
            return pa.nulls(len(self), pa.string())
        chunks = self.table.column(column).chunks or [pa.array([], pa.string())]
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)

    def blobs(self, column: str) -> pa.ChunkedArray:
        """Bytes in chunks, null where there are none."""
        if not self.has(column):
            return pa.chunked_array([pa.nulls(len(self), pa.binary())])
        return self.table.column(column)

    def take(self, mask: Column) -> Rows:
        """The rows of a boolean mask."""
        return self if bool(mask.all()) else Rows(self.table.filter(pa.array(mask)))


def declared_type(table: str, column: str) -> pa.DataType:
    """The Arrow type a column is read as."""
    if is_blob(table, column):
        return pa.binary()
    return pa.string() if is_text(table, column) else pa.int64()


def valid_texts(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """``texts`` with bytes that are not UTF-8 replaced by U+FFFD; unchanged when all is well."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
        repaired = [None if text is None else text.decode("utf-8", "replace") for text in raw]
        return pa.chunked_array([pa.array(repaired, pa.string())])
    return texts


def texts_of(ids: Column, rows: Rows) -> pa.StringArray:
    """The texts of sorted, unique ``ids`` from the rows of a string table (in any order)."""
    known, texts = rows.ints("id", null=-1), rows.texts("value")
    if not len(known):
        return pa.nulls(len(ids), pa.string())
    order = None if bool((known[1:] > known[:-1]).all()) else np.argsort(known, kind="stable")
    ordered = known if order is None else known[order]
    place = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
    found = ordered[place] == ids
    row = place if order is None else order[place]
    return texts.take(pa.array(row, mask=~found))
