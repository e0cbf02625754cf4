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

from nvprobe.readers.nsys.payload_schemas import (
    FIRST_STRING,
    LAST_STRING,
    SCALARS,
    TEXTS,
    Entry,
    Form,
    Layout,
    Schema,
    Schemas,
    elements,
    hexadecimal,
    names_of,
    products,
    texts_of,
)
from nvprobe.trace import Column

_DEEPEST = 16
_MOST_ENTRIES = 2000
"""Entries read of one schema and all inside it: schemas may hold each other many times over."""
_BYTE, _HANDLE = 32, 80
_STRINGS = range(FIRST_STRING, LAST_STRING + 1)


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


@dataclass(frozen=True)
class _Scope:
    """Where in nested schemas the decoder is."""

    domain: int
    schema: str | None
    """Name of the outermost schema."""
    prefix: str = ""
    depth: int = 0

    def inside(self, name: str) -> _Scope:
        """The scope of a structure inside, ``name`` its field."""
        return replace(self, prefix=f"{self.prefix}{name}.", depth=self.depth + 1)


@dataclass
class _Walk:
    """A schema on its way through its payloads."""

    scope: _Scope
    schema: Schema
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

    def begin(self, entry: Entry, align: int) -> Column:
        """Where an entry begins: where the schema says, else after the one before, aligned."""
        if entry.offset is not None and not self.flexible:
            return self.part.begin + entry.offset
        align = max(min(align, self.schema.pack) if self.schema.pack else align, 1)
        within = self.at - self.part.begin
        return self.part.begin + -(-within // align) * align


@dataclass(frozen=True)
class _Field:
    """One entry in all payloads of its schema, with elements of a fixed size."""

    scope: _Scope
    entry: Entry
    index: int
    unit: int
    """Bytes of an element."""
    begin: Column
    count: Column
    """Elements in each payload."""
    whole: Column
    """Bool per payload: all elements are there."""

    @property
    def name(self) -> str:
        """Dotted name."""
        return self.scope.prefix + self.entry.name

    @property
    def is_array(self) -> bool:
        """Whether the schema says so, also of one element."""
        return self.entry.form != Form.SINGLE and not self.entry.indirect


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
        """Read payloads of one schema; a bare union does not say what it holds."""
        self._left = _MOST_ENTRIES
        if schema.layout in (Layout.STATIC, Layout.DYNAMIC):
            self._struct(_Scope(domain, schema.name), schema, part)
        else:
            self.skipped.add((schema.name, "(union)"))

    def decode_single(self, domain: int, kind: int, part: Part) -> None:
        """Read payloads that are one predefined type each, or any text."""
        self._left = _MOST_ENTRIES
        flags = Form.TERMINATED << 4 if FIRST_STRING <= kind <= LAST_STRING else 0
        alone = Schema(None, Layout.DYNAMIC, 0, 0, (Entry(flags, kind, "value", 0, 0),))
        self._struct(_Scope(domain, None), alone, part)

    def _struct(self, scope: _Scope, schema: Schema, part: Part) -> tuple[Column, Column]:
        """Read one structure of every part; (rows of ``part`` left whole, where each ends)."""
        walk = _Walk(scope, schema, part, part.begin.copy())
        rows = np.arange(len(part.event))
        if scope.depth > _DEEPEST:
            return rows[:0], rows[:0]
        for index, entry in enumerate(schema.entries):
            flexible, kept = walk.flexible, self._entry(walk, index, entry)
            if kept is None:
                self.skipped.add((scope.schema, scope.prefix + entry.name))
                if flexible or any(one.offset is None for one in schema.entries[index + 1 :]):
                    return rows[:0], rows[:0]  # no one knows where the next one begins
                walk.flexible = False
                continue
            if not kept.all():
                self.cut.update(walk.part.event[~kept].tolist())
                walk.keep(kept)
                rows = rows[kept]
        return rows, walk.at

    def _entry(self, walk: _Walk, index: int, entry: Entry) -> Column | None:
        """Read one entry and step over it.

        Bool per payload: it is whole so far; ``None`` where no one can say where it ends.
        """
        self._left -= 1
        if self._left < 0:
            return None
        extent = self.schemas.extent(walk.scope.domain, entry)
        is_text = FIRST_STRING <= entry.type <= LAST_STRING and not entry.indirect
        if is_text and (entry.form in (Form.TERMINATED, Form.COUNTED) or extent is None):
            return self._text(walk, entry)
        nested = self.schemas.schemas.get((walk.scope.domain, entry.type))
        if extent is None and nested is not None and entry.form == Form.SINGLE:
            return self._flexible(walk, entry, nested)
        if extent is None or extent[0] <= 0:
            return None
        return self._fixed(walk, index, entry, *extent)

    def _fixed(self, walk: _Walk, index: int, entry: Entry, unit: int, align: int) -> Column | None:
        """Read an entry whose elements have a fixed size."""
        begin, end = walk.begin(entry, align), walk.part.end
        form = Form.SINGLE if entry.indirect or entry.type in _STRINGS else entry.form
        count = self._count(walk, entry, form, begin, unit)
        if count is None:
            return None
        whole: Column = (count >= 0) & (count <= (end - begin) // unit) & (begin <= end)
        count = np.where(whole, count, 0)
        self._read(walk, _Field(walk.scope, entry, index, unit, begin, count, whole))
        walk.at = begin + count * unit
        walk.flexible |= form in (Form.TERMINATED, Form.COUNTED)
        if form == Form.TERMINATED:
            walk.at = np.minimum(walk.at + unit, end)
        return whole

    def _count(
        self, walk: _Walk, entry: Entry, form: int, begin: Column, unit: int
    ) -> Column | None:
        """How many elements an entry has in each payload; ``None`` where its length is unknown."""
        if form == Form.SINGLE:
            return np.ones(len(begin), np.int64)
        if form == Form.FIXED:
            return np.full(len(begin), entry.detail)
        if form == Form.TERMINATED:
            return (self._terminated(begin, unit, walk.part.end) - begin) // unit
        return walk.numbers.get(entry.detail) if form == Form.COUNTED else None

    def _flexible(self, walk: _Walk, entry: Entry, schema: Schema) -> Column | None:
        """A single structure inside of no fixed length."""
        part = Part(walk.part.event, walk.begin(entry, 1), walk.part.end)
        rows, ends = self._struct(walk.scope.inside(entry.name), schema, part)
        if not len(rows) and len(walk.at):
            return None
        kept = np.zeros(len(walk.at), bool)
        kept[rows] = True
        walk.at = walk.at.copy()
        walk.at[rows] = ends
        walk.flexible = True
        return kept

    def _read(self, walk: _Walk, what: _Field) -> None:
        """Keep the values of an entry whose elements have a fixed size."""
        here = Part(walk.part.event, what.begin, what.begin + what.count * what.unit)
        here, kind = here.take(what.whole), what.entry.type
        direct = not what.entry.indirect
        if direct and (kind in _STRINGS or (kind in TEXTS and what.is_array)):
            self._keep_text(what.scope, what.name, here, kind)
            return
        if kind == _BYTE and what.is_array:
            text = hexadecimal(*self._bytes(here))
            self._keep(Values(what.scope.schema, what.name, here.event, text=text))
            return
        event, begin = elements(here.event, here.begin, what.count[what.whole], what.unit)
        each = Part(event, begin, begin + what.unit)
        nested = self.schemas.schemas.get((what.scope.domain, kind)) if direct else None
        if nested is None:
            self._numbers(walk, what, each)
        elif nested.layout == Layout.UNION:
            self._union(walk, what, nested, each)
        else:
            self._struct(what.scope.inside(what.entry.name), nested, each)

    def _union(self, walk: _Walk, what: _Field, schema: Schema, each: Part) -> None:
        """The member of a union that another entry selects; the others are not there."""
        selected = walk.numbers.get(what.entry.detail)
        if selected is None or what.is_array:
            self.skipped.add((what.scope.schema, what.name))
            return
        selected = selected[what.whole]
        for place, member in enumerate(schema.entries):
            mine = selected == place
            if mine.any():
                alone = replace(schema, layout=Layout.STATIC, entries=(replace(member, offset=0),))
                self._struct(what.scope.inside(what.entry.name), alone, each.take(mine))

    def _numbers(self, walk: _Walk, what: _Field, each: Part) -> None:
        """Numbers and enumerations; integers may be lengths of what follows."""
        of, name, entry = what.scope.schema, what.name, what.entry
        enum = self.schemas.enum(what.scope.domain, entry)
        kind = SCALARS.get(entry.type) if enum is None else f"i{what.unit}"
        if kind is None or entry.indirect:
            self.skipped.add((of, name))
            return
        values = self._numbers_at(each.begin, kind)
        if kind[0] == "f":
            self._keep(Values(of, name, each.event, real=values.astype(np.float64)))
            return
        signed = values.astype(np.int64)  # unsigned 64-bit numbers wrap, as they do in SQLite
        text = None if enum is None else names_of(enum, signed)
        handle = entry.type == _HANDLE
        self._keep(Values(of, name, each.event, integer=signed, text=text, is_handle=handle))
        walk.numbers[what.index] = products(signed, what.count, what.whole)

    def _numbers_at(self, begin: Column, kind: str) -> Column:
        size = int(kind[1:])
        if not len(begin):
            return np.empty(0, kind)
        windows = np.lib.stride_tricks.sliding_window_view(self.data, size)
        numbers: Column = windows[begin].view(f"<{kind}")[:, 0]
        return numbers

    def _text(self, walk: _Walk, entry: Entry) -> Column | None:
        """A text of no fixed length: up to its zero, or as long as another entry says."""
        unit = TEXTS[entry.type][0]
        begin, end = walk.begin(entry, unit), walk.part.end
        length = walk.numbers.get(entry.detail)
        walk.flexible = True
        if entry.form == Form.COUNTED and length is not None:
            whole: Column = (length >= 0) & (length <= (end - begin) // unit) & (begin <= end)
            stop = after = begin + np.where(whole, length, 0) * unit
        elif entry.form == Form.TERMINATED and not entry.detail:
            whole = begin <= end
            stop = np.maximum(self._terminated(begin, unit, end), begin)
            after = np.minimum(stop + unit, end)
        else:
            return None  # a bare char*, an array of texts, or one of unknown length
        here = Part(walk.part.event, begin, stop).take(whole)
        self._keep_text(walk.scope, walk.scope.prefix + entry.name, here, entry.type)
        walk.at = after
        return whole

    def _keep_text(self, scope: _Scope, name: str, here: Part, kind: int) -> None:
        unit, encoding = TEXTS[kind]
        stop = np.minimum(self._terminated(here.begin, unit, here.end), here.end)
        raw = self._bytes(Part(here.event, here.begin, stop))
        self._keep(Values(scope.schema, name, here.event, text=texts_of(*raw, encoding)))

    def _keep(self, values: Values) -> None:
        if len(values.event):
            self.values.append(values)

    def _terminated(self, begin: Column, unit: int, end: Column) -> Column:
        """Where each text or array ends: at its first element of zero, else at ``end``."""
        if not len(begin):
            return begin
        zeros = self._zero_elements(unit)
        if not len(zeros):
            return end
        wanted = begin % unit * self._span + begin
        at = np.minimum(np.searchsorted(zeros, wanted), len(zeros) - 1)
        here = begin + zeros[at] - wanted
        same = (zeros[at] >= wanted) & (zeros[at] // self._span == begin % unit)
        return np.where(same, np.minimum(here, end), end)

    @property
    def _span(self) -> int:
        """More than any place in the bytes."""
        return len(self.data) + 1

    def _zero_elements(self, unit: int) -> Column:
        """Where ``unit`` zeros in a row begin: by remainder, times ``_span``, and by place."""
        if unit not in self._zeros:
            edge = np.flatnonzero(np.diff(self.data == 0, prepend=False, append=False))
            first, count = edge[::2], np.maximum(edge[1::2] - edge[::2] - unit + 1, 0)
            _, place = elements(first, first, count, 1)
            self._zeros[unit] = np.sort(place % unit * self._span + place)
        return self._zeros[unit]

    def _bytes(self, here: Part) -> tuple[Column, Column]:
        """(offsets, bytes): the stretches of all parts, one after the other."""
        length = here.end - here.begin
        offsets = np.concatenate(([0], np.cumsum(length)))
        place = np.arange(int(offsets[-1])) + np.repeat(here.begin - offsets[:-1], length)
        return offsets, self.data[place]
