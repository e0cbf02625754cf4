"""Structured NVTX payloads of an nsys export: bytes, schemas, and the values they make.

``NVTX_EVENTS.binaryData`` (exports made with ``--include-blobs=true``, 2024.6 and later) begins
with a header of four 64-bit numbers, of which the last three are schema, bytes, and where the bytes
begin. Accounts of the last differ: it was also seen to be where they end. A schema belongs to the
event's domain; the first number is not always that. The layout of the bytes is in
``NVTX_PAYLOAD_SCHEMAS`` and its companions (``payload_schemas``). Other versions
export the same payloads as JSON (``payload_json``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.input_errors import printable
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.payload_schemas import FIRST_STRING, LAST_STRING, SCALARS, Schemas
from nvprobe.readers.nsys.payload_values import Decoder, Part, Values
from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Handle, Rows, StringPool, Tables
from nvprobe.trace import NO_NAME, NO_PAYLOAD, Column, PayloadFields

_HEADER = 32
_STRETCH = 1 << 26
"""Bytes decoded at once."""
_REFERENCED, _RAW = 1022, 1023
"""Predefined schemas: bytes that other payloads point into, and bytes of no known layout."""


@dataclass
class DecodedPayloads:
    """Values of all payloads, by event (row of the NVTX events) and field."""

    event: Column
    element: Column
    """Place among the values of its field in its event."""
    integer: Column
    real: Column
    codes: tuple[Column, Column]
    """Places of the schema's and the field's name in what the handles keep."""
    handles: tuple[Handle, Handle, Handle]
    """Names of schemas, names of fields, and the text of each value."""
    pool: StringPool

    def names(self) -> tuple[Column, Column, Column]:
        """int32 string rows of schema, field and text, once the pool is frozen."""
        schemas, fields, texts = (self.pool.rows(handle) for handle in self.handles)
        return schemas[self.codes[0]], fields[self.codes[1]], texts


@dataclass
class _Faults:
    """What could not be decoded, in payloads."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: set[tuple[str | None, str]] = field(default_factory=set)

    def add(self, what: str, payloads: Column) -> None:
        """Count the payloads of a mask."""
        if count := int(np.count_nonzero(payloads)):
            self.counts[what] += count

    def warnings(self) -> list[str]:
        """In words."""
        out = []
        if lost := sum(self.counts.values()):
            parts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
            noun = "payload was" if lost == 1 else "payloads were"
            out.append(f"{lost} structured NVTX {noun} not (wholly) decoded: {parts}")
        if self.skipped:
            named = sorted(f"{of or 'unnamed schema'}: {name}" for of, name in self.skipped)
            shown = ", ".join(printable(name, 60) for name in named[:3])
            more = "" if len(named) <= 3 else f" and {len(named) - 3} more"
            out.append(
                "fields of NVTX payloads whose type or place nvprobe does not decode are left "
                f"out: {shown}{more}"
            )
        return out


def decode_payloads(
    exported: ExportRows, tables: Tables, pool: StringPool
) -> DecodedPayloads | None:
    """All values of structured payloads; ``None`` where the export holds none.

    What cannot be decoded is counted in the warnings of ``exported``.
    """
    rows, faults = exported.rows.get("NVTX_EVENTS"), _Faults()
    if rows is None:
        return None
    blobs, values = rows.blobs("binaryData"), []
    if blobs.null_count < len(blobs):
        schemas, domains = Schemas.read(tables), rows.ints("domainId", 0)
        values = [
            one for part in _stretches(blobs) for one in _decoded(*part, domains, schemas, faults)
        ]
    values += _from_json(rows, tables, values, faults)
    exported.warnings += faults.warnings()
    return _joined(_resolved(values, tables), pool) if values else None


def _from_json(rows: Rows, tables: Tables, known: list[Values], faults: _Faults) -> list[Values]:
    """Payloads as JSON of events that have no decoded bytes."""
    inline, ids = rows.texts("jsonText"), rows.ints("jsonTextId", UNKNOWN)
    has = np.asarray(inline.is_valid(), bool) | (ids != UNKNOWN)
    for one in known:
        has[one.event] = False
    events = np.flatnonzero(has)
    if not len(events):
        return []
    wanted = np.unique(ids[events])
    place = np.searchsorted(wanted, ids[events])
    registered = tables.strings(wanted).take(pa.array(place))
    texts = pc.coalesce(inline.take(pa.array(events)), registered)
    found = np.asarray(texts.is_valid(), bool)
    values, broken = json_values(events[found], texts.drop_null())
    faults.counts.update({"of text that is not JSON": broken} if broken else {})
    return values


def _resolved(values: list[Values], tables: Tables) -> list[Values]:
    """Handles of registered strings as their texts: nsys writes ids of its string table."""
    handles = [one.integer for one in values if one.is_handle and one.integer is not None]
    if not handles:
        return values
    ids = np.unique(np.concatenate(handles))
    texts = tables.strings(ids)
    return [
        replace(one, text=texts.take(pa.array(np.searchsorted(ids, one.integer))))
        if one.is_handle and one.integer is not None
        else one
        for one in values
    ]


def _stretches(blobs: pa.ChunkedArray) -> Iterator[tuple[Column, Column, Column]]:
    """(events, offsets, bytes) of the payloads there are, so many at once as memory allows."""
    first = 0
    for chunk in blobs.chunks:
        known = np.asarray(chunk.is_valid(), bool)
        events = first + np.flatnonzero(known)
        first += len(chunk)
        if not len(events):
            continue
        here = chunk.drop_null() if chunk.null_count else chunk
        _, places, content = here.buffers()
        offsets = np.frombuffer(places, np.int32, len(here) + 1, here.offset * 4).astype(np.int64)
        data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
        bounds = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1] + 1, _STRETCH))
        for low, high in zip(bounds, [*bounds[1:], len(events)], strict=True):
            if low == high:
                continue
            base, end = offsets[low], offsets[high]
            yield events[low:high], offsets[low : high + 1] - base, data[base:end]


def _decoded(
    events: Column,
    offsets: Column,
    data: Column,
    domains: Column,
    schemas: Schemas,
    faults: _Faults,
) -> list[Values]:
    """The values of one stretch; ``domains`` are those of all events."""
    decoder = Decoder(schemas, data)
    schema, part = _payloads(events, offsets, data, faults)
    domain = domains[part.event]
    for key in sorted(set(zip(domain.tolist(), schema.tolist(), strict=True))):
        mine = part.take((domain == key[0]) & (schema == key[1]))
        if key[1] == _REFERENCED:
            continue
        if (known := schemas.schemas.get(key)) is not None:
            decoder.decode(key[0], known, mine)
        elif key[1] in SCALARS or FIRST_STRING <= key[1] <= LAST_STRING:
            decoder.decode_single(key[0], key[1], mine)
        elif key[1] == _RAW:
            faults.skipped.add((None, "(raw bytes)"))
        else:
            what = "of a schema defined in two ways" if key in schemas.schemas else "of no schema"
            faults.counts[what] += len(mine.event)
    faults.counts.update({"cut short": len(decoder.cut)} if decoder.cut else {})
    faults.skipped |= decoder.skipped
    return decoder.values


def _payloads(
    events: Column, offsets: Column, data: Column, faults: _Faults
) -> tuple[Column, Part]:
    """(schema, place) of the payload of every event; of several, of the first."""
    begin, length = offsets[:-1], np.diff(offsets)
    whole = length >= _HEADER
    faults.add("without a header", ~whole)
    events, begin, length = events[whole], begin[whole], length[whole]
    if not len(events):
        return begin, Part(events, begin, begin)
    head = np.lib.stride_tricks.sliding_window_view(data, _HEADER)[begin].view("<i8")
    _, schema, size, place = head.T
    fits = _fits(place, size, length)
    faults.add("after the first of their event", fits & (place > _HEADER))
    place = np.where(fits, place, _HEADER)
    fits |= _fits(place, size, length)
    faults.add("cut short", ~fits)
    start = begin + place
    part = Part(events, start, start + np.where(fits, size, 0))
    return schema[fits], part.take(fits)


def _fits(place: Column, size: Column, length: Column) -> Column:
    """Bool: ``size`` bytes at ``place`` lie behind the header and within ``length``."""
    inside: Column = (size >= 0) & (size <= length) & (place >= _HEADER)
    inside &= place <= length - np.clip(size, 0, length)
    return inside


def _joined(values: list[Values], pool: StringPool) -> DecodedPayloads:
    """One table of all values, by event and field."""
    schemas, fields = ({}, {})  # type: ignore[var-annotated]
    schema = [schemas.setdefault(one.schema, len(schemas)) for one in values]
    name = [fields.setdefault(one.field, len(fields)) for one in values]
    lengths = [len(one.event) for one in values]
    event = _end_to_end([one.event for one in values], np.int64)
    codes = np.repeat(schema, lengths).astype(np.int64), np.repeat(name, lengths).astype(np.int64)
    order = np.lexsort((codes[1], event))
    event, codes = event[order], (codes[0][order], codes[1][order])
    texts = pa.concat_arrays([pa.array([], pa.string()), *map(_text_of, values)])
    return DecodedPayloads(
        event=event,
        element=_places(event, codes[1]),
        integer=_end_to_end([_or(one, one.integer, NO_PAYLOAD) for one in values], np.int64)[order],
        real=_end_to_end([_or(one, one.real, np.nan) for one in values], np.float64)[order],
        codes=codes,
        handles=(
            pool.add(pa.array(list(schemas), pa.string())),
            pool.add(pa.array(list(fields), pa.string())),
            pool.add(texts.take(pa.array(order))),
        ),
        pool=pool,
    )


def _text_of(one: Values) -> pa.StringArray:
    return pa.nulls(len(one.event), pa.string()) if one.text is None else one.text


def _or(one: Values, column: Column | None, otherwise: float) -> Column:
    return np.full(len(one.event), otherwise) if column is None else column


def _end_to_end(parts: list[Column], kind: type) -> Column:
    return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="unsafe")


def _places(event: Column, name: Column) -> Column:
    """Place of each row among neighbors of the same event and name."""
    new = np.ones(len(event), bool)
    new[1:] = (event[1:] != event[:-1]) | (name[1:] != name[:-1])
    first = np.flatnonzero(new)
    lengths = np.diff(np.append(first, len(event)))
    return np.arange(len(event)) - np.repeat(first, lengths)


_WORD = 2**64


def json_values(events: Column, texts: pa.StringArray) -> tuple[list[Values], int]:
    """(values of all fields, events whose text is not JSON); ``texts`` has one for each event."""
    encoded = texts.dictionary_encode()
    code = np.asarray(encoded.indices.fill_null(0), np.int64)
    rows: list[tuple[str, Any]] = []
    first, broken = [0], np.zeros(len(encoded.dictionary), bool)
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            rows += _fields(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            broken[place] = True
        first.append(len(rows))
    begin = np.array(first)
    length = np.diff(begin)[code]
    if not len(events) or not len(rows):
        return [], int(broken[code].sum()) if len(broken) else 0
    start = np.cumsum(length) - length
    row = np.arange(int(length.sum())) + np.repeat(begin[code] - start, length)
    return _by_field(rows, np.repeat(events, length), row), int(broken[code].sum())


def _fields(document: Any) -> Iterator[tuple[str, Any]]:
    """Every member of an object; what is nested in it stays JSON text, one value each."""
    members = document.items() if isinstance(document, dict) else [("value", document)]
    for name, value in members:
        nested = isinstance(value, (dict, list))
        if value is not None:
            yield name, msgspec.json.encode(value).decode() if nested else value


def _by_field(rows: list[tuple[str, Any]], event: Column, row: Column) -> list[Values]:
    """Values of one kind and field together; integers beyond 64 bits stay text."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (name, value) in enumerate(rows):
        groups.setdefault((name, _kind(value)), []).append(place)
    group = np.zeros(len(rows), np.int64)
    within = np.zeros(len(rows), np.int64)
    for number, places in enumerate(groups.values()):
        group[places], within[places] = number, np.arange(len(places))
    order = np.argsort(group[row], kind="stable")
    bounds = np.searchsorted(group[row][order], np.arange(len(groups) + 1))
    out = []
    for number, ((name, kind), places) in enumerate(groups.items()):
        mine = order[bounds[number] : bounds[number + 1]]
        held = [rows[place][1] for place in places]
        which = within[row[mine]]
        if kind == "integer":
            signed = np.array([_signed(value) for value in held], np.int64)
            out.append(Values(None, name, event[mine], integer=signed[which]))
        elif kind == "real":
            out.append(Values(None, name, event[mine], real=np.array(held, np.float64)[which]))
        else:
            texts = pa.array([str(value) for value in held], pa.string())
            out.append(Values(None, name, event[mine], text=texts.take(pa.array(which))))
    return out


def _kind(value: Any) -> str:
    if isinstance(value, int) and -_WORD < 2 * value < 2 * _WORD:
        return "integer"
    return "real" if isinstance(value, float) else "text"


def _signed(value: int) -> int:
    """The 64 bits of an integer as a signed number, as SQLite keeps them."""
    return (value + _WORD // 2) % _WORD - _WORD // 2


def read_payload_fields(tables: Tables, names: Names) -> PayloadFields:
    """Fields of the payload schemas that programs registered."""
    rows, schemas = tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES"), tables.read("NVTX_PAYLOAD_SCHEMAS")
    if rows is None:
        return PayloadFields.absent()
    titles: dict[tuple[int, int], int] = {}
    if schemas is not None:
        keys = zip(
            schemas.ints("domainId", 0).tolist(), schemas.ints("schemaId", 0).tolist(), strict=True
        )
        titles = dict(zip(keys, names.payload_schemas.tolist(), strict=True))
    domain, schema = rows.ints("domainId", 0), rows.ints("schemaId", 0)
    title = [titles.get(key, NO_NAME) for key in zip(domain.tolist(), schema.tolist(), strict=True)]
    return PayloadFields(
        domain=domain,
        schema=schema,
        schema_name=np.array(title, np.int32),
        index=rows.ints("idx", 0),
        name=names.payload_fields,
        type=rows.ints("type", -1),
        offset=rows.ints("offset", 0),
    )
