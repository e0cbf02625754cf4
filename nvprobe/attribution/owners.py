"""Rules 1 to 4: the owner path of every GPU op, or the reason why it has none."""

from __future__ import annotations

import numpy as np

from nvprobe.attribution.graphs import capture_paths
from nvprobe.attribution.launches import calls_of_ops, smallest_correlation
from nvprobe.attribution.model import Method
from nvprobe.attribution.openpaths import OpenPaths
from nvprobe.attribution.paths import NO_PATH
from nvprobe.trace import NO_ROW, Calls, Column, OpKind, Ops, Trace
from nvprobe.trace.cuda_calls import CallRole, calls_with

__all__ = ["owners"]

_UNIFIED_MEMORY_COPIES = (11, 12)


def owners(trace: Trace, look_up: OpenPaths) -> tuple[Column, Column, Column]:
    """(call row, owner path, method) of every op."""
    ops = trace.ops
    calls = trace.calls
    call = calls_of_ops(calls, ops)
    started = np.flatnonzero(call >= 0)
    path = np.full(len(ops), NO_PATH, np.int32)
    # Many ops can share a call (a graph launch): look each call up once.
    used, of_op = _distinct(call[started], len(calls))
    thread, time = calls.thread[used], calls.start[used]
    own = look_up.on_thread(thread, time)
    path[started] = look_up.with_initiator(thread, time, own)[of_op]
    inherits = look_up.autograd[thread] & (own < 0)
    method = np.full(len(ops), Method.LAUNCH, np.int8)
    method[started[inherits[of_op]]] = Method.INHERITED
    _follow_graphs(trace, look_up, ops, call, path, method)
    lost = np.flatnonzero(path < 0)
    method[lost] = _reasons(trace, ops.take(lost), calls, call[lost])
    return call, path, method


def _distinct(rows: Column, size: int) -> tuple[Column, Column]:
    """Distinct rows and, for each row, which of them it is."""
    used = np.zeros(size, bool)
    used[rows] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[rows]


def _graph_ops(trace: Trace, ops: Ops, call: Column) -> Column:
    """Bool per op: a node of a CUDA graph, a whole graph, or started by a graph launch."""
    graph = (ops.graph_node != 0) | (ops.kind == OpKind.GRAPH)
    started = np.flatnonzero(call >= 0)
    if len(started):
        graph[started] |= calls_with(trace, [CallRole.GRAPH_LAUNCH])[call[started]]
    return graph


def _follow_graphs(
    trace: Trace, look_up: OpenPaths, ops: Ops, call: Column, path: Column, method: Column
) -> None:
    """Rule 3, in place: launch path, then the path inside the capture."""
    graph = np.flatnonzero(_graph_ops(trace, ops, call))
    if not len(graph):
        return
    inside = capture_paths(trace, look_up, ops.process[graph], ops.graph_node[graph])
    path[graph] = look_up.trie.compose(path[graph], inside)
    method[graph] = np.where(inside >= 0, Method.GRAPH_CAPTURE, Method.GRAPH_LAUNCH)


def _reasons(trace: Trace, ops: Ops, calls: Calls, call: Column) -> Column:
    """Rule 4: why each of these ops has no owner."""
    no_call = call == NO_ROW
    smallest = smallest_correlation(calls, len(trace.processes))
    has_calls = smallest[ops.process] < np.iinfo(np.int64).max
    before = has_calls & (ops.correlation > 0) & (ops.correlation < smallest[ops.process])
    unified = (ops.correlation <= 0) & np.isin(ops.copy_kind, _UNIFIED_MEMORY_COPIES)
    return np.select(
        [no_call & unified, no_call & before, no_call, _graph_ops(trace, ops, call)],
        [
            Method.UNIFIED_MEMORY,
            Method.LAUNCHED_BEFORE_WINDOW,
            Method.NO_LAUNCH_RECORD,
            Method.OPAQUE_GRAPH,
        ],
        Method.NO_RANGE_OPEN,
    ).astype(np.int8)
