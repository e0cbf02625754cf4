"""Sums and distinct values of groups given as integer codes; exact in int64."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nvprobe.attribution.model import PathTable
from nvprobe.trace import Column


def sums(code: Column, values: Column, size: int) -> Column:
    """Sum of ``values`` per code, int64 of shape ``(size,)``; codes below zero are left out."""
    out = np.zeros(size, np.int64)
    known = code >= 0
    if not known.all():
        code, values = code[known], values[known]
    np.add.at(out, code, values)
    return out


def counts(code: Column, size: int) -> Column:
    """Rows per code, int64 of shape ``(size,)``; codes below zero are left out."""
    return np.bincount(code[code >= 0], minlength=size).astype(np.int64)


def distinct(keys: Column) -> tuple[Column, Column]:
    """(distinct integer keys in order of appearance, row of each key in them)."""
    coded = pa.array(keys).dictionary_encode()
    return (
        coded.dictionary.to_numpy(zero_copy_only=False),
        coded.indices.to_numpy(zero_copy_only=False),
    )


def numbered(keys: Column) -> tuple[Column, Column]:
    """(distinct keys in ascending order, row of each key in them): many keys of few values."""
    values, code = distinct(keys)
    order = np.argsort(values)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return values[order], place[code]


def push_up(paths: PathTable, own: Column) -> Column:
    """Inclusive sums: each path's own value and those of all paths below it."""
    total = own.copy()
    for rows in reversed(paths.levels()[1:]):
        np.add.at(total, paths.parent[rows], total[rows])
    return total
