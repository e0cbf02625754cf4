"""Which part of the range tree to show, and in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind, PathTable, shown_path
from nvprobe.trace import Column

__all__ = ["SORTS", "Node", "TreeView", "visible_tree"]

SORTS = {
    "gpu": "gpu_ns",
    "self": "gpu_self_ns",
    "busy": "gpu_busy_ns",
    "span": "gpu_span_ns",
    "wall": "wall_ns",
    "self-wall": "self_wall_ns",
    "idle": "idle_ns",
    "sync": "sync_ns",
    "calls": "calls",
    "ops": "ops",
}
"""What ``--sort`` takes besides ``order``: columns of the path quantities."""


@dataclass(frozen=True, slots=True)
class TreeView:
    """The reader's choice; the default shows the ranges with most GPU time."""

    depth: int | None = None
    """Levels below the roots that are shown, ``None`` for all."""
    kinds: frozenset[Kind] = frozenset()
    """Only these kinds; empty: all but the hidden ones."""
    hidden: frozenset[Kind] = frozenset({Kind.LIBRARY})
    pattern: re.Pattern[str] | None = None
    """Searched in whole paths; what is above a match is shown for context."""
    sort: str = "gpu"
    rows: int = 40
    kernels: int = 10
    steps: int = field(default=8)
    by: str = "path"
    """What idle time is broken down by: ``cause``, ``path``, ``line``, ``stream`` or ``step``."""


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the tree: a path row and its depth among the lines shown."""

    path: int
    depth: int


def visible_tree(analysis: Analysis, view: TreeView) -> tuple[list[Node], int]:
    """The lines to show, in tree order, and how many the view would have had beyond ``rows``."""
    paths, table = analysis.attribution.paths, analysis.ranges
    present = (table.calls > 0) | (table.ops > 0)
    wanted = np.flatnonzero(present & _chosen(analysis, view))
    value = _sort_value(analysis, view.sort)
    best = wanted[np.lexsort((paths.depth[wanted], -value[wanted]))][: view.rows]
    shown = np.zeros(len(present), bool)
    shown[best] = True
    if view.pattern is not None or view.kinds:
        _add_ancestors(paths, shown, best)
    return _walk(paths, shown, value), len(wanted) - len(best)


def _chosen(analysis: Analysis, view: TreeView) -> Column:
    """Bool per path: the options ask for it."""
    paths = analysis.attribution.paths
    if view.kinds:
        chosen = np.isin(paths.kind, [int(kind) for kind in view.kinds])
    else:
        chosen = ~np.isin(paths.kind, [int(kind) for kind in view.hidden])
    if view.depth is not None:
        chosen &= paths.depth < view.depth
    if view.pattern is not None:
        search = view.pattern.search
        found = [bool(search(text) or search(shown_path(text))) for text in paths.texts()]
        chosen &= np.array(found, bool)
    return chosen


def _sort_value(analysis: Analysis, sort: str) -> Column:
    """What the lines are ordered by, the greatest first."""
    table = analysis.ranges
    if sort == "order":
        return -table.order
    if sort == "gpu" and not table.gpu_ns.any():
        sort = "wall"
    values = getattr(table, SORTS[sort])
    if values is None:
        return np.zeros(len(table), np.int64)
    return np.where(values == UNKNOWN, -1, values)


def _add_ancestors(paths: PathTable, shown: Column, rows: Column) -> None:
    """Show what is above the rows, in place."""
    above = paths.parent[rows]
    while len(above := above[above >= 0]):
        shown[above] = True
        above = paths.parent[above]


def _walk(paths: PathTable, shown: Column, value: Column) -> list[Node]:
    """Shown rows in tree order; a row below a hidden one hangs on the nearest shown one."""
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(shown).tolist():
        parent = int(paths.parent[row])
        while parent >= 0 and not shown[parent]:
            parent = int(paths.parent[parent])
        children.setdefault(parent, []).append(row)

    def greatest_last(rows: list[int]) -> list[int]:
        """In the order in which a stack gives them back."""
        return sorted(rows, key=lambda row: (-value[row], row), reverse=True)

    nodes: list[Node] = []
    stack = [(row, 0) for row in greatest_last(children.get(-1, []))]
    while stack:
        row, level = stack.pop()
        nodes.append(Node(row, level))
        stack.extend((child, level + 1) for child in greatest_last(children.get(row, [])))
    return nodes
