"""Texts of a capture where they could act: in a terminal, and in the cells of a spreadsheet."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_CONTROL = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # drive a terminal
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff"  # turn text around
)
_HIDDEN = re.compile(f"[{_CONTROL}]")
_HIDDEN_IN_CELL = re.compile(f"[\\t\\n{_CONTROL}]")
_FORMULA = re.compile(r"[=+\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_SUSPECT = r"^[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]|[\p{Cc}\p{Cf}]"
"""RE2, for whole columns at once: texts that may need a look."""


def visible(text: str) -> str:
    r"""``text`` with control characters as escapes (``\x1b``); its lines and tabs stay."""
    return _HIDDEN.sub(_escape, text)


def for_spreadsheet(texts: pa.Array) -> pa.Array:
    """Texts that no spreadsheet takes for a formula and no terminal acts upon; numbers stay."""
    suspect = pc.fill_null(pc.match_substring_regex(texts, _SUSPECT), fill_value=False)
    if not pc.any(suspect).as_py():
        return texts
    safe = [_cell(text) for text in texts.filter(suspect).to_pylist()]
    return pc.replace_with_mask(texts, suspect, pa.array(safe, texts.type))


def _cell(text: str) -> str:
    text = _HIDDEN_IN_CELL.sub(_escape, text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
