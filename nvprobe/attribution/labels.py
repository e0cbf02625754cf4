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

_SEQUENCE, _OPERATOR_ID = b", seq = ", b", op_id = "
_OTHERS = (
    b", stashed seq = ",
    b", sizes = ",
    b", input_op_ids = ",
    b", trace_id = ",
    b", thread_id = ",
)
_MARKERS = (_SEQUENCE, _OPERATOR_ID, *_OTHERS)
"""Everything from the first of them on does not belong to the name."""
_MOST_DIGITS = 18
_WORD = 8
_EACH = np.uint64(0x0101010101010101)
"""Times this, a byte stands in all eight of a word."""
_POWERS = 10 ** np.arange(_WORD + 1)
_BATCH = 1 << 17


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
    """The texts of an Arrow string array one behind the other, where they lie."""

    data: Column
    """uint8, at least one word long."""
    begin: Column
    """int64 per text."""
    end: Column

    @classmethod
    def of(cls, texts: pa.StringArray) -> _Bytes:
        """A view; only what is shorter than a word is copied."""
        _, offsets, data = texts.buffers()
        borders = np.zeros(len(texts) + 1, np.int64)
        if len(texts):
            borders[:] = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
        used = np.frombuffer(data or b"", np.uint8)[: borders[-1]]
        if len(used) < _WORD:
            used = np.concatenate((used, np.zeros(_WORD, np.uint8)))
        return cls(used, borders[:-1], borders[1:])

    def words(self, at: Column) -> Column:
        """uint64 of the eight bytes from each byte on; behind the last text stand zeros."""
        last = len(self.data) - _WORD
        every = np.ndarray(last + 1, "<u8", buffer=self.data, strides=(1,))
        if int(at.max(initial=0)) <= last:
            return np.asarray(every[at])
        beyond = np.clip(at - last, 0, _WORD - 1).astype(np.uint64)
        return np.where(
            at < len(self.data), every[np.minimum(at, last)] >> beyond * np.uint64(8), np.uint64(0)
        )

    def starts_with(self, row: Column, at: Column, marker: bytes) -> Column:
        """Places in ``row`` of the texts that go on with ``marker`` at byte ``at``."""
        hit = np.flatnonzero(self.words(at) == _word(marker))
        return self.goes_on(row, at, marker, hit)

    def goes_on(self, row: Column, at: Column, marker: bytes, hit: Column) -> Column:
        """Those of ``hit``, whose first word is the marker's, with the rest of it too."""
        hit = hit[at[hit] + len(marker) <= self.end[row[hit]]]
        for place in range(_WORD, len(marker)):
            hit = hit[self.data[at[hit] + place] == marker[place]]
        return hit


def _word(marker: bytes) -> int:
    """The first eight bytes of a marker, as :meth:`_Bytes.words` has them."""
    return int.from_bytes(marker[:_WORD], "little")


def labels(texts: pa.StringArray) -> Labels:
    """Names without attributes, sequence numbers and operator ids; a null counts as empty."""
    raw = _Bytes.of(texts)
    cut = _first_attribute(texts, raw)
    row = np.flatnonzero(cut < raw.end)
    sequence, after = _number(raw, row, cut[row], _SEQUENCE)
    operator_id, _ = _number(raw, row, after, _OPERATOR_ID)
    return Labels(
        names=texts if not len(row) else _slices(raw, raw.begin, cut),
        sequence=_spread(sequence, row, len(texts)),
        operator_id=_spread(operator_id, row, len(texts)),
    )


def cut_out(texts: pa.StringArray, row: Column, begin: Column, end: Column) -> pa.StringArray:
    """Of some texts the bytes ``begin`` to ``end`` (no further than the text), one a row."""
    raw = _Bytes.of(texts)
    first, last = raw.begin[row], raw.end[row]
    length = last - first
    return _slices(raw, first + np.minimum(begin, length), first + np.minimum(end, length))


def _first_attribute(texts: pa.StringArray, raw: _Bytes) -> Column:
    """int64 byte per text where its first attribute begins; its end where it has none."""
    cut = raw.end.copy()
    comma = _found(pc.find_substring(texts, ", "))
    row = np.flatnonzero(comma >= 0)
    at = raw.begin[row] + comma[row]
    unknown = np.ones(len(row), bool)
    words = raw.words(at)
    for marker in _MARKERS:
        hit = raw.goes_on(row, at, marker, np.flatnonzero(words == _word(marker)))
        cut[row[hit]] = at[hit]
        unknown[hit] = False
    rest = row[unknown]  # a comma that is part of the name
    if len(rest):
        pattern = "|".join(marker.decode() for marker in _MARKERS)
        place = _found(pc.find_substring_regex(texts.take(pa.array(rest)), pattern))
        cut[rest[place >= 0]] = raw.begin[rest[place >= 0]] + place[place >= 0]
    return cut


def _found(places: pa.Array) -> Column:
    return places.fill_null(-1).to_numpy(zero_copy_only=False)


def _number(raw: _Bytes, row: Column, at: Column, marker: bytes) -> tuple[Column, Column]:
    """(number behind ``marker`` at byte ``at``, byte behind it) per row; (-1, ``at``) for none.

    The number ends at a comma or with the text.
    """
    out, after = np.full(len(row), -1, np.int64), at.copy()
    hit = raw.starts_with(row, at, marker)
    place, end = at[hit] + len(marker), raw.end[row[hit]]
    begin, value = place.copy(), np.zeros(len(hit), np.int64)
    reading = np.arange(len(hit))
    for _ in range(0, _MOST_DIGITS, _WORD):
        digits = raw.words(place[reading])
        count = np.minimum(_digit_count(digits), end[reading] - place[reading])
        value[reading] = value[reading] * _POWERS[count] + _value(digits, count)
        place[reading] += count
        reading = reading[count == _WORD]
    closed = place >= end
    closed[~closed] = raw.data[place[~closed]] == ord(",")
    sound = closed & (place > begin) & (place <= begin + _MOST_DIGITS)
    out[hit[sound]], after[hit[sound]] = value[sound], place[sound]
    return out, after


def _digit_count(letters: Column) -> Column:
    """How many of the eight letters of each word are digits, from the first on."""
    high = _EACH * np.uint64(0x80)
    value = letters ^ (_EACH * np.uint64(ord("0")))  # 0 to 9 for digits, more for all others
    other = ((((value & ~high) + _EACH * np.uint64(0x80 - 10)) | value) & high) >> np.uint64(7)
    below = (other & (~other + np.uint64(1))) - np.uint64(1)  # bits below the first other letter
    return ((below & _EACH) * _EACH >> np.uint64(56)).astype(np.int64)


def _value(letters: Column, count: Column) -> Column:
    """The number that the first ``count`` letters write: neighbours joined three times."""
    unused = ((_WORD - count) * 8).astype(np.uint64)
    digits = np.where(count > 0, letters << (unused & np.uint64(63)), np.uint64(0))
    digits &= _EACH * np.uint64(0x0F)
    pairs = digits * np.uint64(10 * 2**8 + 1) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = pairs * np.uint64(100 * 2**16 + 1) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000 * 2**32 + 1) >> np.uint64(32)).astype(np.int64)


def _spread(values: Column, row: Column, size: int) -> Column:
    out = np.full(size, -1, np.int64)
    out[row] = values
    return out


def _slices(raw: _Bytes, begin: Column, end: Column) -> pa.StringArray:
    """The bytes from ``begin`` to ``end``, as many texts; not all of their places at once."""
    offsets = np.zeros(len(begin) + 1, np.int32)
    np.cumsum(end - begin, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    for low in range(0, len(begin), _BATCH):
        own = offsets[low : low + _BATCH + 1]
        place = np.repeat(begin[low : low + _BATCH] - own[:-1], np.diff(own))
        place += np.arange(own[0], own[-1])
        data[own[0] : own[-1]] = raw.data[place]
    return pa.StringArray.from_buffers(len(begin), pa.py_buffer(offsets), pa.py_buffer(data))
