"""Columns of numbers as one text: what ``data.js`` turns back into typed arrays.

Each column is laid down in the smallest type that holds it, all of them behind one another, then
raw deflate, then base64. A browser unpacks it with ``DecompressionStream``, without any network.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvprobe.trace import Column

EXACT = 2**53
"""Whole numbers below this (104 days in ns) are exact in JavaScript."""

_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f8")


@dataclass(frozen=True, slots=True)
class Packed:
    """Where each column lies, and all of them as base64."""

    columns: dict[str, dict[str, Any]]
    """``type``, ``at`` (its first byte) and ``size`` (its numbers) by name."""
    text: str


def pack(columns: Mapping[str, Column]) -> Packed:
    """Pack columns of whole numbers below `EXACT`, or of floating-point numbers."""
    places: dict[str, dict[str, Any]] = {}
    parts: list[bytes] = []
    at = 0
    for name, values in columns.items():
        kind = _smallest(values)
        data = values.astype(f"<{kind}").tobytes()
        places[name] = {"type": kind, "at": at, "size": len(values)}
        parts.append(data + b"\0" * (-len(data) % 8))  # typed arrays begin at multiples of 8
        at += len(parts[-1])
    squeezed = zlib.compressobj(level=6, wbits=-15)
    data = squeezed.compress(b"".join(parts)) + squeezed.flush()
    return Packed(places, base64.b64encode(data).decode("ascii"))


def _smallest(values: Column) -> str:
    if values.dtype.kind == "f" or not len(values):
        return "f8" if len(values) else "u1"
    low, high = int(values.min()), int(values.max())
    if max(-low, high) >= EXACT:
        raise OverflowError(f"{max(-low, high)} is not exact in JavaScript")
    fits = (t for t in _TYPES[:-1] if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return next(fits, "f8")
