"""CUDA graphs captured inside a torch trace: which launch of the capture each replayed op was.

A torch trace does not record the creation of graph nodes. It records the launches of the capture,
which start nothing then, and the ops of each replay. Where a capture ended before a replay, both
have as many kernels, copies and sets in the same order, and the replay ran on one stream (so its
order is that of the capture), the n-th op is the n-th launch. Anything else stays unknown.

A capture can also lie in an earlier trace of the same process (another cycle of its profiler). What
was captured between the two files was recorded by neither, so a replay is only led there where a
single capture fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.trace import Calls, Column, GraphNodes, Missing, OpKind, Ops, Trace
from nvprobe.trace.cuda_calls import COPIES, SETS, CallRole, roles_of_names

CAPTURE = "CUDA graph capture"

_STARTED = {
    CallRole.KERNEL_LAUNCH: OpKind.KERNEL,
    **dict.fromkeys(COPIES, OpKind.MEMCPY),
    **dict.fromkeys(SETS, OpKind.MEMSET),
}
_NOTHING = -1
_NODE_BITS = 32
NODES = 1 << 62
"""Ids of nodes that are known by their launch begin here, beyond those that CUPTI gives."""

Columns = dict[str, Column]


@dataclass(frozen=True, slots=True)
class Captured:
    """Nodes of captures that lie inside the trace."""

    node: Column
    """int64 node id per op: as given, or that of the launch in a capture."""
    call: Column
    """int64 row of the calls that made each node."""
    created: Column
    """int64 node id made by each of these calls."""

    def table(self, process: Column, thread: Column, time: Column) -> GraphNodes:
        """The creations as a table; the columns are those of all calls."""
        return GraphNodes(
            process=process[self.call],
            thread=thread[self.call],
            time=time[self.call],
            node=self.created,
            origin=np.zeros(len(self.call), np.int64),
        )


def latest(fitting: list[int]) -> int | None:
    """The last capture that fits: within one trace no other lies between it and the replay."""
    return fitting[-1] if fitting else None


def only(fitting: list[int]) -> int | None:
    """The capture that fits, if it is the only one."""
    return fitting[0] if len(fitting) == 1 else None


def captured_nodes(
    ops: Columns,
    calls: Columns,
    names: Sequence[str],
    node: Column,
    choose: Callable[[list[int]], int | None] = latest,
) -> Captured:
    """Lead replayed ops to the launches of their capture; ``node`` is their id so far.

    ``choose`` takes the numbers of the captures that fit a replay, in the order of their ends.
    """
    launches = _launches_without_ops(ops, calls, names)
    captures = _captures(calls, names, launches)
    out = node.copy()
    used: set[int] = set()
    for begin, rows in _replays(ops, calls, node):
        kinds = ops["kind"][rows].tobytes()
        chosen = choose(
            [n for n, one in enumerate(captures) if one.end <= begin and one.kinds == kinds]
        )
        if chosen is not None and len(np.unique(ops["stream"][rows])) == 1:
            out[rows] = _made(chosen, len(rows))
            used.add(chosen)
    call = [captures[n].launches for n in sorted(used)]
    made = [_made(n, len(captures[n].launches)) for n in sorted(used)]
    nothing = np.empty(0, np.int64)
    return Captured(out, np.concatenate([nothing, *call]), np.concatenate([nothing, *made]))


def _made(capture: int, count: int) -> Column:
    """Ids of the nodes of a capture, in the order of their launches."""
    nodes: Column = NODES + (capture << _NODE_BITS) + np.arange(count)
    return nodes


def unknown_captures(node: Column, created: Column) -> tuple[Missing, ...]:
    """What is said of replayed ops whose capture is not known; ``created`` are the known nodes."""
    count = int(np.count_nonzero((node > 0) & ~np.isin(node, created)))
    if not count:
        return ()
    why = (
        f"{count} operations were replayed from CUDA graphs whose capture is not in what was "
        "given, or fits more than one; they belong to the path of the graph launch alone"
    )
    how = (
        "begin profiling before the graphs are captured, or give the trace of the same process "
        "that has the capture as well (an earlier cycle of its profiler)"
    )
    return (Missing(CAPTURE, why, how),)


@dataclass(frozen=True, slots=True)
class _Capture:
    end: int
    launches: Column
    """Rows of the calls that each make a node, in order."""
    kinds: bytes
    """Their :class:`OpKind`, one byte a node."""


def _kinds(calls: Columns, names: Sequence[str]) -> Column:
    """int8 :class:`OpKind` of what each call starts, ``_NOTHING`` where it starts nothing."""
    kind = np.full(len(CallRole), _NOTHING, np.int8)
    for role, what in _STARTED.items():
        kind[role] = what
    return kind[_roles(calls, names)]


def _roles(calls: Columns, names: Sequence[str]) -> Column:
    return roles_of_names(pa.array(names, pa.string()))[calls["name"]]


def _launches_without_ops(ops: Columns, calls: Columns, names: Sequence[str]) -> Column:
    """Rows of the calls that would start work and started none, in order."""
    rows = np.flatnonzero(_kinds(calls, names) != _NOTHING)
    rows = rows[~np.isin(calls["correlation"][rows], ops["correlation"])]
    return rows[np.argsort(calls["start"][rows], kind="stable")]


def _captures(calls: Columns, names: Sequence[str], launches: Column) -> list[_Capture]:
    """Every capture that begins and ends in the trace, in order of its end.

    Launches of any thread belong to it: the backward pass of a captured step runs on another.
    """
    roles, kinds = _roles(calls, names), _kinds(calls, names)
    begins = np.flatnonzero(roles == CallRole.CAPTURE_BEGIN)
    start = calls["start"][launches]
    out = []
    for row in np.flatnonzero(roles == CallRole.CAPTURE_END).tolist():
        before = begins[(calls["tid"][begins] == calls["tid"][row])]
        before = before[calls["start"][before] < calls["start"][row]]
        if not len(before):
            continue
        begin = int(calls["start"][before].max())
        low, high = np.searchsorted(start, [begin, calls["end"][row]])
        inside = launches[low:high]
        out.append(_Capture(int(calls["end"][row]), inside, kinds[inside].tobytes()))
    return sorted(out, key=lambda one: one.end)


def _replays(ops: Columns, calls: Columns, node: Column) -> list[tuple[int, Column]]:
    """(start of the launch, its ops in order) of each graph launch."""
    rows = np.flatnonzero(node > 0)
    rows = rows[np.lexsort((ops["start"][rows], ops["correlation"][rows]))]
    ids, first = np.unique(ops["correlation"][rows], return_index=True)
    order = np.argsort(calls["correlation"], kind="stable")
    at = np.searchsorted(calls["correlation"][order], ids)
    begin = calls["start"][order[np.minimum(at, max(len(order) - 1, 0))]] if len(order) else ids
    return list(zip(begin.tolist(), np.split(rows, first[1:]), strict=True)) if len(ids) else []


_BESIDE = 1 << 61
"""Added to ids of these nodes: those of captures in the same file are below."""
_FILE_BITS = 40
"""Correlation ids of one file lie below this power of two."""


def with_earlier_captures(trace: Trace) -> Trace:
    """``trace`` of several files with its replays led to captures in earlier files.

    A replay whose capture is not in its own file is led to an earlier one of its process where a
    single capture fits. A warning counts the ops: nobody recorded what was captured in between.
    """
    node, tables, led = trace.ops.graph_node.copy(), [], 0
    pids, count = np.unique(trace.processes.pid, return_counts=True)
    for pid in pids[count > 1].tolist():
        files = np.flatnonzero(trace.processes.pid == pid)
        found = _of_process(trace.ops, trace.calls, trace, files)
        if found is not None:
            rows, nodes, table = found
            node[rows], led = nodes, led + len(rows)
            tables.append(table)
    ops = dataclasses.replace(trace.ops, graph_node=node)
    joined = _end_to_end([one for one in (trace.graph_nodes, *tables) if len(one)])
    others = tuple(one for one in trace.missing if one.what != CAPTURE)
    unknown = unknown_captures(node, joined.node)
    guessed = (
        f"{led} operations of CUDA graphs were led to a capture in an earlier trace, the only one "
        "that has as many kernels, copies and sets in their order",
    )
    return dataclasses.replace(
        trace,
        ops=ops,
        graph_nodes=joined,
        missing=(*others, *unknown),
        warnings=(*trace.warnings, *(guessed if led else ())),
    )


def _of_process(
    ops: Ops, calls: Calls, trace: Trace, files: Column
) -> tuple[Column, Column, GraphNodes] | None:
    """(ops, their nodes, creations of these) of the files of one process."""
    mine = np.flatnonzero(np.isin(ops.process, files))
    called = np.flatnonzero(np.isin(calls.process, files))
    unknown = (ops.graph_node[mine] > 0) & ~_created(trace.graph_nodes, ops, mine)
    if not unknown.any():
        return None
    names, code = np.unique(calls.name[called], return_inverse=True)
    found = captured_nodes(
        {
            "kind": ops.kind[mine],
            "stream": ops.stream[mine],
            "start": ops.start[mine],
            "correlation": _apart(ops.process[mine], ops.correlation[mine]),
        },
        {
            "name": code,
            "tid": trace.threads.tid[calls.thread[called]],
            "start": calls.start[called],
            "end": calls.end[called],
            "correlation": _apart(calls.process[called], calls.correlation[called]),
        },
        [text or "" for text in trace.texts(names)],
        np.where(unknown, ops.graph_node[mine], 0),
        only,
    )
    led = unknown & np.isin(found.node, found.created)
    if not led.any():
        return None
    maker = called[found.call]
    replayed = np.unique(ops.process[mine[led]])
    table = GraphNodes(
        process=np.repeat(replayed, len(maker)),
        thread=np.tile(calls.thread[maker], len(replayed)),
        time=np.tile(calls.start[maker], len(replayed)),
        node=np.tile(found.created + _BESIDE, len(replayed)),
        origin=np.zeros(len(maker) * len(replayed), np.int64),
    )
    return mine[led], found.node[led] + _BESIDE, table


def _created(nodes: GraphNodes, ops: Ops, rows: Column) -> Column:
    """Bool per op: the creation of its node is known from its own file."""
    process = np.concatenate((nodes.process, ops.process[rows])).astype(np.int64)
    distinct, code = np.unique(
        np.concatenate((nodes.node, ops.graph_node[rows])), return_inverse=True
    )
    pair = process * len(distinct) + code
    return np.isin(pair[len(nodes) :], pair[: len(nodes)])


def _apart(process: Column, correlation: Column) -> Column:
    """Correlation ids that differ between files."""
    return (process.astype(np.int64) << _FILE_BITS) + correlation


def _end_to_end(tables: list[GraphNodes]) -> GraphNodes:
    if not tables:
        return GraphNodes.absent()
    names = tables[0].columns()
    return GraphNodes(**{n: np.concatenate([getattr(one, n) for one in tables]) for n in names})
