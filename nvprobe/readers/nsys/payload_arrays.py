"""Arrays of bytes into arrays of values: what the decoder of NVTX payloads is made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.payload_schemas import EnumType
from nvprobe.trace import Column

__all__ = ["elements", "hexadecimal", "names_of", "products", "texts_of"]

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
