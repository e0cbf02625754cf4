"""Where a finding is: the one path that most of its time belongs to."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.grouping import levels, push_up
from nvprobe.analysis.summary import short_path
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import NO_ROW, Column

__all__ = ["common_path", "main_operator", "named", "program_paths"]

_SHARE = 0.6
"""A path is the place if this much of the time lies in it."""
_LOWER = (Kind.OPERATOR, Kind.LIBRARY, Kind.COLLECTIVE)
"""What torch and its libraries call their own parts."""


def program_paths(paths: PathTable) -> Column:
    """Per path: itself or its nearest ancestor that a person wrote, -1 for none.

    A person knows ``step/forward``, not ``…/aten::linear/aten::addmm``; what a collective opens
    inside itself is the library's too.
    """
    lower = np.isin(paths.kind, _LOWER)
    inside = paths.kind == Kind.COLLECTIVE
    out = np.where(lower, NO_ROW, np.arange(len(lower))).astype(np.int64)
    for rows in levels(paths)[1:]:
        parent = paths.parent[rows]
        inside[rows] |= inside[parent]
        rise = lower[rows] | inside[rows]
        out[rows[rise]] = out[parent[rise]]
    return out


def common_path(paths: PathTable, ns: Column) -> int:
    """The deepest program path with most of ``ns`` (one entry a path, a last one for none)."""
    total = int(ns.sum())
    if not total or not len(paths.parent):
        return NO_ROW
    inclusive = push_up(paths, ns[: len(paths.parent)])
    program = program_paths(paths) == np.arange(len(paths.parent))
    large = np.flatnonzero((inclusive >= _SHARE * total) & program)
    if not len(large):
        return NO_ROW
    return int(large[np.lexsort((inclusive[large], paths.depth[large]))[-1]])


def main_operator(paths: PathTable, ns: Column) -> str | None:
    """The outermost operator (``aten::randn``) with most of ``ns``, where there are operators."""
    inclusive = push_up(paths, ns[: len(paths.parent)])
    large = np.flatnonzero((inclusive >= _SHARE * ns.sum()) & (paths.kind == Kind.OPERATOR))
    if not len(large) or not ns.any():
        return None
    outermost = large[np.argmin(paths.depth[large])]
    return str(paths.names[int(paths.name[outermost])])


def named(paths: PathTable, path: int, otherwise: str = "the program") -> str:
    """A path's text for a title, shortened where it is long."""
    return otherwise if path < 0 else short_path(paths.text(path))
