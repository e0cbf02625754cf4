"""One string array for a whole Trace: every text once, whatever column it came from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import NO_NAME, Column

__all__ = ["StringPool", "distinct"]


class StringPool:
    """Collects texts; :meth:`freeze` makes each distinct text one row of one array.

    Everything happens in Arrow: 1.5 million texts that are all different cost one hash pass.
    """

    def __init__(self) -> None:
        self._parts: list[pa.Array] = []
        self._length = 0
        self._codes: Column | None = None

    def add(self, texts: pa.Array) -> slice:
        """Keep ``texts`` (nulls allowed); returns the handle that :meth:`rows` takes."""
        handle = slice(self._length, self._length + len(texts))
        self._parts.append(texts)
        self._length += len(texts)
        return handle

    def freeze(self) -> pa.StringArray:
        """The distinct texts; no more can be added."""
        texts = pa.concat_arrays(self._parts or [pa.array([], pa.string())])
        encoded = pc.dictionary_encode(texts)
        codes = encoded.indices
        if codes.null_count:
            codes = pc.fill_null(codes, NO_NAME)
        self._codes = np.asarray(codes, np.int32)
        self._parts = []
        return encoded.dictionary

    def rows(self, handle: slice) -> Column:
        """int32 rows of the frozen array, ``NO_NAME`` for a null."""
        if self._codes is None:
            raise RuntimeError("freeze the pool before asking for rows")
        return self._codes[handle]


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
