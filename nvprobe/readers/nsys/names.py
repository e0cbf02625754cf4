"""Names of an nsys export: registered strings, inline texts, domains and categories."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Handle, Rows, StringPool, Tables
from nvprobe.readers.nsys.versions import (
    CALL_SUFFIXES,
    CALLS,
    COPY_NAMES,
    LIBRARIES,
    event_columns,
)
from nvprobe.trace import NO_NAME, Column

UNNAMED = "(no name)"
"""The name of a range, span or mark that was recorded without any."""

_REFERENCES = event_columns("demangledName", "shortName", "nameId", "textId", "symbol")
_GRAPHS = ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphExecId")


class Names:
    """Turns string ids and texts into rows of the Trace's strings.

    Only strings that something refers to are read: an export also holds environments, files and
    symbols, which have no business in a Trace.
    """

    def __init__(
        self, exported: ExportRows, tables: Tables, pool: StringPool, more_ids: Column
    ) -> None:
        """Read what ``exported`` and ``more_ids`` (thread names) refer to into ``pool``."""
        self._exported = exported
        self._pool = pool
        held = [exported.encoded(t, c)[0] for t, c in _REFERENCES if t in exported.rows]
        wanted = np.unique(np.concatenate([more_ids, *held]))
        self._ids = wanted[wanted != UNKNOWN]
        texts = tables.strings(self._ids)
        self._texts = pool.add(texts)
        self._calls = pool.add(self._clean(texts))
        self._inline = _texts_of(exported.rows.get("NVTX_EVENTS"), "text", pool)
        self._libraries = pool.add(pa.array(list(LIBRARIES.values())))
        self._metrics = _texts_of(tables.read("TARGET_INFO_GPU_METRICS"), "metricName", pool)
        self._schemas = _texts_of(tables.read("NVTX_PAYLOAD_SCHEMAS"), "name", pool)
        self._fields = _texts_of(tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES"), "name", pool)
        self._graphs = pool.add(_graph_names(exported))
        self._literals = pool.add(pa.array([UNNAMED, "Memset", "Memcpy", *COPY_NAMES.values()]))

    def by_id(self, ids: Column) -> Column:
        """int32 string rows of string ids, ``NO_NAME`` for unknown ones."""
        return self._looked_up(ids, self._texts)

    def column(self, table: str, column: str) -> Column:
        """int32 string rows of a column of string ids."""
        values, codes = self._exported.encoded(table, column)
        return self._looked_up(values, self._texts)[codes]

    def calls(self, table: str) -> Column:
        """int32 string rows of call names without ABI suffixes."""
        values, codes = self._exported.encoded(table, "nameId")
        return self._looked_up(values, self._calls)[codes]

    def annotations(self) -> Column:
        """int32 string rows of the NVTX events: inline text, else registered string, else none."""
        inline = self._pool.rows(self._inline)
        if not bool((inline == NO_NAME).any()):
            return inline
        return np.where(inline == NO_NAME, self.column("NVTX_EVENTS", "textId"), inline)

    def copies(self, kinds: Column) -> Column:
        """int32 string rows of what nsys calls copies of these CUPTI memcpy kinds."""
        literals = self._pool.rows(self._literals)
        lookup = np.full(256, literals[2], np.int32)
        lookup[list(COPY_NAMES)] = literals[3:]
        return lookup[np.clip(kinds, 0, 255)]

    def graphs(self) -> Column:
        """int32 string rows of the names of whole-graph records."""
        return self._pool.rows(self._graphs)[self._exported.encoded(*_GRAPHS)[1]]

    def library(self, table: str) -> int:
        """String row of the domain that calls of a library table are given."""
        return int(self._pool.rows(self._libraries)[list(LIBRARIES).index(table)])

    @property
    def metrics(self) -> Column:
        """int32 string rows of ``TARGET_INFO_GPU_METRICS``, row by row."""
        return self._pool.rows(self._metrics)

    @property
    def payload_schemas(self) -> Column:
        """int32 string rows of ``NVTX_PAYLOAD_SCHEMAS``, row by row."""
        return self._pool.rows(self._schemas)

    @property
    def payload_fields(self) -> Column:
        """int32 string rows of ``NVTX_PAYLOAD_SCHEMA_ENTRIES``, row by row."""
        return self._pool.rows(self._fields)

    @property
    def memset(self) -> int:
        """String row of the name of a memset."""
        return int(self._pool.rows(self._literals)[1])

    @property
    def unnamed(self) -> int:
        """String row of :data:`UNNAMED`."""
        return int(self._pool.rows(self._literals)[0])

    def _clean(self, texts: pa.StringArray) -> pa.StringArray:
        """``texts`` without ABI suffixes where they name calls, null elsewhere (few are calls)."""
        held = [self._exported.encoded(t, "nameId")[0] for t, _ in self._exported.get(*CALLS)]
        named = np.isin(self._ids, np.concatenate(held)) if held else np.zeros(len(texts), bool)
        rows = np.full(len(texts), -1, np.int64)
        rows[named] = np.arange(int(named.sum()))
        clean = pc.replace_substring_regex(texts.filter(pa.array(named)), CALL_SUFFIXES, "")
        return clean.take(pa.array(rows, mask=~named))

    def _looked_up(self, ids: Column, texts: Handle) -> Column:
        if not len(self._ids):
            return np.full(len(ids), NO_NAME, np.int32)
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        rows = self._pool.rows(texts)[place]
        return np.where(self._ids[place] == ids, rows, NO_NAME).astype(np.int32, copy=False)


def _texts_of(rows: Rows | None, column: str, pool: StringPool) -> Handle:
    """Keep a column of inline texts, of no rows where the table is absent."""
    return pool.add(pa.array([], pa.string()) if rows is None else rows.texts(column))


def _graph_names(exported: ExportRows) -> pa.StringArray:
    """A name for each executable graph that was recorded whole."""
    ids = exported.encoded(*_GRAPHS)[0].tolist() if _GRAPHS[0] in exported.rows else []
    return pa.array(["CUDA graph" if i == UNKNOWN else f"CUDA graph {i}" for i in ids], pa.string())
