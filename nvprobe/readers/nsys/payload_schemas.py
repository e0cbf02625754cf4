"""Layouts of structured NVTX payloads, as programs registered them and nsys exports them.

What the numbers mean follows the payload extension of NVTX (``nvToolsExtPayload.h``); sizes are
those of 64-bit Linux. A schema is known by its domain and id. Exports do not record the process, so
one that two processes define differently cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.tables import Rows, Tables
from nvprobe.trace import Column

Key = tuple[int, int]
"""(NVTX domain, schema id)."""

SCALARS: dict[int, str] = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "i8", 8: "u8", 9: "i8", 10: "u8",
    11: "i1", 12: "u1", 13: "i2", 14: "u2", 15: "i4", 16: "u4", 17: "i8", 18: "u8",
    19: "f4", 20: "f8", 22: "u8", 23: "u8", 24: "u4", 25: "u1", 26: "u2", 27: "u4", 32: "u1",
    42: "f2", 43: "f4", 44: "f8", 52: "f4",
    68: "u4", 69: "u4", 70: "u8", 71: "u4", 72: "u8", 73: "u4", 74: "u8", 80: "u8",
    **dict.fromkeys(range(128, 256), "u8"),
}  # fmt: skip
"""numpy type of each predefined entry type that is a number; 128 to 255 are timestamps."""

_OPAQUE = {21: 16, 33: 16, 34: 16, 45: 16, 50: 2}
"""Bytes of types that are skipped: long double, 128-bit numbers, bfloat16."""
TEXTS: dict[int, tuple[int, str]] = {
    1: (1, "utf-8"), 25: (1, "utf-8"), 26: (2, "utf-16-le"), 24: (4, "utf-32-le"),
    27: (4, "utf-32-le"), 75: (1, "utf-8"), 76: (1, "utf-8"), 77: (2, "utf-16-le"),
    78: (4, "utf-32-le"),
}  # fmt: skip
"""Bytes of a unit, and encoding: arrays of characters (1, 24 to 27) and strings (75 to 78)."""
FIRST_STRING, LAST_STRING = 75, 78
_MOST = 2**40
"""Lengths and offsets beyond this are damage; kept within, sums of them cannot wrap."""
_DEEPEST = 64
_POINTER = 8
_INDIRECT = 0b1110
"""Entry flags of addresses and offsets: what they lead to is elsewhere."""


class Form(IntEnum):
    """Array flags of an entry."""

    SINGLE = 0
    FIXED = 1
    TERMINATED = 2
    COUNTED = 3
    """Another entry of the schema holds the length."""
    COUNTED_ELSEWHERE = 4
    """Another payload of the event holds the length."""


class Layout(IntEnum):
    """Types of schemas."""

    STATIC = 1
    DYNAMIC = 2
    UNION = 3


@dataclass(frozen=True)
class Entry:
    """One field of a schema."""

    flags: int
    type: int
    """A predefined type, or the id of another schema or of an enumeration."""
    name: str
    detail: int
    """Length of an array or text, or the entry that holds it or selects the member of a union."""
    offset: int | None

    @property
    def form(self) -> int:
        """A :class:`Form`; others have no meaning yet."""
        return self.flags >> 4 & 7

    @property
    def indirect(self) -> bool:
        """Whether it is an address or an offset rather than the value itself."""
        return bool(self.flags & _INDIRECT)


@dataclass(frozen=True)
class EnumType:
    """An enumeration: names of values, and of bits where its entries are flags."""

    size: int
    names: dict[int, str]
    bits: dict[int, str]


_REDUCTION = "Reduction operation"
_NCCL_REDUCTIONS = EnumType(4, dict(enumerate(("Sum", "Prod", "Max", "Min", "Avg"))), {})


@dataclass(frozen=True)
class Schema:
    """The layout of one payload or part of one."""

    name: str | None
    layout: int
    size: int
    """Bytes of a static one, 0 where it is not recorded."""
    pack: int
    """Greatest alignment, 0 for the natural one."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Schemas:
    """Everything that was registered."""

    schemas: dict[Key, Schema | None]
    """``None`` for one that is defined in two ways."""
    enums: dict[Key, EnumType]
    _extents: dict[Key, tuple[int, int] | None] = field(default_factory=dict)

    @classmethod
    def read(cls, tables: Tables) -> Schemas:
        """Read the tables of an export; empty where it has none."""
        about = tables.read("NVTX_PAYLOAD_SCHEMAS")
        entries = tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES")
        return cls(_schemas(about, entries), _enums(tables))

    def extent(self, domain: int, entry: Entry, depth: int = 0) -> tuple[int, int] | None:
        """(bytes, alignment) of one element of an entry, ``None`` where that is not fixed.

        ``depth`` counts the structures around it; more than ``_DEEPEST`` have no known size.
        """
        if entry.indirect:
            return _POINTER, _POINTER
        if FIRST_STRING <= entry.type <= LAST_STRING:
            unit = TEXTS[entry.type][0]
            return (unit * entry.detail, unit) if entry.detail else None
        if entry.type in SCALARS:
            size = int(SCALARS[entry.type][1:])
            return size, size
        if entry.type in _OPAQUE:
            return _OPAQUE[entry.type], _OPAQUE[entry.type]
        if (enum := self.enum(domain, entry)) is not None:
            return enum.size, enum.size
        key = (domain, entry.type)
        if key not in self._extents:
            self._extents[key] = None  # what a schema that holds itself finds
            if depth < _DEEPEST:
                self._extents[key] = self._struct(domain, self.schemas.get(key), depth + 1)
        return self._extents[key]

    def enum(self, domain: int, entry: Entry) -> EnumType | None:
        """The enumeration that an entry is of; NCCL's own even where the export lacks it."""
        known = self.enums.get((domain, entry.type))
        if known is None and entry.name == _REDUCTION and entry.type not in SCALARS:
            return _NCCL_REDUCTIONS
        return known

    def _struct(self, domain: int, schema: Schema | None, depth: int) -> tuple[int, int] | None:
        """(bytes, alignment) of a static schema or a union, ``None`` for any other."""
        if schema is None or schema.layout not in (Layout.STATIC, Layout.UNION):
            return None
        end, widest = 0, 1
        for entry in schema.entries:
            extent = self.extent(domain, entry, depth)
            if extent is None or (entry.form > Form.FIXED and not entry.indirect):
                return None
            size, align = extent
            align = min(align, schema.pack) if schema.pack else align
            is_text = FIRST_STRING <= entry.type <= LAST_STRING
            if entry.form == Form.FIXED and not entry.indirect and not is_text:
                size *= entry.detail
            begin = 0 if schema.layout == Layout.UNION else -(-end // align) * align
            begin = entry.offset if entry.offset is not None else begin
            end, widest = max(end, begin + size), max(widest, align)
        size = schema.size or -(-end // widest) * widest
        return (size, widest) if size <= _MOST else None


def _schemas(about: Rows | None, entries: Rows | None) -> dict[Key, Schema | None]:
    defined: dict[Key, list[tuple[Entry, ...]]] = {}
    for key, fields in _definitions(entries):
        defined.setdefault(key, []).append(fields)
    facts: dict[Key, set[tuple[str | None, int, int, int]]] = {}
    if about is not None:
        columns = [about.ints(name, 0).tolist() for name in ("type", "payloadSize", "alignTo")]
        names = about.texts("name").to_pylist()
        for key, name, layout, size, pack in zip(_keys(about), names, *columns, strict=True):
            facts.setdefault(key, set()).add((name, layout, _within(size), _within(pack)))
    out: dict[Key, Schema | None] = {}
    for key, ways in defined.items():
        described = facts.get(key, {(None, Layout.STATIC.value, 0, 0)})
        agreed = len(described) == 1 and all(way == ways[0] for way in ways)
        out[key] = Schema(*next(iter(described)), ways[0]) if agreed else None
    return out


def _definitions(entries: Rows | None) -> Iterator[tuple[Key, tuple[Entry, ...]]]:
    """Every definition of a schema: its entries are numbered from 0, whatever stands between."""
    if entries is None:
        return
    names = [name or "" for name in entries.texts("name").to_pylist()]
    columns = [
        entries.ints(name, 0).tolist() for name in ("idx", "flags", "type", "arrayOrUnionDetail")
    ]
    offsets = entries.ints("offset", -1).tolist()
    under_way: dict[Key, list[Entry]] = {}
    for key, name, index, flags, kind, detail, offset in zip(
        _keys(entries), names, *columns, offsets, strict=True
    ):
        fields = under_way.setdefault(key, [])
        if index == 0 and fields:
            yield key, tuple(fields)
            fields.clear()
        place = _within(offset) if offset >= 0 else 0 if index == 0 else None
        fields.append(Entry(flags, kind, name or f"field {index}", _within(detail), place))
    for key, fields in under_way.items():
        yield key, tuple(fields)


def _within(number: int) -> int:
    return min(max(number, 0), _MOST)


def _enums(tables: Tables) -> dict[Key, EnumType]:
    """Enumerations; a value that two processes name differently keeps its first name."""
    about, entries = tables.read("NVTX_PAYLOAD_ENUMS"), tables.read("NVTX_PAYLOAD_ENUM_ENTRIES")
    if entries is None:
        return {}
    sizes = {} if about is None else dict(zip(_keys(about), about.ints("size", 4), strict=True))
    out: dict[Key, EnumType] = {}
    names = entries.texts("name").to_pylist()
    values, flags = entries.ints("value", 0).tolist(), entries.ints("isFlag", 0).tolist()
    for key, name, value, is_flag in zip(_keys(entries), names, values, flags, strict=True):
        size = int(sizes.get(key, 4))
        enum = out.setdefault(key, EnumType(size if size in (1, 2, 4, 8) else 4, {}, {}))
        (enum.bits if is_flag and value else enum.names).setdefault(value, name or str(value))
    return out


def _keys(rows: Rows) -> list[Key]:
    domains, ids = rows.ints("domainId", 0).tolist(), rows.ints("schemaId", 0).tolist()
    return list(zip(domains, ids, strict=True))


_MOST_INT = 2**63 - 1


def elements(event: Column, begin: Column, count: Column, unit: int) -> tuple[Column, Column]:
    """(event, begin) of every element of arrays that begin at ``begin``."""
    first = np.cumsum(count) - count
    places = np.repeat(begin - first * unit, count) + np.arange(int(count.sum())) * unit
    return np.repeat(event, count), places


def products(values: Column, count: Column, whole: Column) -> Column:
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


def names_of(enum: EnumType, values: Column) -> pa.StringArray:
    """Names of an enumeration's values; of flags, those of all bits that are set."""
    distinct, code = np.unique(values, return_inverse=True)
    names = []
    for value in distinct.tolist():
        bits = [name for bit, name in enum.bits.items() if value & bit == bit]
        names.append(enum.names.get(value, "|".join(bits) or None))
    return pa.array(names, pa.string()).take(pa.array(code))


def hexadecimal(offsets: Column, raw: Column) -> pa.StringArray:
    """Bytes as text, two digits each."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    pairs = np.stack([digits[raw >> 4], digits[raw & 15]], axis=1).reshape(-1)
    return _strings(offsets * 2, pairs)


def texts_of(offsets: Column, raw: Column, encoding: str) -> pa.StringArray:
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
