"""Rows of the JSON document from columns: what every part of it needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.trace import Column

__all__ = ["Row", "numbers", "path_texts", "records"]

Row = dict[str, Any]


def numbers(column: Column | None, rows: int) -> list[int | None]:
    """A column as Python integers; null where unknown, or everywhere if not computed."""
    if column is None:
        return [None] * rows
    values: list[int | None] = column.tolist()
    if len(column) and bool((column == UNKNOWN).any()):
        return [None if value == UNKNOWN else value for value in values]
    return values


def records(columns: dict[str, list[Any]]) -> list[Row]:
    """Rows from columns of equal length."""
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def path_texts(analysis: Analysis, rows: Column) -> list[str | None]:
    """Texts of path rows, null for -1."""
    paths = analysis.attribution.paths
    known = {int(row): paths.text(int(row)) for row in np.unique(rows[rows >= 0])}
    return [known.get(row) for row in rows.tolist()]
