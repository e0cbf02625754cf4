"""Modules and source lines of the ops inside compiled-graph ranges, by the kernel manifest.

Definition (docs/attribution.md, "Modules: the second owner", c): a kernel has the set of its FX
nodes' modules, weighted by the number of nodes that compute something (views do not). Names in a
manifest are relative to what was compiled; the module around it comes from the enclosing module
range, or for backward from the sequence number that the range carries. Where one graph runs
several times inside one range it cannot be known which module it stands for at which time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from nvprobe.attribution.intervals import slices
from nvprobe.attribution.kernel_order import match_calls
from nvprobe.attribution.model import Attribution, Kind, PathTable, Phase
from nvprobe.attribution.nesting import nest
from nvprobe.trace import NO_ROW, Column, OpKind, Trace
from nvprobe.trace.sidecar import GraphManifest, ManifestKernel, ManifestNode

UNKNOWN = "?"
"""Stands for a module that cannot be placed apart from others."""
ROOT = "(root)"
"""What was compiled itself, where no range names it."""

_RANGE = re.compile(r"^graph (?P<compile_id>\S+) (?P<phase>fwd|bwd)$")
_VIEWS = frozenset(
    (
        *("view", "_unsafe_view", "view_as", "reshape", "_reshape_alias", "permute", "transpose"),
        *("t", "expand", "expand_as", "squeeze", "unsqueeze", "select", "slice", "as_strided"),
        *("alias", "detach", "split", "split_with_sizes", "unbind", "diagonal", "unfold"),
        *("narrow", "chunk", "swapaxes", "movedim", "lift_fresh", "getitem"),
    )
)
_OPERATOR = re.compile(r"(?:aten\.)?(?P<name>\w+)")

_NO_NODE = ManifestNode("", "")

Share = tuple[str, str | None, Phase, float]
"""Relative module path, source line, phase, weight."""


@dataclass(slots=True)
class GraphOps:
    """The ops inside graph ranges that a manifest explains, one row per op."""

    op: Column
    """int64 row of ``trace.ops``, ascending."""
    instance: Column
    """int64 row of ``trace.ranges``: the graph range."""
    owners: Column
    """int64 row of ``sets``."""
    sets: list[tuple[Share, ...]] = field(default_factory=list)
    repeated: Column = field(default_factory=lambda: np.empty(0, bool))
    """bool: the graph runs several times inside one enclosing range."""


def graph_ops(attribution: Attribution) -> GraphOps:
    """Explain the ops inside graph ranges by the manifests of the trace's sidecars."""
    manifests: dict[int, list[GraphManifest]] = defaultdict(list)
    for manifest in attribution.trace.sidecar.manifests:
        manifests[manifest.process].append(manifest)
    rows, keys = _graph_ranges(attribution.trace)
    op, instance = _ops_inside(attribution, rows)
    explained = _Explained()
    owners = np.full(len(op), NO_ROW, np.int64)
    for group in _same_sequences(attribution.trace, op, instance):
        row = int(instance[group[0, 0]])
        process = int(attribution.trace.ranges.process[row])
        found = _explain(attribution.trace, manifests[process], keys[row], op[group[0]])
        if found is not None:
            owners[group] = explained.rows(*found)
    kept = np.flatnonzero(owners >= 0)
    kept = kept[np.argsort(op[kept], kind="stable")]
    repeated = _repeated(attribution, rows, keys)
    return GraphOps(
        op=op[kept],
        instance=instance[kept],
        owners=owners[kept],
        sets=explained.sets,
        repeated=np.isin(instance[kept], repeated),
    )


def _graph_ranges(trace: Trace) -> tuple[Column, dict[int, tuple[str, str]]]:
    """Rows of nvprobe's graph ranges, and (compile id, phase) of each."""
    likely = pc.starts_with(trace.strings, "graph ").fill_null(False)  # texts may be millions
    in_use = np.zeros(len(trace.strings), bool)
    in_use[trace.ranges.name[trace.ranges.name >= 0]] = True
    used = np.flatnonzero(in_use & likely.to_numpy(zero_copy_only=False))
    matches = [_RANGE.match(text or "") for text in trace.texts(used)]
    graphs = {int(name): match for name, match in zip(used, matches, strict=True) if match}
    rows = np.flatnonzero(np.isin(trace.ranges.name, list(graphs)))
    keys = {}
    for row, name in zip(rows.tolist(), trace.ranges.name[rows].tolist(), strict=True):
        keys[row] = (graphs[name]["compile_id"], graphs[name]["phase"])
    return rows, keys


def _ops_inside(attribution: Attribution, rows: Column) -> tuple[Column, Column]:
    """(op, graph range) of the ops whose call lies in one, by range and order of launch."""
    trace = attribution.trace
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    thread, start, end = trace.ranges.thread[rows], trace.ranges.start[rows], attribution.tree.end
    nesting = nest(thread, start, end[rows], len(trace.threads))
    op = np.flatnonzero(attribution.call >= 0)
    call = attribution.call[op]
    at_thread, at_time = trace.calls.thread[call], trace.calls.start[call]
    position = nesting.innermost(nesting.last_started(at_thread, at_time), at_time)
    op, call, position = op[position >= 0], call[position >= 0], position[position >= 0]
    instance = rows[nesting.row[position]]
    # Ops of one call (a graph replay) were launched in the order of their stream.
    order = np.lexsort((trace.ops.start[op], trace.calls.start[call], instance))
    return op[order], instance[order]


def _same_sequences(trace: Trace, op: Column, instance: Column) -> list[Column]:
    """Instances with the same ops: arrays of shape (instances, ops) of positions in ``op``.

    A training loop runs the same kernels in every step: each sequence is explained once.
    """
    alike: dict[tuple[int, int, bytes], list[tuple[int, int]]] = defaultdict(list)
    name = trace.ops.short_name[op]
    for first, last in slices(instance):
        row = int(instance[first])
        graph = int(trace.ranges.name[row])
        process = int(trace.ranges.process[row])
        alike[process, graph, name[first:last].tobytes()].append((first, last))
    return [np.stack([np.arange(*bounds) for bounds in group]) for group in alike.values()]


def _explain(
    trace: Trace, graphs: Sequence[GraphManifest], key: tuple[str, str], op: Column
) -> tuple[GraphManifest, list[tuple[int, ...]]] | None:
    """The manifest of a graph whose kernels these are, and the calls that own each op.

    Compile ids begin anew after ``torch.compiler.reset``: of several manifests with the id the one
    whose kernels are found in order, else the last.
    """
    names = [text or "" for text in trace.texts(trace.ops.short_name[op])]
    kernels = (trace.ops.kind[op] == OpKind.KERNEL).tolist()
    best = None
    for graph in graphs:
        if (graph.compile_id, graph.phase) == key:
            owners, complete = match_calls(graph.kernels, names, kernels)
            best = (graph, owners)
            if complete:
                break
    return best


class _Explained:
    """Distinct sets of shares: what the calls that own an op compute."""

    def __init__(self) -> None:
        self.sets: list[tuple[Share, ...]] = []
        self._row: dict[tuple[Share, ...], int] = {}

    def rows(self, graph: GraphManifest, owners: list[tuple[int, ...]]) -> list[int]:
        """Row of each op's set, -1 where no call owns it."""
        return [self._intern(owner_shares(graph, calls)) if calls else NO_ROW for calls in owners]

    def _intern(self, shares: tuple[Share, ...]) -> int:
        row = self._row.get(shares)
        if row is None:
            row = self._row[shares] = len(self.sets)
            self.sets.append(shares)
        return row


def owner_shares(graph: GraphManifest, calls: Sequence[int]) -> tuple[Share, ...]:
    """Weighted modules and lines of an op that belongs to some calls of a manifest alike."""
    total: Counter[tuple[str, str | None, Phase]] = Counter()
    weights: dict[tuple[str, str | None, Phase], float] = defaultdict(float)
    for position in calls:
        nodes = _computing(graph.kernels[position])
        total.update(counted := Counter(_place(node, graph.phase) for node in nodes))
        for place, count in counted.items():
            weights[place] += count / len(nodes) / len(calls)
    ordered = sorted(total, key=lambda place: (-weights[place], place[0], place[1] or "", place[2]))
    return tuple((*place, weights[place]) for place in ordered)


def _computing(call: ManifestKernel) -> Sequence[ManifestNode]:
    """The nodes that make a kernel compute: no views, and none that a pass left without origin.

    Where there is nothing else those count after all.
    """
    working = [node for node in call.nodes if _operator(node) not in _VIEWS] or call.nodes
    placed = [node for node in working if node.module is not None or node.source is not None]
    return placed or working or (_NO_NODE,)


def _operator(node: ManifestNode) -> str:
    match = _OPERATOR.match(node.op)
    return match["name"] if match else node.op


def _place(node: ManifestNode, phase: str) -> tuple[str, str | None, Phase]:
    module = node.module or ""
    if phase == "fwd":
        return module, node.source, Phase.FORWARD
    return module, node.source, Phase.RECOMPUTE if node.recomputed else Phase.BACKWARD


def _repeated(attribution: Attribution, rows: Column, keys: dict[int, tuple[str, str]]) -> Column:
    """Graph ranges of graphs that run more than once inside one instance of an enclosing range."""
    if not len(rows):
        return rows
    around = _enclosing(attribution, rows)
    graph = attribution.trace.ranges.name[rows].astype(np.int64)
    inside = around >= 0
    pairs, count = np.unique(np.stack((graph[inside], around[inside])), axis=1, return_counts=True)
    return rows[np.isin(graph, pairs[0, count > 1]) & inside]


def _enclosing(attribution: Attribution, rows: Column) -> Column:
    """The innermost range around each graph range: on its thread, else on the initiating one."""
    trace, look_up = attribution.trace, attribution.open
    around = attribution.tree.parent[rows].copy()
    alone = np.flatnonzero(around < 0)
    thread, time = trace.ranges.thread[rows[alone]], trace.ranges.start[rows[alone]]
    initiating = np.where(look_up.autograd[thread], look_up.initiator(thread), NO_ROW)
    asked = np.flatnonzero(initiating >= 0)
    last = look_up.nesting.last_started(initiating[asked], time[asked])
    position = look_up.nesting.innermost(last, time[asked])
    found = position >= 0
    around[alone[asked[found]]] = look_up.nesting.row[position[found]]
    return around


def innermost_modules(paths: PathTable) -> Column:
    """Row of ``paths.names`` of the innermost module range of each path, -1 for none."""
    module = paths.nearest(paths.kind == Kind.MODULE)
    return np.where(module >= 0, paths.name[module], NO_ROW).astype(np.int64)


def qualified(relative: str, around: str | None, *, is_root: bool) -> str:
    """A module's full name from its path below what was compiled and the module around that.

    ``is_root``: the module around is an annotated model, whose own name is not in the paths
    below it.
    """
    if around is None:
        return relative or ROOT
    if not relative:
        return around
    return relative if is_root else f"{around}.{relative}"
