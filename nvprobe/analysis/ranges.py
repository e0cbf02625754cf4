"""The quantities of every path (docs/attribution.md, "Quantities of a path")."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.busy import busy_by_path
from nvprobe.analysis.grouping import counts, levels, push_up, sums
from nvprobe.analysis.instances import gpu_spans, host_times, replays
from nvprobe.analysis.model import UNKNOWN, PathQuantities
from nvprobe.attribution.model import Attribution, Method, PathTable
from nvprobe.trace import Column

__all__ = ["path_quantities", "walk_order"]


def path_quantities(attribution: Attribution) -> PathQuantities:
    """Every quantity of every path; rows are those of ``attribution.paths``."""
    paths = attribution.paths
    size = len(paths.parent)
    own = sums(attribution.owner, attribution.duration, size)
    ops = push_up(paths, counts(attribution.owner, size))
    calls, wall, self_wall = host_times(attribution)
    captured = np.where(attribution.method == Method.GRAPH_CAPTURE, attribution.owner, -1)
    unseen = (calls == 0) & (push_up(paths, counts(captured, size)) > 0)
    replayed, replay_spans = replays(attribution, unseen)
    return PathQuantities(
        calls=calls + replayed,
        wall_ns=np.where(unseen, UNKNOWN, wall),
        self_wall_ns=np.where(unseen, UNKNOWN, self_wall),
        ops=ops,
        gpu_ns=push_up(paths, own),
        gpu_self_ns=own,
        gpu_busy_ns=busy_by_path(attribution),
        gpu_span_ns=gpu_spans(attribution) + replay_spans,
        order=walk_order(paths),
    )


def walk_order(paths: PathTable) -> Column:
    """Position of each path in a depth-first walk, siblings by row; int64 per path."""
    size = len(paths.parent)
    below = push_up(paths, np.ones(size, np.int64))
    position = np.zeros(size, np.int64)
    for depth, rows in enumerate(levels(paths)):
        parent = paths.parent[rows]
        order = np.argsort(parent, kind="stable")
        rows, parent = rows[order], parent[order]
        before = np.cumsum(below[rows]) - below[rows]  # among all of the level …
        first = np.searchsorted(parent, parent)
        before -= before[first]  # … among its siblings
        position[rows] = before + (position[parent] + 1 if depth else 0)
    return position
