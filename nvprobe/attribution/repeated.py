"""Ranges of backward nodes in engine runs whose nodes were not named, from a run they repeat.

Naming a node costs microseconds, so the instrumentation names the nodes of few engine runs. An
unnamed run that repeats a named one (`engine_runs`) gets that run's ranges: between two events of
the sequence they lie as in the named run, in proportion, so that each call is inside the nodes that
its equal is in. Their source is `RangeSource.REPEATED`. Where named runs that repeat each other
differ in their nodes, the sequence proves nothing and they are not used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from nvprobe.attribution.engine_runs import (
    EngineRuns,
    Nodes,
    Sequences,
    called_before,
    engine_runs,
    nodes_of_runs,
    sequences,
)
from nvprobe.trace import Column, Ranges, RangeSource, Trace


def with_repeated_nodes(trace: Trace) -> Trace:
    """The Trace with ranges for the nodes of unnamed engine runs that repeat a named one."""
    whole = engine_runs(trace)
    unnamed = ~whole.named
    if not unnamed.any():
        return trace
    nodes = nodes_of_runs(trace, whole)
    order = sequences(trace, whole, nodes)
    like = _models(trace, whole, nodes, order)
    parts = list(_copies(trace, whole, nodes, order, like))
    calling = np.isin(np.arange(len(whole)), order.run)
    unknown = int((unnamed & calling & (like < 0)).sum())
    if unknown:
        warning = (
            f"{unknown} of {len(whole)} runs of the autograd engine launched what no run with "
            "named nodes did: their work is that of the backward pass as a whole"
        )
        trace = dataclasses.replace(trace, warnings=(*trace.warnings, warning))
    if not parts:
        return trace
    row, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    copied = trace.ranges.take(row).with_columns(
        start=start,
        end=end,
        source=np.full(len(row), RangeSource.REPEATED, np.int8),
    )
    ranges = Ranges.joined([trace.ranges.columns(), copied.columns()])
    return dataclasses.replace(trace, ranges=ranges)


def _models(trace: Trace, whole: EngineRuns, nodes: Nodes, order: Sequences) -> Column:
    """Per unnamed run: the first named run that it repeats, -1."""
    key = _keys(trace, whole, order)
    has_nodes = np.isin(np.arange(len(whole)), nodes.run)
    known: dict[object, int] = {}
    placed: dict[object, bytes] = {}
    for run in np.flatnonzero(whole.named & has_nodes).tolist():
        if key[run] is None:
            continue
        nodes_of_run = _placement(trace, nodes, order, run)
        if placed.setdefault(key[run], nodes_of_run) != nodes_of_run:
            known[key[run]] = -1
        else:
            known.setdefault(key[run], run)
    out = np.full(len(whole), -1, np.int64)
    for run in np.flatnonzero(~whole.named & ~has_nodes).tolist():
        out[run] = known.get(key[run], -1)
    return out


def _keys(trace: Trace, whole: EngineRuns, order: Sequences) -> list[object]:
    """Per run what equal runs have in common; None for a run that calls nothing."""
    called = called_before(trace, whole)
    parts: list[list[object]] = [[] for _ in range(len(whole))]
    for at, (run, thread) in enumerate(zip(order.run.tolist(), order.thread.tolist(), strict=True)):
        parts[run].append((thread, order.code[order.bounds(at)].tobytes()))
    signature, thread = whole.signature.tolist(), whole.thread.tolist()
    return [
        (signature[run], thread[run], called[run], *own) if own else None
        for run, own in enumerate(parts)
    ]


def _placement(trace: Trace, nodes: Nodes, order: Sequences, run: int) -> bytes:
    """Which nodes a run has, and between which events of its threads each begins and ends."""
    ranges = trace.ranges
    columns = []
    for at in range(*np.searchsorted(order.run, [run, run + 1])):
        mine = _nodes_of(nodes, order, at)
        row, time = nodes.row[mine], order.time[order.bounds(at)]
        begin, end = (np.searchsorted(time, edge) for edge in (ranges.start[row], ranges.end[row]))
        columns += [begin.astype(np.int64), end.astype(np.int64), nodes.name[mine].astype(np.int64)]
    return np.concatenate(columns).tobytes()


def _nodes_of(nodes: Nodes, order: Sequences, at: int) -> slice:
    """The nodes of the thread and run of a sequence."""
    low, high = np.searchsorted(nodes.run, [order.run[at], order.run[at] + 1])
    within = np.searchsorted(nodes.thread[low:high], [order.thread[at], order.thread[at] + 1])
    return slice(int(low + within[0]), int(low + within[1]))


def _copies(
    trace: Trace, whole: EngineRuns, nodes: Nodes, order: Sequences, like: Column
) -> Iterable[tuple[Column, Column, Column]]:
    """(row to copy, start, end) of the nodes of each repeated run."""
    ranges = trace.ranges
    first = np.searchsorted(order.run, np.arange(len(whole) + 1))
    for run in np.flatnonzero(like >= 0).tolist():
        model = int(like[run])
        for here, there in zip(
            range(first[run], first[run + 1]), range(first[model], first[model + 1]), strict=True
        ):
            row = nodes.row[_nodes_of(nodes, order, there)]
            source = _anchors(whole, order, model, there)
            target = _anchors(whole, order, run, here)
            start, end = (moved(edge[row], source, target) for edge in (ranges.start, ranges.end))
            yield row, start, end


def _anchors(whole: EngineRuns, order: Sequences, run: int, at: int) -> Column:
    """Instants that a run and the one it repeats share: its begin, its events, its end."""
    time = order.time[order.bounds(at)]
    return np.concatenate(([whole.start[run]], time, [whole.end[run]]))


def moved(time: Column, source: Column, target: Column) -> Column:
    """Instants between anchors of one run, in proportion between those of another.

    An instant at an anchor is at the other's; one behind an anchor is at least 1 ns behind the
    other's, unless the next anchor is there. The order of instants stays.
    """
    after = np.searchsorted(source, time).clip(max=len(source) - 1)
    before = np.maximum(after - 1, 0)
    since, until, begin = source[before], source[after], target[before]
    length = target[after] - begin
    share = (time - since) / np.maximum(until - since, 1)
    shifted = begin + np.minimum(np.ceil(share * length).astype(np.int64), length)
    return np.where(time == until, target[after], shifted)
