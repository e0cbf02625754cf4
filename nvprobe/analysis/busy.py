"""How long the GPU was busy for each path: the length of a union, not a sum.

Most ops overlap no other op of their device; such an op is busy for its duration, in every path
above it. Only the others need unions. These are made from the leaves of the trie upwards: what a
path's ops cover is merged with what its children cover, level by level, so that each level sorts
intervals that are already disjoint instead of expanding every op by its depth.

Oracle: tests/unit/analyze_oracle.py.
"""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.grouping import levels, push_up, sums
from nvprobe.analysis.waiting.order import alone
from nvprobe.attribution.intervals import merged, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["busy_by_path"]


def busy_by_path(attribution: Attribution) -> Column:
    """``gpu_busy_ns`` of every path: per device, summed over devices; int64 per path."""
    ops, paths = attribution.trace.ops, attribution.paths
    size = len(paths.parent)
    if not size:
        return np.zeros(size, np.int64)
    rows = np.flatnonzero(attribution.valid & (attribution.owner >= 0))
    device, start, end = ops.device[rows] + 1, ops.start[rows], ops.end[rows]
    order = sorted_by(device, start)
    rows, device, start, end = rows[order], device[order], start[order], end[order]
    single = alone(device, start, end)
    lengths = sums(attribution.owner[rows[single]], (end - start)[single], size)
    crowd = ~single
    owner = attribution.owner[rows[crowd]]
    return push_up(paths, lengths) + _unions(
        attribution, owner, device[crowd], start[crowd], end[crowd]
    )


def _unions(
    attribution: Attribution, owner: Column, device: Column, start: Column, end: Column
) -> Column:
    """Length of the union per path and device, summed over devices, for overlapping ops."""
    paths = attribution.paths
    total = np.zeros(len(paths.parent), np.int64)
    devices = int(device.max()) + 1 if len(device) else 1
    depth = paths.depth[owner]
    below = tuple(np.empty(0, np.int64) for _ in range(3))  # (group, start, end) of one level down
    for level in range(len(levels(paths)) - 1, -1, -1):
        here = depth == level
        group = owner[here].astype(np.int64) * devices + device[here]
        group, first, last = merged(
            np.concatenate((below[0], group)),
            np.concatenate((below[1], start[here])),
            np.concatenate((below[2], end[here])),
        )
        path = group // devices
        np.add.at(total, path, last - first)
        if level:
            group = paths.parent[path].astype(np.int64) * devices + group % devices
        below = (group, first, last)
    return total
