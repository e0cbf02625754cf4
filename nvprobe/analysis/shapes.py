"""Input shapes of ranges: from the operators table of a torch trace, or from emit_nvtx's names.

Names of emit_nvtx are nearly all different, their shapes are few: each text is read once, where it
stands among all texts, and becomes the number of its shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.text_bytes import cut_out
from nvprobe.trace import NO_NAME, Column, Trace

_SIZES = ", sizes = "
_AFTER_SIZES = ", input_op_ids = "
_BATCH = 1 << 17
"""Texts looked at together: it bounds the bytes copied at once."""


@dataclass(frozen=True, slots=True)
class RangeShapes:
    """Input shapes by range."""

    code: Column
    """int32 row of ``texts`` per row of ``trace.ranges``, ``NO_NAME`` where not recorded."""
    texts: pa.StringArray
    """Distinct shapes as JSON text: ``[[2048, 512], [512]]``."""


def range_shapes(trace: Trace) -> RangeShapes:
    """The shapes of every range."""
    ranges, operators = trace.ranges, trace.operators
    named, in_names = _in_names(trace.strings)
    code = np.append(named, np.int32(NO_NAME))[ranges.name]
    if not len(operators):
        return RangeShapes(code, in_names)
    listed, in_table = _listed(trace.strings, operators.shapes)
    texts = pa.concat_arrays([in_names, in_table]).dictionary_encode()
    row = np.append(texts.indices.to_numpy(zero_copy_only=False), NO_NAME).astype(np.int32)
    code = row[code]
    own = code[operators.range]
    shape = np.where(listed >= 0, listed + len(in_names), NO_NAME)
    code[operators.range] = np.where(own != NO_NAME, own, row[shape])
    return RangeShapes(code, texts.dictionary)


def _listed(strings: pa.StringArray, rows: Column) -> tuple[Column, pa.StringArray]:
    """(which of the texts each string row is, -1 for none; the texts)."""
    used = np.zeros(len(strings) + 1, bool)
    used[rows] = True  # NO_NAME marks the spare last row
    place = np.cumsum(used) - 1
    place[-1] = NO_NAME
    return place[rows], strings.take(pa.array(np.flatnonzero(used[:-1])))


def _in_names(strings: pa.StringArray) -> tuple[Column, pa.StringArray]:
    """(which shapes each text names, int32, ``NO_NAME`` for none; the distinct shapes)."""
    code = np.full(len(strings), NO_NAME, np.int32)
    parts, known = [], 0
    for low in range(0, len(strings), _BATCH):
        texts = strings.slice(low, _BATCH)
        begin = _found(texts, _SIZES)
        rows = np.flatnonzero(begin >= 0)
        if not len(rows):
            continue
        shapes = _between(texts, rows, begin[rows] + len(_SIZES)).dictionary_encode()
        code[low + rows] = shapes.indices.to_numpy(zero_copy_only=False) + known
        parts.append(shapes.dictionary)
        known += len(shapes.dictionary)
    if not parts:
        return code, pa.array([], pa.string())
    distinct = pa.concat_arrays(parts).dictionary_encode()
    row = np.append(distinct.indices.to_numpy(zero_copy_only=False), NO_NAME)
    return row.astype(np.int32)[code], distinct.dictionary


def _between(texts: pa.StringArray, rows: Column, begin: Column) -> pa.StringArray:
    """Of some texts what stands from byte ``begin`` on, up to the operator ids behind it."""
    end = _found(texts, _AFTER_SIZES)[rows]
    for row in np.flatnonzero((end >= 0) & (end < begin)).tolist():  # a name that says so before
        raw = texts[int(rows[row])].as_py().encode()
        end[row] = raw.find(_AFTER_SIZES.encode(), int(begin[row]))
    return cut_out(texts, rows, begin, np.where(end < 0, np.iinfo(np.int64).max, end))


def _found(texts: pa.StringArray, part: str) -> Column:
    """int64 byte at which each text has ``part``, -1."""
    places = pc.find_substring(texts, part).fill_null(-1)
    return places.to_numpy(zero_copy_only=False).astype(np.int64)
