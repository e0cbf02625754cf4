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
from nvprobe.attribution.text_bytes import TextBytes
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
_STEP_LIKE = rf"(?i)(?:^|[^a-z])(?:{_WORDS})$"
_ENDINGS = (
    (r"(?P<ending>[ #=:_/\-.]+(?P<index>\d{1,18})(?:/\d+)?\s*)$", _STEP_LIKE),
    (r"(?P<ending>\s*[#=]\s*(?P<index>\d{1,18})\s*)$", r"[^\s#=]$"),
)
"""What is cut off names, and what is left of them then.

Two expressions, because one that begins with ``.*`` takes ten times as long to say where it ends.
"""


_BEFORE, _PART = r"(^|[^\w./~-])", r"[^/\s:\"',()]+"
_ROOT = "/(?:home|homes|Users|root|tmp|var|mnt|data|scratch|work|workspace)/"
_FOLDERS = rf"{_BEFORE}{_ROOT}(?:{_PART}/)*"
_HOME = rf"{_BEFORE}/(?:home|homes|Users)/{_PART}(?P<end>$|[\s:\"',()])"


_Cut = tuple[Column, pa.StringArray, pa.StringArray]
"""Rows from which a number is cut, ascending; what is left of these, and their numbers."""


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
    nameless = _where(pc.equal(pc.utf8_trim_whitespace(distinct), ""))
    distinct = _replaced(distinct, nameless, pa.array([NO_TEXT] * len(nameless), pa.string()))
    if distinct is coded.dictionary:  # nothing came off
        clean = np.arange(len(distinct))
    else:
        again = distinct.dictionary_encode()
        distinct, clean = again.dictionary, again.indices.to_numpy()
    role = np.full(len(distinct), -1, np.int8)
    role[clean[known.row]] = known.role
    masked = np.zeros(len(distinct), bool)
    masked[clean[with_mask]] = True
    code = clean[code].astype(np.int32)
    step_like = pc.match_substring_regex(distinct, _STEP_LIKE)
    step_like = masked | step_like.to_numpy(zero_copy_only=False).astype(bool)
    return CleanNames(
        names=_without_folders(distinct),
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
    row = _where(pc.match_substring_regex(names, _ROOT))
    short = names.take(pa.array(row))
    for pattern, instead in ((_HOME, r"\1~\2"), (_FOLDERS, r"\1")):
        short = pc.replace_substring_regex(short, pattern, instead)
    return _replaced(names, row, short)


def _split_index(names: pa.StringArray, extra: tuple[str, ...]) -> tuple[pa.StringArray, Column]:
    """Names without their number, and the numbers; the first rule that matches decides."""
    index = np.full(len(names), -1, np.int64)
    open_rows = np.arange(len(names))
    ends = pc.match_substring_regex(names, r"\d\s*$").to_numpy(zero_copy_only=False)
    rules: tuple[str | tuple[str, str], ...] = (*extra, *_ENDINGS)
    for rule in rules:
        if isinstance(rule, str):
            matched, cut, number = _extract(names.take(pa.array(open_rows)), rule)
        else:
            open_rows = open_rows[ends[open_rows]]
            matched, cut, number = _cut_ending(names.take(pa.array(open_rows)), *rule)
        if not len(matched):
            continue
        rows = open_rows[matched]
        index[rows] = number.cast(pa.int64()).to_numpy(zero_copy_only=False)
        names = _replaced(names, rows, cut)
        open_rows = np.delete(open_rows, matched)
    return names, index


def _cut_ending(names: pa.StringArray, ending: str, left: str) -> _Cut:
    """Cut an ``ending`` where what is left matches ``left``."""
    found = pc.extract_regex(names, ending)
    row = _where(found.is_valid())
    found, raw = found.take(pa.array(row)), TextBytes.of(names)
    length = pc.binary_length(found.field("ending")).to_numpy()
    cut = raw.slices(raw.begin[row], raw.end[row] - length)
    fits = pc.match_substring_regex(cut, left)
    hit = fits.to_numpy(zero_copy_only=False)
    return row[hit], cut.filter(fits), found.field("index").filter(fits)


def _mask(names: pa.StringArray, number: Column, known: Column) -> tuple[pa.StringArray, Column]:
    """Names with masks for numbers in their middle, and the rows of these.

    Puts the number of each one's step into ``number``. ``known``: rows of names of known engines.
    """
    ending, row = np.full(len(names), -1, np.int64), np.flatnonzero(number >= 0)
    of_step = pc.match_substring_regex(names.take(pa.array(row)), _STEP_LIKE)
    row = row[of_step.to_numpy(zero_copy_only=False)]
    ending[row] = number[row]
    found = mask_numbers(names, ending, _WORDS)
    mine = ~np.isin(found.row, known)
    row = found.row[mine]
    number[row] = found.index[mine]
    return _replaced(names, row, found.names.filter(pa.array(mine))), row


def _extract(names: pa.StringArray, rule: str) -> _Cut:
    """Groups ``name`` and ``index`` of the names that a user's rule matches."""
    try:
        found = pc.extract_regex(names, f"^(?:{rule})$")
        name, index = pc.struct_field(found, "name"), pc.struct_field(found, "index")
        index.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        raise UsageError(
            f"index rule {rule!r}: a regular expression with groups (?P<name>…) and "
            f"(?P<index>digits) is needed ({str(error).splitlines()[0]})"
        ) from error
    matched = found.is_valid()
    return _where(matched), name.filter(matched), index.filter(matched)


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
