"""The analysis document as the page holds it: the same fields, less what a page cannot hold.

Long lists are cut to their greatest rows and long texts in their middle; ``left_out`` says which.
Numbers that JavaScript would round become texts of their digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nvprobe.report.page.columns import EXACT

_MOST_ROWS = 2000
_LONGEST = 2000
"""Characters of a text."""
_WEIGHTS = ("gpu_ns", "ns", "wait_ns", "host_ns", "wall_ns", "allocated_bytes")
"""What rows of a list are kept by: the first of these that they have."""


class Content(msgspec.Struct, frozen=True):
    """What the page shows."""

    document: dict[str, Any]
    rows: dict[str, list[int]]
    """Of lists that were cut, ``idle.by_path``: the rows of the document that are left."""
    sizes: dict[str, int]
    """Of the same lists: how many rows the document has."""
    left_out: list[str]
    """What is not on the page, in sentences."""


def content(found: Mapping[str, Any]) -> Content:
    """Cut a document, as dictionaries and lists, to what a page can hold."""
    made = Content({}, {}, {}, [])
    shown = _fitted(found, "", made)
    texts = [text for text in made.left_out if text == _LONG_TEXT]
    lists = [text for text in made.left_out if text != _LONG_TEXT]
    return Content(shown, made.rows, made.sizes, [*lists, *texts[:1]])


_LONG_TEXT = f"Texts of more than {_LONGEST:,} characters are cut in their middle."


def _fitted(value: Any, name: str, made: Content) -> Any:
    if isinstance(value, dict):
        return {
            _text(key, made): _fitted(one, f"{name}.{key}" if name else key, made)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_fitted(one, name, made) for one in _greatest(value, name, made)]
    if isinstance(value, str):
        return _text(value, made)
    if isinstance(value, int) and abs(value) >= EXACT:
        return str(value)
    return value


def _text(text: str, made: Content) -> str:
    if len(text) <= _LONGEST:
        return text
    made.left_out.append(_LONG_TEXT)
    half = _LONGEST // 2
    return f"{text[:half]} … {text[-half:]}"


def _greatest(rows: list[Any], name: str, made: Content) -> list[Any]:
    """The rows that stay, in their order; a path stays with all that is above it."""
    if len(rows) <= _MOST_ROWS:
        return rows
    kept = _heaviest(rows)
    made.rows[name], made.sizes[name] = kept, len(rows)
    made.left_out.append(
        f"{name}: {len(kept):,} of {len(rows):,} rows, the greatest. The JSON has all of them."
    )
    return [rows[row] for row in kept]


def _heaviest(rows: list[Any]) -> list[int]:
    weight = next((one for one in _WEIGHTS if isinstance(rows[0], dict) and one in rows[0]), None)
    if weight is None:
        return list(range(_MOST_ROWS))
    order = sorted(range(len(rows)), key=lambda row: -(rows[row][weight] or 0))
    return sorted(order[:_MOST_ROWS])
