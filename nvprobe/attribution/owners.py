"""Rules 1 to 4: the owner path of every GPU op, or the reason why it has none.

An op leads to the call that started it by process and correlation id; a node of a CUDA graph leads
on to the ranges in which it was captured (rule 3).
"""

from __future__ import annotations

import numpy as np

from nvprobe.attribution.intervals import Coverage, runs
from nvprobe.attribution.model import Method
from nvprobe.attribution.paths import NO_PATH, OpenPaths
from nvprobe.trace import NO_ROW, Calls, Column, GraphNodes, OpKind, Ops, RangeSource, Trace
from nvprobe.trace.cuda_calls import CallRole, calls_with


def calls_of_ops(calls: Calls, ops: Ops) -> Column:
    """int64 row of ``calls`` per op, -1 where no call has its correlation id.

    Of several rows with one id the one that starts first is the call (ties: the longest).
    """
    known = np.flatnonzero(calls.correlation > 0)
    asked = np.flatnonzero(ops.correlation > 0)
    out = np.full(len(ops), NO_ROW, np.int64)
    call_key, op_key = _keys(
        calls.process[known], calls.correlation[known], ops.process[asked], ops.correlation[asked]
    )
    if not len(call_key) or not len(op_key):
        return out
    row = _first_of_each_key(call_key, calls, known)
    size = int(max(call_key.max(), op_key.max())) + 1
    table = np.full(size, NO_ROW, np.int64)
    table[call_key[row]] = known[row]
    out[asked] = table[op_key]
    return out


def smallest_correlation(calls: Calls, processes: int) -> Column:
    """int64 smallest recorded correlation id per process; the largest int64 where none is."""
    known = calls.correlation > 0
    low, _ = _extremes(calls.process[known], calls.correlation[known], processes)
    return low


def _keys(
    process_a: Column, id_a: Column, process_b: Column, id_b: Column
) -> tuple[Column, Column]:
    """Small dense integers for (process, correlation id) pairs of two tables.

    Correlation ids are dense in real captures: then the id less the process's smallest one will
    do, each process in a block of its own. Otherwise they are numbered by sorting.
    """
    process = np.concatenate((process_a, process_b)).astype(np.int64)
    identity = np.concatenate((id_a, id_b))
    low, high = _extremes(process, identity, int(process.max(initial=-1)) + 1)
    seen = high > 0
    width = np.where(seen, high - np.where(seen, low, 0) + 1, 0)
    if float(width.astype(float).sum()) <= 8.0 * len(identity) + 1e6:
        key = identity - low[process] + (np.cumsum(width) - width)[process]
    else:
        _, dense = np.unique(identity, return_inverse=True)
        _, key = np.unique(process * (int(dense.max()) + 1) + dense, return_inverse=True)
    return key[: len(id_a)], key[len(id_a) :]


def _extremes(process: Column, identity: Column, processes: int) -> tuple[Column, Column]:
    """Smallest and greatest id per process; the largest int64 and 0 where it has none."""
    low = np.full(processes, np.iinfo(np.int64).max, np.int64)
    high = np.zeros(processes, np.int64)
    if processes == 1 and len(identity):
        low[0], high[0] = identity.min(), identity.max()  # ten times the speed of ufunc.at
    else:
        np.minimum.at(low, process, identity)
        np.maximum.at(high, process, identity)
    return low, high


def _first_of_each_key(key: Column, calls: Calls, known: Column) -> Column:
    """Positions in ``key`` such that each key stands once: first start, then the longest."""
    if int(np.bincount(key).max()) == 1:
        return np.arange(len(key))
    start = calls.start[known]
    order = np.lexsort((start - calls.end[known], start, key))
    return order[runs(key[order])]


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
        # A clone has two rows, one of them without its origin: the row that has it comes first.
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
    method[started[_repeated(trace, thread, time)[of_op]]] = Method.REPEATED
    _follow_graphs(trace, look_up, ops, call, path, method)
    lost = np.flatnonzero(path < 0)
    method[lost] = _reasons(trace, ops.take(lost), calls, call[lost])
    return call, path, method


def _repeated(trace: Trace, thread: Column, time: Column) -> Column:
    """Bool per call: inside a backward node that only an equal engine run recorded."""
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.source == RangeSource.REPEATED)
    inside = Coverage.of(
        ranges.thread[rows], ranges.start[rows], ranges.end[rows], len(trace.threads)
    )
    return inside.contains(thread, time)


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
