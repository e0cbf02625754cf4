"""What torch's emit_nvtx appends to range names.

``aten::mm, seq = 4, op_id = 17, sizes = [[8, 4]]`` is the name ``aten::mm`` with attributes. Real
files have almost only unique texts, a million of which take seconds in regular expressions.
So look for the first comma of each text and read on from there, in the bytes of all texts at once;
only a text whose first comma begins no attribute is searched by regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.text_bytes import MOST_DIGITS, TextBytes, first_word
from nvprobe.trace import Column

_SEQUENCE, _OPERATOR_ID = b", seq = ", b", op_id = "
_OTHERS = (
    b", stashed seq = ",
    b", sizes = ",
    b", input_op_ids = ",
    b", trace_id = ",
    b", thread_id = ",
)
_MARKERS = (_SEQUENCE, _OPERATOR_ID, *_OTHERS)
"""Everything from the first of them on does not belong to the name."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Texts taken apart, row by row."""

    names: pa.StringArray
    """Texts up to their first attribute."""
    sequence: Column
    """int64 ``seq`` where it is the first attribute, -1."""
    operator_id: Column
    """int64 ``op_id`` where it is the first attribute or follows ``seq``, -1."""


def labels(texts: pa.StringArray) -> Labels:
    """Names without attributes, sequence numbers and operator ids; a null counts as empty."""
    raw = TextBytes.of(texts)
    cut = _first_attribute(texts, raw)
    row = np.flatnonzero(cut < raw.end)
    sequence, after = _number(raw, row, cut[row], _SEQUENCE)
    operator_id, _ = _number(raw, row, after, _OPERATOR_ID)
    return Labels(
        names=texts if not len(row) else raw.slices(raw.begin, cut),
        sequence=_spread(sequence, row, len(texts)),
        operator_id=_spread(operator_id, row, len(texts)),
    )


def _first_attribute(texts: pa.StringArray, raw: TextBytes) -> Column:
    """int64 byte per text where its first attribute begins; its end where it has none."""
    cut = raw.end.copy()
    comma = _found(pc.find_substring(texts, ", "))
    row = np.flatnonzero(comma >= 0)
    at = raw.begin[row] + comma[row]
    unknown = np.ones(len(row), bool)
    words = raw.words(at)
    for marker in _MARKERS:
        hit = raw.goes_on(row, at, marker, np.flatnonzero(words == first_word(marker)))
        cut[row[hit]] = at[hit]
        unknown[hit] = False
    rest = row[unknown]  # a comma that is part of the name
    if len(rest):
        pattern = "|".join(marker.decode() for marker in _MARKERS)
        place = _found(pc.find_substring_regex(texts.take(pa.array(rest)), pattern))
        cut[rest[place >= 0]] = raw.begin[rest[place >= 0]] + place[place >= 0]
    return cut


def _found(places: pa.Array) -> Column:
    return places.fill_null(-1).to_numpy(zero_copy_only=False)


def _number(raw: TextBytes, row: Column, at: Column, marker: bytes) -> tuple[Column, Column]:
    """(number behind ``marker`` at byte ``at``, byte behind it) per row; (-1, ``at``) for none.

    The number ends at a comma or with the text.
    """
    out, after = np.full(len(row), -1, np.int64), at.copy()
    hit = raw.starts_with(row, at, marker)
    place, end = at[hit] + len(marker), raw.end[row[hit]]
    value, behind = raw.numbers(place, end)
    closed = behind >= end
    closed[~closed] = raw.data[behind[~closed]] == ord(",")
    sound = closed & (behind > place) & (behind <= place + MOST_DIGITS)
    out[hit[sound]], after[hit[sound]] = value[sound], behind[sound]
    return out, after


def _spread(values: Column, row: Column, size: int) -> Column:
    out = np.full(size, -1, np.int64)
    out[row] = values
    return out
