"""One string array for a whole Trace, whatever columns its texts came from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import NO_NAME, Column

__all__ = ["Handle", "StringPool", "distinct"]

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
    torch's emit_nvtx writes them): finding their few twins would cost more than it saves, so
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
