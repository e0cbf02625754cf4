"""Two captures of one program: CUDA graphs whole for their times, by node for what is in them.

Tracing each node slows a graph replay and puts idle time between its kernels; a graph traced whole
has true times and no kernels. The replays of both captures are paired by process and order. The
nodes of a replay then take the place of the whole graph: their idle time is scaled so that they
begin and end where the graph did, and only where their busy time alone is longer, that too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from nvprobe.attribution.intervals import running_max, runs
from nvprobe.trace import (
    NO_NAME,
    NO_ROW,
    OPEN,
    Column,
    Geometry,
    GraphNodes,
    OpKind,
    Ops,
    Table,
    Threads,
    Trace,
)
from nvprobe.trace.cuda_calls import CallRole, call_roles
from nvprobe.trace.sidecar import CaptureRanges, Sidecar

NODES = "graph_nodes"
"""Folder, in that of a run (``nvprobe launch --accurate``), of the run that traced nodes."""

T = TypeVar("T", bound=Table)

_WHOLE = "kernels inside CUDA graphs"
"""What a capture of whole graphs misses (`nvprobe.readers.nsys.missing`)."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Rows of whole graphs, and of the nodes that are in them; both by process and launch."""

    graph: Column
    """Rows of the whole capture's ops."""
    node: Column
    """Rows of the other capture's ops, by replay and start."""
    replay: Column
    """Position in ``graph`` that each node belongs to."""


def with_nodes(whole: Trace, nodes: Trace) -> Trace:
    """The capture of whole graphs with the nodes of the other one in their place.

    Where the two did not launch as many graphs in each process they cannot be paired: a warning
    says so, and graphs stay whole.
    """
    if not (whole.ops.kind == OpKind.GRAPH).any():
        return whole
    pairs = _pairs(whole.ops, nodes.ops)
    if pairs is None:
        warning = (
            "CUDA graphs stay whole: the run that recorded their nodes did not launch as many of "
            "them in its window"
        )
        return dataclasses.replace(whole, warnings=(*whole.warnings, warning))
    threads, rows = _threads(whole, nodes)
    text = len(whole.strings)
    ops, geometry = _with_ops(whole, nodes, pairs, text)
    strings = [trace.strings.cast(pa.string()) for trace in (whole, nodes)]
    return dataclasses.replace(
        whole,
        strings=pa.concat_arrays(strings),
        threads=threads,
        ops=ops,
        geometry=geometry,
        graph_nodes=_creations(nodes, threads, rows),
        missing=tuple(one for one in whole.missing if one.what != _WHOLE),
        sidecar=_with_captures(whole, nodes, threads, rows, text),
    )


def _pairs(whole: Ops, nodes: Ops) -> _Pairs | None:
    """Graphs and replays by process and launch; None where their numbers differ."""
    graph = np.flatnonzero(whole.kind == OpKind.GRAPH)
    graph = graph[np.lexsort((whole.correlation[graph], whole.process[graph]))]
    node = np.flatnonzero((nodes.graph_node != 0) & (nodes.end >= nodes.start))
    node = node[np.lexsort((nodes.start[node], nodes.correlation[node], nodes.process[node]))]
    process, launch = nodes.process[node], nodes.correlation[node]
    opens = np.ones(len(node), bool)
    opens[1:] = (process[1:] != process[:-1]) | (launch[1:] != launch[:-1])
    replay = np.cumsum(opens) - 1
    same = np.diff(runs(whole.process[graph]), append=len(graph))
    other = np.diff(runs(process[opens]), append=int(opens.sum()))
    if len(same) != len(other) or (same != other).any():
        return None
    return _Pairs(graph, node, replay)


def _with_ops(whole: Trace, nodes: Trace, pairs: _Pairs, text: int) -> tuple[Ops, Geometry]:
    """Ops and their geometry, nodes last."""
    kept = np.flatnonzero(whole.ops.kind != OpKind.GRAPH)
    of, own = pairs.graph[pairs.replay], nodes.ops.take(pairs.node)
    start, end = _fitted(whole.ops, own, pairs)
    placed = dataclasses.replace(
        own,
        process=whole.ops.process[of],
        device=whole.ops.device[of],
        context=whole.ops.context[of],
        correlation=whole.ops.correlation[of],
        start=start,
        end=end,
        name=_shifted(own.name, text),
        short_name=_shifted(own.short_name, text),
    )
    place = np.full(len(whole.ops), NO_ROW, np.int64)
    place[kept] = np.arange(len(kept))
    added = np.full(len(nodes.ops), NO_ROW, np.int64)
    added[pairs.node] = len(kept) + np.arange(len(pairs.node))
    geometry = _joined_geometry([(whole.geometry, place), (nodes.geometry, added)])
    return _joined([whole.ops.take(kept), placed]), geometry


def _fitted(whole: Ops, nodes: Ops, pairs: _Pairs) -> tuple[Column, Column]:
    """Begin and end of each node within the time of its graph.

    Time in a replay is busy or idle. An instant's busy and idle time since the begin are scaled
    apart: idle time to what the graph has left of it, busy time only where the graph is shorter.
    """
    firsts = runs(pairs.replay)
    count = np.diff(firsts, append=len(pairs.replay))
    reach = running_max(pairs.replay, nodes.end)
    before = np.concatenate(([0], reach[:-1]))
    before[firsts] = nodes.start[firsts]
    gap = np.maximum(nodes.start - before, 0)
    total = np.cumsum(gap)
    idle = total - np.repeat(total[firsts] - gap[firsts], count)  # since the begin of the replay
    begin = np.repeat(nodes.start[firsts], count)
    lasts = firsts + count - 1
    all_idle, span = idle[lasts], reach[lasts] - nodes.start[firsts]
    length = (whole.end - whole.start)[pairs.graph]
    all_busy = span - all_idle
    busy_to = np.minimum(all_busy, length)
    idle_to = np.minimum(length - busy_to, all_idle)

    def placed(time: Column) -> Column:
        """An instant of the nodes' capture in the graph's time."""
        busy = (time - begin - idle) * _ratio(busy_to, all_busy, count)
        return whole.start[pairs.graph][pairs.replay] + np.rint(
            busy + idle * _ratio(idle_to, all_idle, count)
        ).astype(np.int64)

    return placed(nodes.start), placed(nodes.end)


def _ratio(to: Column, of: Column, count: Column) -> Column:
    """float64 per node: how much of its replay's time is left."""
    return np.repeat(np.divide(to, of, out=np.ones(len(of)), where=of > 0), count)


def _threads(whole: Trace, nodes: Trace) -> tuple[Threads, Column]:
    """The threads of both, and the row of each of the other run's: graphs are captured there."""
    ranked = {int(rank): row for row, rank in enumerate(whole.processes.rank)}
    process = np.array([ranked.get(int(rank), 0) for rank in nodes.processes.rank], np.int32)
    known, other = whole.threads, nodes.threads
    table = Threads(
        process=np.append(known.process, process[other.process]),
        tid=np.append(known.tid, other.tid),
        name=np.append(known.name, _shifted(other.name, len(whole.strings))),
    )
    return table, len(known) + np.arange(len(other))


def _creations(nodes: Trace, threads: Threads, rows: Column) -> GraphNodes:
    """Where nodes were created, in the time of their own run."""
    table = nodes.graph_nodes
    thread = rows[table.thread]
    return table.with_columns(process=threads.process[thread], thread=thread)


def _with_captures(
    whole: Trace, nodes: Trace, threads: Threads, rows: Column, text: int
) -> Sidecar:
    """The sidecar, its captures those of the run whose nodes they explain, in that run's time."""
    table = _capture_ranges(nodes)
    thread = rows[table.thread]
    captures = table.with_columns(
        process=threads.process[thread],
        thread=thread,
        name=_shifted(table.name, text),
        category=_shifted(table.category, text),
    )
    return dataclasses.replace(whole.sidecar, captures=captures)


def _capture_ranges(nodes: Trace) -> CaptureRanges:
    """Ranges opened while graphs were captured, by the sidecar, else by the capture in the file."""
    if len(nodes.sidecar.captures):
        return nodes.sidecar.captures
    ranges, calls = nodes.ranges, nodes.calls
    inside = np.zeros(len(ranges), bool)
    roles = call_roles(nodes)
    begins, ends = roles == CallRole.CAPTURE_BEGIN, roles == CallRole.CAPTURE_END
    for process in np.unique(calls.process[begins]).tolist():
        begin = np.sort(calls.start[begins & (calls.process == process)])
        finish = np.append(np.sort(calls.start[ends & (calls.process == process)]), OPEN)
        finish = finish[np.searchsorted(finish, begin)]
        mine = np.flatnonzero(ranges.process == process)
        capture = np.searchsorted(begin, ranges.start[mine], side="right") - 1
        inside[mine] = (capture >= 0) & (ranges.start[mine] < finish[capture])
    table = ranges.take(inside)
    none = np.zeros(len(table), np.int64)
    return CaptureRanges(
        process=table.process, thread=table.thread, capture=none, depth=none, start=table.start,
        end=table.end, name=table.name, category=table.category,
    )  # fmt: skip


def _joined_geometry(tables: list[tuple[Geometry, Column]]) -> Geometry:
    """The rows of both whose op is kept, with its new place."""
    found = []
    for table, place in tables:
        if table.recorded:
            kept = table.take(place[table.op] != NO_ROW)
            found.append(dataclasses.replace(kept, op=place[kept.op]))
    return _joined(found) if found else Geometry.absent()


def _joined(tables: list[T]) -> T:
    columns = [table.columns() for table in tables]
    names = set(columns[0]).intersection(*columns[1:])
    return type(tables[0])(**{n: np.concatenate([one[n] for one in columns]) for n in names})


def _shifted(names: Column, by: int) -> Column:
    return np.where(names >= 0, names + by, NO_NAME)
