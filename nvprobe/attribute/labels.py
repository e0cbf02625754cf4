"""What torch's emit_nvtx appends to range names.

``aten::mm, seq = 4, op_id = 17, sizes = [[8, 4]]`` is the name ``aten::mm`` with attributes. Real
files have almost only unique texts, a million of which take seconds in regular expressions.
So look for the first comma of each text and read on from there, in the bytes of all texts at once;
only a text whose first comma begins no attribute is searched by regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column

__all__ = ["Labels", "labels"]

_SEQUENCE, _OPERATOR_ID = b", seq = ", b", op_id = "
_OTHERS = (
    b", stashed seq = ",
    b", sizes = ",
    b", input_op_ids = ",
    b", trace_id = ",
    b", thread_id = ",
)
_MARKERS = (_SEQUENCE, _OPERATOR_ID, *_OTHERS)
"""Everything from the first of them on is no part of the name."""
_MOST_DIGITS = 18
_WORD = 8


@dataclass(frozen=True, slots=True)
class Labels:
    """Texts taken apart, row by row."""

    names: pa.StringArray
    """Texts up to their first attribute."""
    sequence: Column
    """int64 ``seq`` where it is the first attribute, -1."""
    operator_id: Column
    """int64 ``op_id`` where it is the first attribute or follows ``seq``, -1."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The texts of an Arrow string array one behind the other."""

    data: Column
    """uint8; behind the last text stand ``_WORD`` zeros."""
    begin: Column
    """int64 per text."""
    end: Column

    def starts_with(self, row: Column, at: Column, marker: bytes) -> Column:
        """Bool per row: the text goes on with ``marker`` at byte ``at``."""
        hit = np.flatnonzero(at + len(marker) <= self.end[row])
        hit = hit[self.words[at[hit]] == _word(marker)]
        for place in range(_WORD, len(marker)):
            hit = hit[self.data[at[hit] + place] == marker[place]]
        out = np.zeros(len(row), bool)
        out[hit] = True
        return out

    @property
    def words(self) -> Column:
        """uint64 of the eight bytes from each byte on; every marker has as many."""
        size = len(self.data) - _WORD + 1
        return np.ndarray(size, "<u8", buffer=self.data, strides=(1,))


def _word(marker: bytes) -> int:
    """The first eight bytes of a marker, as :attr:`_Bytes.words` has them."""
    return int.from_bytes(marker[:_WORD], "little")


def labels(texts: pa.StringArray) -> Labels:
    """Names without attributes, sequence numbers and operator ids; a null counts as empty."""
    raw = _bytes(texts)
    cut = _first_attribute(texts, raw)
    row = np.flatnonzero(cut < raw.end)
    sequence, after = _number(raw, row, cut[row], _SEQUENCE)
    operator_id, _ = _number(raw, row, after, _OPERATOR_ID)
    return Labels(
        names=_prefixes(texts, raw, cut),
        sequence=_spread(sequence, row, len(texts)),
        operator_id=_spread(operator_id, row, len(texts)),
    )


def _bytes(texts: pa.StringArray) -> _Bytes:
    _, offsets, data = texts.buffers()
    borders = np.zeros(len(texts) + 1, np.int64)
    if len(texts):
        borders[:] = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    used = np.frombuffer(data or b"", np.uint8)[: borders[-1]]
    return _Bytes(np.concatenate((used, np.zeros(_WORD, np.uint8))), borders[:-1], borders[1:])


def _first_attribute(texts: pa.StringArray, raw: _Bytes) -> Column:
    """int64 byte per text where its first attribute begins; its end where it has none."""
    cut = raw.end.copy()
    comma = _found(pc.find_substring(texts, ", "))
    row = np.flatnonzero(comma >= 0)
    at = raw.begin[row] + comma[row]
    unknown = np.ones(len(row), bool)
    words = raw.words[at]
    for marker in _MARKERS:
        likely = np.flatnonzero(words == _word(marker))
        hit = likely[raw.starts_with(row[likely], at[likely], marker)]
        cut[row[hit]] = at[hit]
        unknown[hit] = False
    rest = row[unknown]  # a comma that is part of the name
    if len(rest):
        pattern = "|".join(marker.decode() for marker in _MARKERS)
        place = _found(pc.find_substring_regex(texts.take(pa.array(rest)), pattern))
        cut[rest[place >= 0]] = raw.begin[rest[place >= 0]] + place[place >= 0]
    return cut


def _found(places: pa.Array) -> Column:
    return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _number(raw: _Bytes, row: Column, at: Column, marker: bytes) -> tuple[Column, Column]:
    """(number behind ``marker`` at byte ``at``, byte behind it) per row; (-1, ``at``) for none.

    The number ends at a comma or with the text.
    """
    out, after = np.full(len(row), -1, np.int64), at.copy()
    hit = np.flatnonzero(raw.starts_with(row, at, marker))
    place, end = at[hit] + len(marker), raw.end[row[hit]]
    begin, value = place.copy(), np.zeros(len(hit), np.int64)
    reading = np.arange(len(hit))
    for _ in range(0, _MOST_DIGITS, _WORD):
        letters = raw.words[place[reading]].view(np.uint8).reshape(-1, _WORD)
        digits = np.ascontiguousarray(letters.T) - np.uint8(ord("0"))  # no digit: 10 and more
        room, part = (end - place)[reading], value[reading]
        count, more = np.zeros(len(reading), np.int8), np.ones(len(reading), bool)
        for column, digit in enumerate(digits):
            more &= (digit <= 9) & (room > column)
            part = np.where(more, part * 10 + digit, part)
            count += more
        value[reading] = part
        place[reading] += count
        reading = reading[more]
    closed = place >= end
    closed[~closed] = raw.data[place[~closed]] == ord(",")
    sound = closed & (place > begin) & (place <= begin + _MOST_DIGITS)
    out[hit[sound]], after[hit[sound]] = value[sound], place[sound]
    return out, after


def _spread(values: Column, row: Column, size: int) -> Column:
    out = np.full(size, -1, np.int64)
    out[row] = values
    return out


def _prefixes(texts: pa.StringArray, raw: _Bytes, cut: Column) -> pa.StringArray:
    """Each text up to its cut; the array itself where nothing is cut."""
    if np.array_equal(cut, raw.end):
        return texts
    first, last = int(raw.begin[0]), int(raw.end[-1])
    lengths = np.stack((cut - raw.begin, raw.end - cut), axis=1).ravel()
    kept = np.repeat(np.tile([True, False], len(cut)), lengths)
    offsets = np.zeros(len(cut) + 1, np.int32)
    np.cumsum(cut - raw.begin, out=offsets[1:])
    data = raw.data[first:last][kept]
    return pa.StringArray.from_buffers(len(cut), pa.py_buffer(offsets), pa.py_buffer(data))
