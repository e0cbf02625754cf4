"""Range names: torch attributes come off, a number at the end becomes an index.

Everything is done with Arrow's string functions: real emit_nvtx files have almost only unique
texts, and Python's ``re`` takes seconds a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.engines import Role, parse
from nvprobe.attribution.labels import labels
from nvprobe.attribution.masks import mask_numbers
from nvprobe.errors import UsageError
from nvprobe.trace import Column

STEP_WORDS = (
    "step",
    "iter",
    "iteration",
    "batch",
    "microbatch",
    "epoch",
    "request",
    "replay",
    "decode",
    "prefill",
    "token",
    "generate",
    "rollout",
    "episode",
    "frame",
    "round",
    "profilerstep",
)
"""A name whose last word is one of these is step-like: any separator before its number is cut."""

NO_TEXT = "(no name)"
"""What a range without a message, or with an empty one, is called."""
_WORDS = "|".join(sorted(STEP_WORDS, key=len, reverse=True))
_STEP_LIKE = rf"(?is)^(?:.*[^a-z])?(?:{_WORDS})$"
_INDEX_RULES = (
    rf"(?is)^(?P<name>(?:.*[^a-z])?(?:{_WORDS}))[ #=:_/\-.]+(?P<index>\d{{1,18}})(?:/\d+)?\s*$",
    r"(?s)^(?P<name>.*[^\s#=])\s*[#=]\s*(?P<index>\d{1,18})\s*$",
)


_BEFORE, _PART = r"(^|[^\w./~-])", r"[^/\s:\"',()]+"
_FOLDERS = (
    rf"{_BEFORE}/(?:home|homes|Users|root|tmp|var|mnt|data|scratch|work|workspace)/(?:{_PART}/)*"
)
_HOME = rf"{_BEFORE}/(?:home|homes|Users)/{_PART}(?P<end>$|[\s:\"',()])"


@dataclass(frozen=True, slots=True)
class CleanNames:
    """Distinct clean names, and what was taken off each original text."""

    names: pa.StringArray
    """Distinct clean names."""
    code: Column
    """int32 per original text: row of ``names``."""
    index: Column
    """int64 per original text: the number that ended it, -1."""
    sequence: Column
    """int64 per original text: autograd sequence number, -1."""
    operator_id: Column
    """int64 per original text: ``op_id``, -1."""
    step_like: Column
    """bool per clean name."""
    masked: Column
    """bool per clean name: ``#`` stands for numbers in it, of which one is a step's."""
    role: Column
    """int8 :class:`~nvprobe.attribution.engines.Role` per clean name, -1 for most."""
    step_rules: tuple[str, ...] = ()
    """The user's own names of steps (``--step-name``)."""


def clean_names(
    texts: pa.StringArray, index_rules: Sequence[str] = (), step_rules: Sequence[str] = ()
) -> CleanNames:
    """Clean the names of ranges.

    ``index_rules`` are regular expressions (RE2) with the groups ``name`` and ``index`` that match
    a whole name; they are tried before the built-in rules. ``step_rules`` are names of steps (see
    ``engines.parse``). Raises UsageError for one that is not a rule.
    """
    found = labels(texts)
    # Distinct first: 1.5 M emit_nvtx texts are a few hundred names once the attributes are off.
    coded = found.names.dictionary_encode()
    code = coded.indices.to_numpy(zero_copy_only=False)
    known = parse(coded.dictionary, step_rules)
    named = _replaced(coded.dictionary, known.row, known.names)
    distinct, number = _split_index(named, tuple(index_rules))
    distinct, with_mask = _mask(distinct, number, known.row)
    number[known.row] = known.batches.iteration
    index = number[code]
    nameless = pc.equal(pc.utf8_trim_whitespace(distinct), "")
    again = pc.if_else(nameless, NO_TEXT, distinct).dictionary_encode()
    clean = again.indices.to_numpy(zero_copy_only=False)
    role = np.full(len(again.dictionary), -1, np.int8)
    role[clean[known.row]] = known.role
    masked = np.zeros(len(again.dictionary), bool)
    masked[clean[with_mask]] = True
    code = clean[code].astype(np.int32)
    step_like = pc.match_substring_regex(again.dictionary, _STEP_LIKE)
    step_like = masked | step_like.to_numpy(zero_copy_only=False).astype(bool)
    return CleanNames(
        names=_without_folders(again.dictionary),
        code=code,
        index=index,
        sequence=found.sequence,
        operator_id=found.operator_id,
        step_like=step_like & (role != Role.PART),
        masked=masked,
        role=role,
        step_rules=tuple(step_rules),
    )


def _without_folders(names: pa.StringArray) -> pa.StringArray:
    """Names whose absolute paths lose their folders: reports are handed on.

    Two names may become one text; they stay two rows.
    """
    for pattern, instead in ((_HOME, r"\1~\2"), (_FOLDERS, r"\1")):
        if pc.any(pc.match_substring_regex(names, pattern)).as_py():
            names = pc.replace_substring_regex(names, pattern, instead)
    return names


def _split_index(names: pa.StringArray, extra: tuple[str, ...]) -> tuple[pa.StringArray, Column]:
    """Names without their number, and the numbers; the first rule that matches decides."""
    index = np.full(len(names), -1, np.int64)
    open_rows = np.arange(len(names))
    ends = pc.match_substring_regex(names, r"\d\s*$")
    for position, rule in enumerate((*extra, *_INDEX_RULES)):
        if position == len(extra):
            open_rows = np.intersect1d(open_rows, _where(ends), assume_unique=True)
        found = _extract(names.take(pa.array(open_rows)), rule, position < len(extra))
        matched = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        if not len(matched):
            continue
        rows = open_rows[matched]
        fields = found.take(pa.array(matched))
        index[rows] = fields.field("index").cast(pa.int64()).to_numpy(zero_copy_only=False)
        names = _replaced(names, rows, fields.field("name"))
        open_rows = np.delete(open_rows, matched)
    return names, index


def _mask(names: pa.StringArray, number: Column, known: Column) -> tuple[pa.StringArray, Column]:
    """Names with masks for numbers in their middle, and the rows of these.

    Puts the number of each one's step into ``number``. ``known``: rows of names of known engines.
    """
    of_step = pc.match_substring_regex(names, _STEP_LIKE).to_numpy(zero_copy_only=False)
    found = mask_numbers(names, np.where(of_step, number, -1), _WORDS)
    mine = ~np.isin(found.row, known)
    row = found.row[mine]
    number[row] = found.index[mine]
    return _replaced(names, row, found.names.filter(pa.array(mine))), row


def _extract(names: pa.StringArray, rule: str, from_user: bool) -> pa.StructArray:
    """Groups ``name`` and ``index`` of each name, null where the rule does not match it."""
    if not from_user:
        return pc.extract_regex(names, rule)
    try:
        found = pc.extract_regex(names, f"^(?:{rule})$")
        pc.struct_field(found, "name"), pc.struct_field(found, "index").cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        raise UsageError(
            f"index rule {rule!r}: a regular expression with groups (?P<name>…) and "
            f"(?P<index>digits) is needed ({str(error).splitlines()[0]})"
        ) from error
    return found


def _where(mask: pa.BooleanArray) -> Column:
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


def _replaced(texts: pa.StringArray, rows: Column, values: pa.StringArray) -> pa.StringArray:
    """``texts`` with the given rows replaced."""
    if not len(rows):
        return texts
    if len(rows) == len(texts):
        return values
    mask = np.zeros(len(texts), bool)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), values)
