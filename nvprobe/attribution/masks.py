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

from nvprobe.attribution.text_bytes import Numbers
from nvprobe.trace import Column

ALIKE = 5
"""So many names that differ in their numbers alone are one name."""

_NUMBER = r"\d{1,18}(?:$|[^\w.])"


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
    before = rf"(?:^|[^a-z])(?:{words})[ #=:_/\-]+"
    row = _rows(pc.match_substring_regex(names, f"(?is){before}{_NUMBER}"))
    alike = _alike(names if len(row) == len(names) else names.take(pa.array(row)), before)
    row = row[alike.row]
    numbers = [ending[row], *alike.numbers]
    size = np.bincount(alike.mask)
    varies = np.stack([_differing(alike.mask, one) for one in numbers])
    apart = varies.max(axis=0) == size
    if not apart.all():
        apart = _differing(alike.mask, *numbers) == size
    index = np.choose(varies.argmax(axis=0)[alike.mask], numbers)
    kept = np.flatnonzero(apart[alike.mask])
    return Masked(row[kept], alike.masks.take(pa.array(alike.mask[kept])), index[kept])


@dataclass(frozen=True, slots=True)
class _Alike:
    """The names among some of which at least `ALIKE` differ in their numbers alone."""

    row: Column
    """int64, ascending."""
    mask: Column
    """int32 row of ``masks``, aligned with ``row``."""
    masks: pa.StringArray
    numbers: list[Column]
    """int64, aligned with ``row``: of the last step word and, if another in any, of the first."""


def _alike(names: pa.StringArray, before: str) -> _Alike:
    """Search masks for the step word's numbers, and read these where they stand in the names."""
    numbers = Numbers.of(names)
    forms = numbers.masks.dictionary_encode()
    masks = pc.replace_substring_regex(forms.dictionary, r"\d+", "#").dictionary_encode()
    mask = masks.indices.to_numpy(zero_copy_only=False)
    form = forms.indices.to_numpy(zero_copy_only=False)
    often = np.bincount(mask[form])[mask] >= ALIKE
    row = np.flatnonzero(often[form])
    form = form[row]
    last, first = (_numbers_in(forms.dictionary, often, which + before) for which in (".*", ".*?"))
    positions = (last,) if (last == first).all() else (last, first)
    found = [numbers.value(row, position[form]) for position in positions]
    return _Alike(row, mask[form], masks.dictionary, found)


def _numbers_in(masks: pa.StringArray, often: Column, before: str) -> Column:
    """int32: numbers that ``before`` a step word's number contains, per mask; 0 of a rare one."""
    some = masks.filter(pa.array(often))
    found = pc.extract_regex(some, f"(?is)^(?P<before>{before}){_NUMBER}").field("before")
    count = np.zeros(len(masks), np.int32)
    count[often] = pc.count_substring_regex(found, r"\d+").to_numpy(zero_copy_only=False)
    return count


def _differing(code: Column, *values: Column) -> Column:
    """How many different rows of ``values`` each code has."""
    row, owner = code, np.arange(code.max(initial=-1) + 1)
    for value in values:
        coded = pa.array(value).dictionary_encode()
        if len(coded.dictionary) == len(code):  # all differ
            return np.bincount(code)
        pair = row * np.int64(len(coded.dictionary)) + coded.indices.to_numpy()
        pairs = pa.array(pair).dictionary_encode()
        owner = owner[pairs.dictionary.to_numpy() // len(coded.dictionary)]
        row = pairs.indices.to_numpy()
    return np.bincount(owner)


def _rows(mask: pa.BooleanArray) -> Column:
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
