"""One event of a torch trace, decoded with only the fields that a Trace has columns for.

Times are microseconds with three decimals, as text. A float64 holds them to the nanosecond only
below 2**43 µs (ulp 2**-10 µs), so events with larger ones (absolute times of 2023, about 1.7e15)
are decoded a second way, which keeps the digits.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column

__all__ = [
    "Arguments",
    "Event",
    "InexactTimes",
    "TextEvent",
    "nanoseconds",
    "nanoseconds_of_text",
]

_EXACT_BELOW = float(1 << 43)
_LARGEST = 9e15
"""Microseconds beyond which nanoseconds overflow int64."""

_NAMES = {
    "external": "External id",
    "external_2020": "external id",
    "registers": "registers per thread",
    "shared": "shared memory",
    "graph": "graph id",
    "graph_node": "graph node id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "types": "Input type",
    "shapes": "Input Dims",
    "values": "Concrete Inputs",
    "shapes_2020": "Input dims",
    "reserved": "Total Reserved",
    "allocated": "Total Allocated",
    "change": "Bytes",
    "device_id": "Device Id",
    "device_type": "Device Type",
    "address": "Addr",
    "event": "wait_on_cuda_event_id",
    "sync_kind": "cuda_sync_kind",
}


class Arguments(msgspec.Struct, gc=False, frozen=True, rename=_NAMES):
    """``args`` of an event; the order is that of real files, which msgspec decodes fastest."""

    external: int = -1
    sequence: int = -1
    forward_thread: int = -1
    device: int = -1
    context: int = -1
    stream: int = -1
    correlation: int = -1
    graph: int = -1
    graph_node: int = -1
    registers: int = -1
    shared: int = -1
    grid: list[int] | str | None = None
    block: list[int] | str | None = None
    bytes: int = -1
    values: msgspec.Raw = msgspec.Raw()
    types: msgspec.Raw = msgspec.Raw()
    shapes: msgspec.Raw = msgspec.Raw()
    reserved: int = -1
    allocated: int = -1
    change: int = 0
    device_id: int = -1
    device_type: int = -1
    address: int = 0
    sync_kind: str = ""
    event: int = -1
    name: str = ""
    external_2020: int = -1
    shapes_2020: msgspec.Raw = msgspec.Raw()


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One event, times as numbers."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: int | float = 0
    dur: int | float = 0
    args: Arguments = NO_ARGUMENTS
    id: int | str = -1


class TextEvent(msgspec.Struct, gc=False):
    """One event, its time as the text that stands in the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: int | float = 0
    args: Arguments = NO_ARGUMENTS
    id: int | str = -1


class InexactTimes(Exception):
    """A time is too large for a float to hold its nanoseconds."""


def nanoseconds(values: list[Any]) -> Column:
    """int64 ns of times in µs, exactly; raises :class:`InexactTimes` where floats cannot be.

    A time no int64 can hold is no time: 0.
    """
    micro = np.array(values, np.float64)
    micro[~(np.abs(micro) < _LARGEST)] = 0
    whole = np.floor(micro)
    part = micro - whole
    if len(micro) and np.abs(micro).max() >= _EXACT_BELOW and float in set(map(type, values)):
        raise InexactTimes
    return whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64)


def nanoseconds_of_text(values: list[Any]) -> Column:
    """int64 ns of decimal texts in µs; digits below the nanosecond are rounded."""
    texts = pa.array([bytes(value).strip(b'"') for value in values], pa.binary()).cast(pa.string())
    try:
        exact = pc.cast(texts, pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return np.array([_nanoseconds_of(text) for text in texts.to_pylist()], np.int64)
    # A decimal128 of scale 3 counts thousandths of a µs; its low word is the int64.
    words = np.frombuffer(exact.buffers()[1], np.int64).reshape(-1, 2)
    low, high = words[exact.offset : exact.offset + len(exact)].T
    return np.where(high == low >> 63, low, 0)


def _nanoseconds_of(text: str) -> int:
    try:
        value = int((Decimal(text) * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):
        return 0
    return value if abs(value) < 1 << 63 else 0
