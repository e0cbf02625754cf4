"""The bytes of all texts of an Arrow array at once, where regular expressions are too slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.trace import Column

MOST_DIGITS = 18
"""Longer numbers do not fit in int64 for certain."""
_WORD = 8
_EACH = np.uint64(0x0101010101010101)
"""Times this, a byte stands in all eight of a word."""
_POWERS = 10 ** np.arange(_WORD + 1)
_BATCH = 1 << 13
"""So many texts at a time: what is kept for each of their bytes stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class TextBytes:
    """The texts of an Arrow string array one behind the other, where they lie."""

    data: Column
    """uint8, at least one word long."""
    begin: Column
    """int64 per text."""
    end: Column

    @classmethod
    def of(cls, texts: pa.StringArray) -> TextBytes:
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
        hit = np.flatnonzero(self.words(at) == first_word(marker))
        return self.goes_on(row, at, marker, hit)

    def goes_on(self, row: Column, at: Column, marker: bytes, hit: Column) -> Column:
        """Those of ``hit``, whose first word is the marker's, with the rest of it too."""
        begin = at[hit]
        fits = begin + len(marker) <= self.end[row[hit]]
        hit, begin = hit[fits], begin[fits]
        for place in range(_WORD, len(marker), _WORD):
            place = min(place, len(marker) - _WORD)  # the last word begins inside the one before
            same = self.words(begin + place) == first_word(marker[place:])
            hit, begin = hit[same], begin[same]
        return hit

    def numbers(self, begin: Column, end: Column) -> tuple[Column, Column]:
        """(int64 number, byte behind its last digit) from each byte ``begin`` on, up to ``end``.

        One of more than `MOST_DIGITS` digits is not read to its end.
        """
        value, behind = np.zeros(len(begin), np.int64), begin.copy()
        for low in range(0, len(begin), _BATCH):
            reading = np.arange(low, min(low + _BATCH, len(begin)))
            for _ in range(0, MOST_DIGITS, _WORD):
                letters = self.words(behind[reading])
                count = np.minimum(_digit_count(letters), end[reading] - behind[reading])
                value[reading] = value[reading] * _POWERS[count] + _value(letters, count)
                behind[reading] += count
                reading = reading[count == _WORD]
        return value, behind

    def slices(self, begin: Column, end: Column) -> pa.StringArray:
        """The bytes from ``begin`` to ``end``, as many texts."""
        offsets = np.zeros(len(begin) + 1, np.int32)
        np.cumsum(end - begin, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        for low in range(0, len(begin), _BATCH):
            own = offsets[low : low + _BATCH + 1]
            place = np.repeat(begin[low : low + _BATCH] - own[:-1], np.diff(own))
            place += np.arange(own[0], own[-1])
            data[own[0] : own[-1]] = self.data[place]
        return _strings(offsets, data)


def first_word(marker: bytes) -> int:
    """The first eight bytes of a marker, as :meth:`TextBytes.words` has them."""
    return int.from_bytes(marker[:_WORD], "little")


def _digit_count(letters: Column) -> Column:
    """How many of the eight letters of each word are digits, from the first on."""
    high = _EACH * np.uint64(0x80)
    value = letters ^ (_EACH * np.uint64(ord("0")))  # 0 to 9 for digits, more for all others
    other = ((((value & ~high) + _EACH * np.uint64(0x80 - 10)) | value) & high) >> np.uint64(7)
    below = (other & (~other + np.uint64(1))) - np.uint64(1)  # bits below the first other letter
    return ((below & _EACH) * _EACH >> np.uint64(56)).astype(np.int64)


def _value(letters: Column, count: Column) -> Column:
    """The number that the first ``count`` letters write: neighbors joined three times."""
    unused = ((_WORD - count) * 8).astype(np.uint64)
    digits = np.where(count > 0, letters << (unused & np.uint64(63)), np.uint64(0))
    digits &= _EACH * np.uint64(0x0F)
    pairs = digits * np.uint64(10 * 2**8 + 1) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = pairs * np.uint64(100 * 2**16 + 1) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000 * 2**32 + 1) >> np.uint64(32)).astype(np.int64)


def cut_out(texts: pa.StringArray, row: Column, begin: Column, end: Column) -> pa.StringArray:
    """Of some texts the bytes ``begin`` to ``end`` (no further than the text), one a row."""
    raw = TextBytes.of(texts)
    first, last = raw.begin[row], raw.end[row]
    length = last - first
    return raw.slices(first + np.minimum(begin, length), first + np.minimum(end, length))


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of some texts."""

    masks: pa.StringArray
    """The texts with one ``0`` for each number; `MOST_DIGITS` + 1 of them for a longer one."""
    _texts: TextBytes
    _place: Column
    """int32 first byte of each number, ascending."""
    _first: Column
    """int32 per text: row of ``_place`` of its first number, or where that would be."""

    @classmethod
    def of(cls, texts: pa.StringArray) -> Numbers:
        """A null counts as empty."""
        raw = TextBytes.of(texts)
        offsets, places = np.zeros(len(texts) + 1, np.int32), [np.empty(0, np.int32)]
        data = np.empty(raw.end.max(initial=0), np.uint8)
        for low in range(0, len(texts), _BATCH):
            begin, end = raw.begin[low : low + _BATCH], raw.end[low : low + _BATCH]
            used = raw.data[begin[0] : end[-1]]
            digit, number = _numbers(used, begin[begin < end] - begin[0])
            kept, count = _kept(digit, number)
            offsets[low + 1 : low + 1 + len(end)] = offsets[low] + count[end - begin[0]]
            masked = data[offsets[low] : offsets[low] + count[-1]]
            masked[:] = np.where(digit, ord("0"), used)[kept]
            places.append((number + begin[0]).astype(np.int32))
        place = np.concatenate(places)
        first = np.searchsorted(place, raw.begin).astype(np.int32)
        return cls(_strings(offsets, data), raw, place, first)

    def value(self, row: Column, position: Column) -> Column:
        """int64 number at a position, from 0 on, in each text of ``row``; it must be there."""
        place = self._place[self._first[row] + position]
        return self._texts.numbers(place, self._texts.end[row])[0]


def _numbers(data: Column, begin: Column) -> tuple[Column, Column]:
    """(whether each byte is a digit, where numbers begin) in texts that begin at some bytes."""
    digit = data - ord("0") < 10  # unsigned: what is less than "0" is large
    new = digit.copy()
    new[1:] &= ~digit[:-1]
    new[begin] = digit[begin]
    return digit, np.flatnonzero(new)


def _kept(digit: Column, number: Column) -> tuple[Column, Column]:
    """(whether a mask has each byte, of how many before each it has).

    It has the first digit of a number, and more of one that is too long.
    """
    kept = ~digit
    kept[number] = True
    count = np.zeros(len(kept) + 1, np.int32)
    np.cumsum(kept, out=count[1:])
    far = number[number + MOST_DIGITS < len(digit)]
    too_long = far[count[far + MOST_DIGITS + 1] == count[far + 1]]
    if len(too_long):
        kept[too_long[:, None] + np.arange(MOST_DIGITS + 1)] = True
        np.cumsum(kept, out=count[1:])
    return kept, count


def _strings(offsets: Column, data: Column) -> pa.StringArray:
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
