"""Where ranks differ: time by path, kernels and compiled graphs that not all of them run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvprobe.ranks.document import Difference, PathSpread
from nvprobe.ranks.stragglers import Work
from nvprobe.ranks.summary import Summary

_PATHS = 40
_DIFFERENCES = 20
_RANKS = 16
_SHORT_NS = 100_000
"""Of a whole capture: kernels with less time are not worth a line."""


def spread(found: Work, ranks: Sequence[int]) -> list[PathSpread]:
    """Paths by how far the longest rank is from the median, most first."""
    if len(ranks) < 2 or not found.ns.shape[1]:
        return []
    middle = np.median(found.ns, axis=0).astype(np.int64)
    longest, row = found.ns.max(axis=0), found.ns.argmax(axis=0)
    shortest = found.ns.min(axis=0)
    order = np.argsort(-(longest - middle), kind="stable")[:_PATHS]
    return [
        PathSpread(found.path[one], found.kind[one], int(shortest[one]), int(middle[one]),
                   int(longest[one]), ranks[row[one]])
        for one in order.tolist()
        if longest[one] > middle[one]
    ]  # fmt: skip


def differences(ranks: Sequence[Summary]) -> list[Difference]:
    """What some ranks run and others do not, most time first."""
    kernels: dict[str, list[tuple[int, int, str | None]]] = {}
    graphs: dict[str, list[int]] = {}
    working = [one for one in ranks if one.gpu]
    for one in working:
        number, table = int(one.identity.rank or 0), one.kernels
        for name, path, ns in zip(
            table.name.tolist(), table.path.tolist(), table.gpu_ns.tolist(), strict=True
        ):
            where = one.texts[path] if path >= 0 else None
            kernels.setdefault(one.texts[name], []).append((number, ns, where))
    for one in ranks:
        for graph in one.compiled:
            graphs.setdefault(graph, []).append(int(one.identity.rank or 0))
    out = [
        _difference("compiled graph", name, some, None, None)
        for name, some in graphs.items()
        if len(some) < len(ranks)
    ]
    for name, found in kernels.items():
        gpu_ns = int(np.median([ns for _, ns, _ in found]))
        if len(found) < len(working) and gpu_ns >= _SHORT_NS:
            own = [number for number, _, _ in found]
            out.append(_difference("kernel", name, own, found[0][2], gpu_ns))
    return sorted(out, key=lambda one: -(one.gpu_ns or 0))[:_DIFFERENCES]


def _difference(
    kind: str, name: str, ranks: list[int], path: str | None, gpu_ns: int | None
) -> Difference:
    return Difference(kind, name, path, ranks[:_RANKS], len(ranks), gpu_ns)
