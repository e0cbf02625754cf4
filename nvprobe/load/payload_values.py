"""Values of structured NVTX payloads: one pass a schema, over all of its payloads at once.

A payload is a stretch of bytes; a schema says what lies where in it. Every entry of a schema is
read for all payloads of that schema together, at a position that each payload has of its own, so
that what follows a text or an array of any length is found just the same. A payload that ends
before an entry does is *cut short*: what was read of it before stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from nvprobe.load.payload_schemas import (
    FIRST_STRING,
    LAST_STRING,
    SCALARS,
    TEXTS,
    Entry,
    EnumType,
    Form,
    Layout,
    Schema,
    Schemas,
)
from nvprobe.trace import Column

__all__ = ["Decoder", "Part", "Values"]

_DEEPEST = 16
_MOST_ENTRIES = 2000
"""Entries read of one schema and all inside it: schemas may hold each other many times over."""
_BYTE, _HANDLE = 32, 80
_MOST_INT = 2**63 - 1


@dataclass(frozen=True)
class Values:
    """Values of one field: of each, the event it belongs to and what it is."""

    schema: str | None
    field: str
    event: Column
    integer: Column | None = None
    real: Column | None = None
    text: pa.StringArray | None = None
    is_handle: bool = False
    """Whether the integers are handles of registered strings."""


@dataclass(frozen=True)
class Part:
    """The same stretch of many payloads: of each its event, and where it begins and ends."""

    event: Column
    begin: Column
    end: Column

    def take(self, rows: Column) -> Part:
        """Some of them, by mask or place."""
        return Part(self.event[rows], self.begin[rows], self.end[rows])


@dataclass
class _Walk:
    """A schema on its way through its payloads."""

    part: Part
    at: Column
    """Where the next entry of each begins, unless the schema says."""
    numbers: dict[int, Column] = field(default_factory=dict)
    """Integers read so far by entry: lengths and selectors of later ones."""
    flexible: bool = False
    """Whether something of no fixed length came before: offsets of the schema end there."""

    def keep(self, rows: Column) -> None:
        """Go on with some payloads."""
        self.part, self.at = self.part.take(rows), self.at[rows]
        self.numbers = {index: values[rows] for index, values in self.numbers.items()}


@dataclass
class Decoder:
    """Reads payloads out of one array of bytes."""

    schemas: Schemas
    data: Column
    """uint8: all payloads, one after the other."""
    values: list[Values] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    """Events of which a payload ended too early."""
    skipped: set[tuple[str | None, str]] = field(default_factory=set)
    """(schema, field) of entries that are not decoded."""
    _left: int = 0
    _zeros: dict[int, Column] = field(default_factory=dict)

    def decode(self, domain: int, schema: Schema, part: Part) -> None:
        """Read payloads of one schema; a bare union tells nothing of what it holds."""
        self._left = _MOST_ENTRIES
        if schema.layout in (Layout.STATIC, Layout.DYNAMIC):
            self._struct(domain, schema, part, schema.name, "", 0)
        else:
            self.skipped.add((schema.name, "(union)"))

    def decode_single(self, domain: int, kind: int, part: Part) -> None:
        """Read payloads that are one predefined type each, or any text."""
        self._left = _MOST_ENTRIES
        flags = Form.TERMINATED << 4 if FIRST_STRING <= kind <= LAST_STRING else 0
        entry = Entry(flags, kind, "value", 0, 0)
        self._struct(domain, Schema(None, Layout.DYNAMIC, 0, 0, (entry,)), part, None, "", 0)

    def _struct(
        self, domain: int, schema: Schema, part: Part, of: str | None, prefix: str, depth: int
    ) -> tuple[Column, Column]:
        """Read one structure of every part; (rows of ``part`` left whole, where each ends)."""
        walk = _Walk(part, part.begin.copy())
        rows = np.arange(len(part.event))
        if depth > _DEEPEST:
            return rows[:0], rows[:0]
        for index, entry in enumerate(schema.entries):
            before = len(walk.at)
            kept = self._entry(domain, schema, walk, index, entry, (of, prefix, depth))
            if kept is None:
                self.skipped.add((of, prefix + entry.name))
                return rows[:0], rows[:0]
            if before and not kept.all():
                self.cut.update(walk.part.event[~kept].tolist())
                walk.keep(kept)
                rows = rows[kept]
        return rows, walk.at

    def _entry(
        self,
        domain: int,
        schema: Schema,
        walk: _Walk,
        index: int,
        entry: Entry,
        place: tuple[str | None, str, int],
    ) -> Column | None:
        """Read one entry and step over it.

        Bool per payload: it is whole so far; ``None`` where no one can say where it ends.
        """
        of, prefix, depth = place
        name = prefix + entry.name
        self._left -= 1
        if self._left < 0:
            return None
        nested = self.schemas.schemas.get((domain, entry.type))
        extent = self.schemas.extent(domain, entry)
        if extent is None and nested is not None and entry.form == Form.SINGLE:
            return self._nested_flexible(domain, nested, walk, (of, name + ".", depth))
        is_text = FIRST_STRING <= entry.type <= LAST_STRING and not entry.indirect
        unit, align = extent if extent else (TEXTS[entry.type][0],) * 2 if is_text else (0, 0)
        if unit <= 0:
            return None
        begin = self._position(schema, walk, entry, align)
        form = Form.SINGLE if entry.indirect else entry.form
        if is_text and (form in (Form.TERMINATED, Form.COUNTED) or not extent):
            return self._text(walk, entry, begin, (of, name))
        if form > Form.COUNTED:
            return None
        count = self._count(walk, entry, begin, unit, is_text=is_text)
        if count is None:
            return None
        whole: Column = (count >= 0) & (count <= (walk.part.end - begin) // unit)
        whole &= begin <= walk.part.end
        count = np.where(whole, count, 0)
        self._read(domain, walk, index, entry, begin, count, whole, unit, (of, name, depth))
        walk.at = begin + count * unit
        walk.flexible |= form in (Form.TERMINATED, Form.COUNTED)
        if form == Form.TERMINATED:
            walk.at = np.minimum(walk.at + unit, walk.part.end)
        return whole

    def _nested_flexible(
        self, domain: int, schema: Schema, walk: _Walk, place: tuple[str | None, str, int]
    ) -> Column | None:
        """A single structure inside of no fixed length."""
        of, prefix, depth = place
        part = Part(walk.part.event, walk.at, walk.part.end)
        rows, ends = self._struct(domain, schema, part, of, prefix, depth + 1)
        if not len(rows) and len(walk.at):
            return None
        kept = np.zeros(len(walk.at), bool)
        kept[rows] = True
        walk.at = walk.at.copy()
        walk.at[rows] = ends
        walk.flexible = True
        return kept

    def _position(self, schema: Schema, walk: _Walk, entry: Entry, align: int) -> Column:
        """Where an entry begins: where the schema says, else after the one before, aligned."""
        if entry.offset is not None and not walk.flexible:
            return walk.part.begin + entry.offset
        align = max(min(align, schema.pack) if schema.pack else align, 1)
        within = walk.at - walk.part.begin
        return walk.part.begin + -(-within // align) * align

    def _count(
        self, walk: _Walk, entry: Entry, begin: Column, unit: int, *, is_text: bool
    ) -> Column | None:
        """How many elements an entry has in each payload; ``None`` where its length is unknown."""
        form = Form.SINGLE if entry.indirect or is_text else entry.form
        if form == Form.FIXED:
            return np.full(len(begin), entry.detail)
        if form == Form.COUNTED:
            return walk.numbers.get(entry.detail)
        if form == Form.TERMINATED:
            return (self._terminated(begin, unit, walk.part.end) - begin) // unit
        return np.ones(len(begin), np.int64)

    def _read(
        self,
        domain: int,
        walk: _Walk,
        index: int,
        entry: Entry,
        begin: Column,
        count: Column,
        whole: Column,
        unit: int,
        place: tuple[str | None, str, int],
    ) -> None:
        """Keep the values of an entry whose elements have a fixed size."""
        of, name, depth = place
        here = Part(walk.part.event, begin, begin + count * unit).take(whole)
        is_array = entry.form != Form.SINGLE and not entry.indirect
        if entry.type in TEXTS and not entry.indirect and (is_array or entry.type >= FIRST_STRING):
            self._keep_text(of, name, here, entry.type)
            return
        if entry.type == _BYTE and is_array and not entry.indirect:
            self._keep(Values(of, name, here.event, text=_hexadecimal(*self._bytes(here))))
            return
        each = _elements(here, count[whole], unit)
        nested = self.schemas.schemas.get((domain, entry.type))
        if nested is not None and nested.layout == Layout.UNION and not entry.indirect:
            self._union(domain, nested, walk, entry, whole, each, place)
        elif nested is not None and not entry.indirect:
            self._struct(domain, nested, each, of, name + ".", depth + 1)
        else:
            self._numbers(domain, walk, index, entry, each, count, whole, unit, (of, name))

    def _union(
        self,
        domain: int,
        schema: Schema,
        walk: _Walk,
        entry: Entry,
        whole: Column,
        each: Part,
        place: tuple[str | None, str, int],
    ) -> None:
        """The member of a union that another entry selects; the others are not there."""
        of, name, depth = place
        selected = walk.numbers.get(entry.detail)
        if selected is None or entry.form != Form.SINGLE:
            self.skipped.add((of, name))
            return
        selected = selected[whole]
        for place_of, member in enumerate(schema.entries):
            mine = selected == place_of
            if mine.any():
                alone = replace(schema, layout=Layout.STATIC, entries=(replace(member, offset=0),))
                self._struct(domain, alone, each.take(mine), of, name + ".", depth + 1)

    def _numbers(
        self,
        domain: int,
        walk: _Walk,
        index: int,
        entry: Entry,
        each: Part,
        count: Column,
        whole: Column,
        unit: int,
        place: tuple[str | None, str],
    ) -> None:
        """Numbers and enumerations; integers may be lengths of what follows."""
        of, name = place
        enum = self.schemas.enum(domain, entry)
        kind = SCALARS.get(entry.type) if enum is None else f"i{unit}"
        if kind is None or entry.indirect:
            self.skipped.add((of, name))
            return
        values = self._numbers_at(each.begin, kind)
        if kind[0] == "f":
            self._keep(Values(of, name, each.event, real=values.astype(np.float64)))
            return
        signed = values.astype(np.int64)  # unsigned 64-bit numbers wrap, as they do in SQLite
        text = None if enum is None else _names(enum, signed)
        handle = entry.type == _HANDLE
        self._keep(Values(of, name, each.event, integer=signed, text=text, is_handle=handle))
        walk.numbers[index] = _products(signed, count, whole)

    def _numbers_at(self, begin: Column, kind: str) -> Column:
        size = int(kind[1:])
        if not len(begin):
            return np.empty(0, kind)
        windows = np.lib.stride_tricks.sliding_window_view(self.data, size)
        numbers: Column = windows[begin].view(f"<{kind}")[:, 0]
        return numbers

    def _text(
        self, walk: _Walk, entry: Entry, begin: Column, place: tuple[str | None, str]
    ) -> Column | None:
        """A text of no fixed length: up to its zero, or as long as another entry says."""
        of, name = place
        unit = TEXTS[entry.type][0]
        walk.flexible = True
        end = walk.part.end
        if entry.form == Form.COUNTED:
            length = walk.numbers.get(entry.detail)
            if length is None:
                return None
            whole: Column = (length >= 0) & (length <= (end - begin) // unit) & (begin <= end)
            stop = begin + np.where(whole, length, 0) * unit
            after = stop
        elif entry.form == Form.TERMINATED and not entry.detail:
            whole = begin <= end
            stop = np.maximum(self._terminated(begin, unit, end), begin)
            after = np.minimum(stop + unit, end)
        else:
            return None  # a bare char*, or an array of texts
        self._keep_text(of, name, Part(walk.part.event, begin, stop).take(whole), entry.type)
        walk.at = after
        return whole

    def _keep_text(self, of: str | None, name: str, here: Part, kind: int) -> None:
        unit, encoding = TEXTS[kind]
        stop = np.minimum(self._terminated(here.begin, unit, here.end), here.end)
        raw = self._bytes(Part(here.event, here.begin, stop))
        self._keep(Values(of, name, here.event, text=_texts(*raw, encoding)))

    def _keep(self, values: Values) -> None:
        if len(values.event):
            self.values.append(values)

    def _terminated(self, begin: Column, unit: int, end: Column) -> Column:
        """Where each text or array ends: at its first element of zero, else at ``end``."""
        if not len(begin):
            return begin
        ends = self._zero_elements(unit)
        out = end.copy()
        for phase in range(unit):
            mine = np.flatnonzero(begin % unit == phase)
            of_phase = ends[ends % unit == phase]
            at = np.searchsorted(of_phase, begin[mine])
            found = at < len(of_phase)
            out[mine[found]] = np.minimum(of_phase[at[found]], end[mine[found]])
        return out

    def _zero_elements(self, unit: int) -> Column:
        """First bytes of ``unit`` zeros in a row."""
        if unit not in self._zeros:
            zero = self.data == 0
            for shift in range(1, unit):
                zero = zero[:-1] & (self.data[shift:] == 0)
            self._zeros[unit] = np.flatnonzero(zero)
        return self._zeros[unit]

    def _bytes(self, here: Part) -> tuple[Column, Column]:
        """(offsets, bytes): the stretches of all parts, one after the other."""
        length = here.end - here.begin
        offsets = np.concatenate(([0], np.cumsum(length)))
        place = np.arange(int(offsets[-1])) + np.repeat(here.begin - offsets[:-1], length)
        return offsets, self.data[place]


def _elements(here: Part, count: Column, unit: int) -> Part:
    """Every element of arrays as a part of its own."""
    first = np.cumsum(count) - count
    begin = np.repeat(here.begin - first * unit, count) + np.arange(int(count.sum())) * unit
    return Part(np.repeat(here.event, count), begin, begin + unit)


def _products(values: Column, count: Column, whole: Column) -> Column:
    """A number per payload: what it holds, of an array (of dimensions) the product; else -1."""
    out = np.full(len(whole), -1, np.int64)
    length = count[whole]
    if (length == 1).all():
        out[whole] = values
        return out
    some = np.flatnonzero(whole)[length > 0]
    first = (np.cumsum(length) - length)[length > 0]
    sizes = np.clip(values.astype(np.float64), -1, _MOST_INT)
    product = np.multiply.reduceat(sizes, first) if len(first) else sizes
    out[some] = np.where((product >= 0) & (product < 2.0**62), product, -1).astype(np.int64)
    return out


def _names(enum: EnumType, values: Column) -> pa.StringArray:
    """Names of an enumeration's values; of flags, those of all bits that are set."""
    distinct, code = np.unique(values, return_inverse=True)
    names = []
    for value in distinct.tolist():
        bits = [name for bit, name in enum.bits.items() if value & bit == bit]
        names.append(enum.names.get(value, "|".join(bits) or None))
    return pa.array(names, pa.string()).take(pa.array(code))


def _hexadecimal(offsets: Column, raw: Column) -> pa.StringArray:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    pairs = np.stack([digits[raw >> 4], digits[raw & 15]], axis=1).reshape(-1)
    return _strings(offsets * 2, pairs)


def _texts(offsets: Column, raw: Column, encoding: str) -> pa.StringArray:
    """Texts in UTF-8; bytes that are none in their encoding become U+FFFD."""
    binary = _strings(offsets, raw).cast(pa.binary())
    if encoding == "utf-8":
        try:
            texts = binary.cast(pa.string())
            texts.validate(full=True)
            return texts
        except pa.ArrowInvalid:
            pass
    encoded = binary.dictionary_encode()  # few texts are different
    decoded = [one.decode(encoding, "replace") for one in encoded.dictionary.to_pylist()]
    return pa.array(decoded, pa.string()).take(encoded.indices)


def _strings(offsets: Column, raw: Column) -> pa.StringArray:
    """A string array of bytes as they are, whether or not they are UTF-8."""
    places, content = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw)
    return pa.StringArray.from_buffers(len(offsets) - 1, places, content)
