"""CUDA graphs captured in one torch trace and replayed in a later one of the same process."""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.readers.kineto.captures import CAPTURE, captured_nodes, only, untold_captures
from nvprobe.trace import Calls, Column, GraphNodes, Ops, Trace

__all__ = ["with_earlier_captures"]

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
    untold = untold_captures(node, joined.node)
    told = (
        f"{led} operations of CUDA graphs were led to a capture in an earlier trace, the only one "
        "that has as many kernels, copies and sets in their order",
    )
    return dataclasses.replace(
        trace,
        ops=ops,
        graph_nodes=joined,
        missing=(*others, *untold),
        warnings=(*trace.warnings, *(told if led else ())),
    )


def _of_process(
    ops: Ops, calls: Calls, trace: Trace, files: Column
) -> tuple[Column, Column, GraphNodes] | None:
    """(ops, their nodes, creations of these) of the files of one process."""
    mine = np.flatnonzero(np.isin(ops.process, files))
    called = np.flatnonzero(np.isin(calls.process, files))
    untold = (ops.graph_node[mine] > 0) & ~_created(trace.graph_nodes, ops, mine)
    if not untold.any():
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
        np.where(untold, ops.graph_node[mine], 0),
        only,
    )
    led = untold & np.isin(found.node, found.created)
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
