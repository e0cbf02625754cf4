"""CUDA graph replays back to the ranges in which their nodes were captured (rule 3)."""

from __future__ import annotations

import numpy as np

from nvprobe.attribution.openpaths import OpenPaths
from nvprobe.attribution.paths import NO_PATH
from nvprobe.trace import NO_ROW, Column, GraphNodes, Trace
from nvprobe.trace.cuda_calls import CallRole, calls_with

__all__ = ["capture_paths"]


def capture_paths(trace: Trace, look_up: OpenPaths, process: Column, node: Column) -> Column:
    """Path of the ranges opened inside the capture and open when each node was created.

    ``process`` and ``node`` name graph nodes as ops carry them. int32 path, -1 where the node's
    creation is unknown or no range was opened between the begin of the capture and it.
    """
    nodes = trace.graph_nodes
    if not len(nodes) or not len(node):
        return np.full(len(node), NO_PATH, np.int32)
    index = _NodeIndex(nodes)
    created = index.first_creation(index.row(process, node))
    out = np.full(len(node), NO_PATH, np.int32)
    known = np.flatnonzero(created >= 0)
    rows, inverse = np.unique(created[known], return_inverse=True)
    # The capture may lie in an earlier file than the replay, which has a process row of its own.
    captor = trace.threads.process[nodes.thread[rows]]
    since = _latest_begin(trace, captor, nodes.time[rows])
    captured = np.flatnonzero(since >= 0)
    begin = trace.calls.start[since[captured]]
    found = np.full(len(rows), NO_PATH, np.int32)
    found[captured] = look_up.opened_after(
        nodes.thread[rows[captured]], nodes.time[rows[captured]], begin
    )
    _by_sidecar(look_up, nodes, rows, found)
    out[known] = found[inverse]
    return out


def _by_sidecar(look_up: OpenPaths, nodes: GraphNodes, rows: Column, found: Column) -> None:
    """Captures before the window: their ranges are only in the sidecar. In place."""
    if look_up.captured is None:
        return
    left = np.flatnonzero(found < 0)
    created = rows[left]
    found[left] = look_up.captured.on_thread(nodes.thread[created], nodes.time[created])


class _NodeIndex:
    """Node id to the row of its creation, per process."""

    def __init__(self, nodes: GraphNodes) -> None:
        self.nodes = nodes
        # A clone has two rows, one of them without its origin: the row that tells it comes first.
        self.order = np.lexsort((nodes.time, nodes.origin == 0, nodes.node, nodes.process))
        self._process = nodes.process[self.order]
        self._bounds: dict[int, tuple[int, int]] = {}
        for value in np.unique(self._process).tolist():
            low, high = np.searchsorted(self._process, [value, value + 1])
            self._bounds[value] = (int(low), int(high))

    def row(self, process: Column, node: Column) -> Column:
        """Row of the creation of each node, -1."""
        out = np.full(len(node), NO_ROW, np.int64)
        for value, (low, high) in self._bounds.items():
            asked = np.flatnonzero((process == value) & (node != 0))
            ids = self.nodes.node[self.order[low:high]]
            at = np.searchsorted(ids, node[asked])
            hit = at < len(ids)
            hit[hit] = ids[at[hit]] == node[asked[hit]]
            out[asked[hit]] = self.order[low:high][at[hit]]
        return out

    def first_creation(self, row: Column) -> Column:
        """Follow clones to the node they were cloned from; a loop in the file ends the walk."""
        row = row.copy()
        walking = np.flatnonzero(row >= 0)
        for _ in range(64):
            origin = self.nodes.origin[row[walking]]
            above = self.row(self.nodes.process[row[walking]], origin)
            moves = (above >= 0) & (above != row[walking])
            walking = walking[moves]
            if not len(walking):
                break
            row[walking] = above[moves]
        return row


def _latest_begin(trace: Trace, process: Column, time: Column) -> Column:
    """Row of the latest begin-capture call of the process at or before each instant, -1."""
    out = np.full(len(time), NO_ROW, np.int64)
    begins = np.flatnonzero(calls_with(trace, [CallRole.CAPTURE_BEGIN]))
    begins = begins[np.argsort(trace.calls.start[begins], kind="stable")]
    for value in np.unique(trace.calls.process[begins]).tolist():
        mine = begins[trace.calls.process[begins] == value]
        asked = np.flatnonzero(process == value)
        at = np.searchsorted(trace.calls.start[mine], time[asked], side="right")
        out[asked] = np.where(at > 0, mine[at - 1], NO_ROW)
    return out
