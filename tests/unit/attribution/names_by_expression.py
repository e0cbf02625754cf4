"""Names cleaned by one regular expression a rule: slow, and what the fast way must agree with."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.masks import ALIKE
from nvprobe.attribution.names import STEP_WORDS

WORDS = "|".join(sorted(STEP_WORDS, key=len, reverse=True))
INDEX_RULES = (
    rf"(?is)^(?P<name>(?:.*[^a-z])?(?:{WORDS}))[ #=:_/\-.]+(?P<index>\d{{1,18}})(?:/\d+)?\s*$",
    r"(?s)^(?P<name>.*[^\s#=])\s*[#=]\s*(?P<index>\d{1,18})\s*$",
)
STEP_LIKE = rf"(?is)^(?:.*[^a-z])?(?:{WORDS})$"
NUMBER = rf"(?is)(?:^|[^a-z])(?:{WORDS})[ #=:_/\-]+(?P<number>\d{{1,18}})(?:$|[^\w.])"


def names_and_numbers(texts: list[str]) -> list[tuple[str, int]]:
    """(name with masks, number) of each distinct text."""
    names, number = pa.array(texts), np.full(len(texts), -1)
    for rule in INDEX_RULES:
        found = pc.extract_regex(names, rule)
        hit = found.is_valid().to_numpy(zero_copy_only=False) & (number < 0)
        index = pc.fill_null(pc.struct_field(found, "index").cast(pa.int64()), -1).to_numpy()
        number = np.where(hit, index, number)
        names = pc.if_else(pa.array(hit), pc.struct_field(found, "name"), names)
    names, number = masked(names, number)
    return list(zip(names.to_pylist(), number.tolist(), strict=True))


def masked(names: pa.StringArray, number: np.ndarray) -> tuple[pa.StringArray, np.ndarray]:
    """With masks for numbers of step words in the middle of at least `ALIKE` names."""
    row = np.flatnonzero(pc.match_substring_regex(names, NUMBER))
    some = names.take(pa.array(row))
    masks = pc.replace_substring_regex(some, r"\d+", "#").to_pylist()
    ends = pc.match_substring_regex(some, STEP_LIKE).to_numpy(zero_copy_only=False)
    columns = [
        np.where(ends, number[row], -1),
        found(some, rf"(?s)^.*{NUMBER}"),
        found(some, NUMBER),
    ]
    out = names.to_pylist()
    for mask in set(masks):
        mine = [position for position, one in enumerate(masks) if one == mask]
        rows = {tuple(column[position] for column in columns) for position in mine}
        if len(mine) < ALIKE or len(rows) < len(mine):
            continue
        varying = max(columns, key=lambda column: len(set(column[mine].tolist())))
        for position in mine:
            out[row[position]], number[row[position]] = mask, varying[position]
    return pa.array(out), number


def found(texts: pa.StringArray, pattern: str) -> np.ndarray:
    """int64 of a step word's number."""
    return pc.struct_field(pc.extract_regex(texts, pattern), "number").cast(pa.int64()).to_numpy()
