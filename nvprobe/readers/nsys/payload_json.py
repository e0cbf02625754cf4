"""Values of NVTX payloads that nsys exports as JSON text (``jsonText``, ``jsonTextId``).

Programs attach the same few texts to many events, so each text is parsed once and its values are
given to every event that carries it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.payload_values import Values
from nvprobe.trace import Column

__all__ = ["json_values"]

_WORD = 2**64


def json_values(events: Column, texts: pa.StringArray) -> tuple[list[Values], int]:
    """(values of all fields, events whose text is no JSON); ``texts`` has one for each event."""
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
