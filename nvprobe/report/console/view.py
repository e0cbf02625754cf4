"""What of a report to show, and the lines of the range tree."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind, shown_path
from nvprobe.report.console.folding import Folds, fold
from nvprobe.trace import Column

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


ALL = (
    *("findings", "ranges", "idle", "waits", "host", "critical", "modules", "kernels", "operators"),
    *("copies", "overlap", "steps", "graphs", "memory", "missing"),
)
"""Every section, in the order of ``--all``."""


@dataclass(frozen=True, slots=True)
class View:
    """The reader's choice; the default is one screen."""

    show: tuple[str, ...] = ()
    """Names of sections; empty: the first screen."""
    top: int | None = None
    """Rows of each table, ``None`` for what suits each."""
    unfold: bool = False
    """Siblings that are alike each in a row of its own."""
    depth: int | None = None
    """Levels below the roots that are shown, ``None`` for all."""
    kinds: frozenset[Kind] = frozenset()
    """Only these kinds; empty: all but the hidden ones."""
    hidden: frozenset[Kind] = frozenset({Kind.LIBRARY})
    pattern: re.Pattern[str] | None = None
    """Searched in whole paths; what is above a match is shown for context."""
    sort: str = "gpu"
    by: str = "path"
    """What idle time is broken down by: ``cause``, ``path``, ``line``, ``stream`` or ``step``."""

    folds: Folds | None = field(default=None, compare=False)
    """Of the analysis that is shown, where they are known already."""

    def fold(self, analysis: Analysis) -> Folds:
        """Which paths share a row."""
        return self.folds or fold(analysis, unfold=self.unfold)

    def rows(self, usual: int = 10) -> int:
        """Rows of a table that usually has so many."""
        return usual if self.top is None else self.top


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the tree: a path row and its depth among the lines shown."""

    path: int
    depth: int


def visible_tree(analysis: Analysis, view: View, folds: Folds) -> tuple[list[Node], int]:
    """The lines to show, in tree order, and how many the view would have had beyond ``top``."""
    paths, table = analysis.attribution.paths, analysis.ranges
    present = (table.calls > 0) | (table.ops > 0)
    wanted = np.unique(folds.first[present & chosen(analysis, view)])
    value = _sort_value(analysis, view.sort, folds)
    best = wanted[np.lexsort((paths.depth[wanted], -value[wanted]))][: view.rows(40)]
    shown = np.zeros(len(present), bool)
    shown[best] = True
    if view.pattern is not None or view.kinds:
        _add_ancestors(folds, shown, best)
    return _walk(folds, shown, value), len(wanted) - len(best)


def chosen(analysis: Analysis, view: View) -> Column:
    """Bool per path: the options ask for it."""
    paths = analysis.attribution.paths
    if view.kinds:
        out = np.isin(paths.kind, [int(kind) for kind in view.kinds])
    else:
        out = ~np.isin(paths.kind, [int(kind) for kind in view.hidden])
    if view.depth is not None:
        out &= paths.depth < view.depth
    if view.pattern is not None:
        search = view.pattern.search
        found = [bool(search(text) or search(shown_path(text))) for text in paths.texts()]
        out &= np.array(found, bool)
    return out


def sorted_by(analysis: Analysis, sort: str) -> str:
    """What the tree is sorted by: host time, where there is no GPU time."""
    return "wall" if sort == "gpu" and not analysis.ranges.gpu_ns.any() else sort


def _sort_value(analysis: Analysis, sort: str, folds: Folds) -> Column:
    """What the lines are ordered by, the greatest first."""
    table = analysis.ranges
    if sort == "order":
        return -table.order
    values = getattr(table, SORTS[sorted_by(analysis, sort)])
    if values is None:
        return np.zeros(len(table), np.int64)
    out: Column = folds.sums(values) - (values == UNKNOWN)
    return out


def _add_ancestors(folds: Folds, shown: Column, rows: Column) -> None:
    """Show what is above the rows, in place."""
    for row in rows.tolist():
        while (row := folds.parent(row)) >= 0 and not shown[row]:
            shown[row] = True


def _walk(folds: Folds, shown: Column, value: Column) -> list[Node]:
    """Shown rows in tree order; a row below a hidden one hangs on the nearest shown one."""
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(shown).tolist():
        parent = folds.parent(row)
        while parent >= 0 and not shown[parent]:
            parent = folds.parent(parent)
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
