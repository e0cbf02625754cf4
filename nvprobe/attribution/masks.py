"""Names of steps with numbers in their middle: ``iter 17 of request 5`` is ``iter # of request``.

These are names of schedulers and engines that `engines` does not know; without masks each call
would be a row of its own. Numbers of layers and other places stay: a mask is for names in which a
step word has a number, and for at least `ALIKE` of them that differ in their numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column

ALIKE = 5
"""So many names that differ in their numbers alone are one name."""


@dataclass(frozen=True, slots=True)
class Masked:
    """The names among some that are masked."""

    row: Column
    """int64 row of the names, ascending."""
    names: pa.StringArray
    """With ``#`` for numbers, aligned with ``row``, like ``index``."""
    index: Column
    """int64: the step word's number that varies most, the last of these."""


def mask_numbers(names: pa.StringArray, ending: Column, words: str) -> Masked:
    """Masks of ``names``, from which a step word's number at the end is cut (int64, -1).

    ``words`` is a regular expression of step words. ``decode.0.proj`` and ``decode_0_proj`` are
    modules. Names are one where the numbers of step words tell them apart, as in ``step 7: 3
    requests``; ``decode 7 layer 3`` stays, for many of them are in one step.
    """
    number = rf"(?is)(?:^|[^a-z])(?:{words})[ #=:_/\-]+(?P<number>\d{{1,18}})(?:$|[^\w.])"
    row = _rows(pc.match_substring_regex(names, number))
    if len(row) < ALIKE:
        return Masked(row[:0], names[:0], row[:0])
    some = names.take(pa.array(row))
    masks = pc.replace_substring_regex(some, r"\d+", "#").dictionary_encode()
    code = masks.indices.to_numpy(zero_copy_only=False)
    first = _numbers(some, number)
    last = _numbers(some, rf"(?s)^.*{number}")
    numbers = (ending[row], last, first)
    size = np.bincount(code)
    joined = (size >= ALIKE) & (_differing(code, *numbers) == size)
    varies = np.stack([_differing(code, one) for one in numbers])
    index = np.choose(varies.argmax(axis=0)[code], numbers)
    kept = joined[code]
    return Masked(row[kept], masks.filter(pa.array(kept)).dictionary_decode(), index[kept])


def _differing(code: Column, *values: Column) -> Column:
    """How many different rows of ``values`` each code has."""
    order = np.lexsort((*values, code))
    columns = [one[order] for one in (code, *values)]
    new = np.ones(len(order), bool)
    new[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
    return np.bincount(columns[0][new])


def _numbers(texts: pa.StringArray, pattern: str) -> Column:
    found = pc.struct_field(pc.extract_regex(texts, pattern), "number")
    return found.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _rows(mask: pa.BooleanArray) -> Column:
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
