"""The tables of an export in Arrow: rows by column name, pooled texts, events with a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.nsys.versions import LONGEST_TIME, TIMES_OF, is_blob, is_text
from nvprobe.trace import NO_NAME, Column


class Tables(Protocol):
    """One export: its tables by their plain name (no layout suffix) and its strings."""

    def read(self, table: str) -> Rows | None:
        """The declared columns that ``table`` has (see ``versions.COLUMNS``), None if absent."""

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

    def all_between(self, column: str, least: int, most: int) -> bool:
        """Whether every row has a value from ``least`` to ``most``; looks without a copy."""
        if not len(self) or not self.has(column) or self.table.column(column).null_count:
            return False
        bounds = pc.min_max(self.table.column(column)).as_py()
        return bool(least <= bounds["min"] and bounds["max"] <= most)

    def columns(self, null: int, **columns: str) -> dict[str, Column]:
        """Several columns of :meth:`ints`, by the names that the Trace has for them."""
        return {ours: self.ints(theirs, null) for ours, theirs in columns.items()}

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


Handle = tuple[bool, int]
"""Where a pool keeps one array of texts."""

_LARGE = 200_000
_STRETCH = 65_536
_MOST_BYTES = 2**31 - 1
_CUT = 200
"""Characters kept of each text of a capture with more than 2 GiB of names."""


class StringPool:
    """Collects texts and makes them rows of one array.

    Equal texts share a row, except those of a large column that are nearly all different (as
    torch's emit_nvtx writes them): finding the few equal ones would cost more than it saves, so
    every one of them gets a row of its own. Everything happens in Arrow, without a Python string.
    """

    def __init__(self) -> None:
        self._shared: list[pa.Array] = []
        self._own: list[pa.Array] = []
        self._codes: list[Column] = []

    def add(self, texts: pa.Array) -> Handle:
        """Keep ``texts`` (nulls allowed); returns the handle that :meth:`rows` takes."""
        parts = self._own if _nearly_unique(texts) else self._shared
        parts.append(texts)
        return parts is self._own, len(parts) - 1

    def freeze(self) -> pa.StringArray:
        """All texts; no more can be added."""
        shared = pa.concat_arrays(self._shared or [pa.array([], pa.string())])
        encoded = pc.dictionary_encode(shared)
        bounds = np.cumsum([len(part) for part in self._shared])
        self._codes = np.split(_codes(encoded.indices), bounds[:-1])
        texts = [encoded.dictionary]
        first = len(encoded.dictionary)
        for part in self._own:
            known = np.asarray(part.is_valid(), bool)
            self._codes.append(np.where(known, first - 1 + np.cumsum(known), NO_NAME))
            texts.append(part.drop_null() if part.null_count else part)
            first += len(texts[-1])
        self._own_from = len(self._shared)
        self._shared, self._own = [], []
        return _one_array(texts)

    def rows(self, handle: Handle) -> Column:
        """int32 rows of the frozen array, ``NO_NAME`` for a null."""
        own, place = handle
        codes = self._codes[place + self._own_from if own else place]
        return codes.astype(np.int32, copy=False)


def _nearly_unique(texts: pa.Array) -> bool:
    """Whether most texts of a large column occur once, judged by a stretch from its middle."""
    if len(texts) < _LARGE:
        return False
    stretch = texts.slice(len(texts) // 2, _STRETCH).drop_null()
    return 2 * len(stretch.unique()) > len(stretch)


def _one_array(parts: list[pa.Array]) -> pa.StringArray:
    """``parts`` end to end; texts are cut where a string array could not hold them all."""
    if sum(part.nbytes for part in parts) > _MOST_BYTES:
        parts = [pc.utf8_slice_codeunits(part, 0, _CUT) for part in parts]
    return pa.concat_arrays(parts) if len(parts) > 1 else parts[0]


def _codes(indices: pa.Array) -> Column:
    filled = pc.fill_null(indices, NO_NAME) if indices.null_count else indices
    return np.asarray(filled, np.int32)


def distinct(values: Column) -> tuple[Column, Column]:
    """Sorted distinct int64 values, and for each element its int32 place among them.

    By hashing: as fast for sparse 64-bit ids as for small ones, and cheap where most repeat.
    """
    encoded = pc.dictionary_encode(pa.array(values))
    uniques = encoded.dictionary.to_numpy()
    codes = encoded.indices.to_numpy()
    order = np.argsort(uniques, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return uniques[order], place[codes]


UNKNOWN = int(np.iinfo(np.int64).min)
"""Stands for NULL in columns of identifiers."""

Encoded = tuple[Column, Column]
"""Distinct values in order, and the int32 place of every row among them."""


@dataclass
class ExportRows:
    """Rows by table name. Ops are all kept: they are counted even where their times are wrong."""

    rows: dict[str, Rows]
    warnings: list[str] = field(default_factory=list)
    _encoded: dict[tuple[str, str], Encoded] = field(default_factory=dict)

    @classmethod
    def read(cls, tables: Tables) -> ExportRows:
        """Read every event table that the export has."""
        exported = cls({})
        for table, times in TIMES_OF:
            rows = exported._placed(table, tables.read(table), times)
            if rows is not None:
                exported.rows[table] = rows
        return exported

    def get(self, *tables: str) -> list[tuple[str, Rows]]:
        """Those of ``tables`` that the export has, in that order."""
        return [(table, self.rows[table]) for table in tables if table in self.rows]

    def release(self, *tables: str) -> None:
        """Let go of rows that are not needed any more; what was encoded of them stays."""
        for table in tables:
            self.rows.pop(table, None)

    def encoded(self, table: str, column: str) -> Encoded:
        """A column of identifiers as :func:`distinct` values and codes, made once."""
        key = (table, column)
        if key not in self._encoded:
            self._encoded[key] = distinct(self.rows[table].ints(column, UNKNOWN))
        return self._encoded[key]

    def _placed(self, table: str, rows: Rows | None, times: tuple[str, ...]) -> Rows | None:
        """Without the rows that have no time, or one that cannot be."""
        if rows is None or not times:
            return rows
        good = np.ones(len(rows), bool)
        for column in times:
            if not rows.all_between(column, -LONGEST_TIME, LONGEST_TIME):
                good &= possible(rows.ints(column, UNKNOWN))
        if lost := len(rows) - int(np.count_nonzero(good)):
            self.warnings.append(f"{lost} rows of {table} have no possible time and are left out")
        return rows.take(good)


def possible(times: Column) -> Column:
    """bool: times within what can be added up without wrapping."""
    inside: Column = (times >= -LONGEST_TIME) & (times <= LONGEST_TIME)
    return inside
