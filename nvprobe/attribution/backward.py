"""Modules of the ops that autograd threads launch, through the autograd sequence number.

Every backward node carries the number its forward operator was given (per forward thread, rising).
The numbers come with the names of the nodes (``AddmmBackward0, seq = 12``); a number leads to the
module

* by the sidecar's module calls: the innermost call with ``first <= n < last``;
* without them by the operators' names: the *last* forward operator that carries n.

AccumulateGrad has no number and takes the numbered node before it on its thread. So does what the
engine launches between nodes: summing a gradient to its shape and adding gradients that meet, both
done with the results of the node that has just run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.compiled import innermost_modules
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import nest
from nvprobe.trace import NO_ROW, Column
from nvprobe.trace.sidecar import ModuleCalls


@dataclass(frozen=True, slots=True)
class BackwardNodes:
    """The autograd node that runs each op launched by an autograd thread, one row per op."""

    op: Column
    """int64 row of ``trace.ops``."""
    sequence: Column
    """int64 sequence number of its node, or of the node before; -1 unknown."""
    borrowed: Column
    """bool: the number is that of the node before."""


def backward_nodes(attribution: Attribution) -> BackwardNodes:
    """Find the node of every op that an autograd thread launched."""
    trace = attribution.trace
    op = np.flatnonzero(attribution.call >= 0)
    if not len(op):
        nothing = np.empty(0, np.int64)
        return BackwardNodes(nothing, nothing, np.empty(0, bool))
    op = op[attribution.autograd[trace.calls.thread[attribution.call[op]]]]
    call = attribution.call[op]
    thread, time = trace.calls.thread[call], trace.calls.start[call]
    nesting = attribution.open.nesting
    last = nesting.last_started(thread, time)
    query, position = nesting.open_chains(last, time)
    row = nesting.row[position]
    own = _first_of_query(query, attribution.tree.sequence[row], len(op))
    borrowed = own < 0
    before = _number_before(attribution)
    known = borrowed & (last >= 0)
    own[known] = before[last[known]]
    return BackwardNodes(op, own, borrowed)


def _first_of_query(query: Column, values: Column, queries: int) -> Column:
    """The first value >= 0 of each query (chains stand outermost first), -1 for none."""
    out = np.full(queries, NO_ROW, np.int64)
    good = np.flatnonzero(values >= 0)[::-1]
    out[query[good]] = values[good]  # the outermost is written last
    return out


def _number_before(attribution: Attribution) -> Column:
    """Sequence number of the last numbered range started up to each nesting position."""
    nesting = attribution.open.nesting
    sequence = attribution.tree.sequence[nesting.row]
    position = np.where(sequence >= 0, np.arange(len(sequence)), NO_ROW)
    latest = np.maximum.accumulate(position) if len(position) else position
    begins = np.repeat(nesting.first[:-1], np.diff(nesting.first))
    return np.where(latest >= begins, sequence[latest], NO_ROW)


def module_of_sequence(
    attribution: Attribution, process: Column, sequence: Column
) -> tuple[Column, list[str]]:
    """Module of each (process row, sequence number): int64 row of the texts returned, -1."""
    trace, paths = attribution.trace, attribution.paths
    texts: dict[str, int] = {}
    out = np.full(len(sequence), NO_ROW, np.int64)
    calls = trace.sidecar.modules
    called = _innermost_call(attribution, calls, process, sequence)
    found = np.flatnonzero(called >= 0)
    used, which = np.unique(calls.module[called[found]], return_inverse=True)
    rows = [texts.setdefault(text or "", len(texts)) for text in trace.texts(used)]
    out[found] = np.asarray(rows, np.int64)[which]
    left = np.flatnonzero((out < 0) & (sequence >= 0))
    path = _forward_path(attribution, process[left], sequence[left])
    name = np.full(len(left), NO_ROW, np.int64)
    name[path >= 0] = innermost_modules(paths)[path[path >= 0]]
    for row in np.unique(name[name >= 0]).tolist():
        out[left[name == row]] = texts.setdefault(str(paths.names[row].as_py()), len(texts))
    return out, list(texts)


def _innermost_call(
    attribution: Attribution, calls: ModuleCalls, process: Column, sequence: Column
) -> Column:
    """Row of the innermost module call that made each node, -1.

    Numbers count per thread and a node does not say which: the initiating thread's come first.
    """
    out = np.full(len(sequence), NO_ROW, np.int64)
    # Callers stand before their callees where both intervals are the same.
    order = np.argsort(calls.start, kind="stable")
    threads = len(attribution.trace.threads)
    thread = calls.thread[order]
    nesting = nest(thread, calls.first_sequence[order], calls.last_sequence[order], threads)
    main = attribution.initiating
    for one in sorted(np.unique(thread).tolist(), key=lambda row: row not in main):
        asked = np.flatnonzero(
            (out < 0) & (sequence >= 0) & (process == attribution.trace.threads.process[one])
        )
        on = np.full(len(asked), one)
        position = nesting.innermost(nesting.last_started(on, sequence[asked]), sequence[asked])
        hit = position >= 0
        out[asked[hit]] = order[nesting.row[position[hit]]]
    return out


def _forward_path(attribution: Attribution, process: Column, sequence: Column) -> Column:
    """Path of the last forward operator that carries each number, -1."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    out = np.full(len(sequence), NO_ROW, np.int64)
    rows = np.flatnonzero((tree.sequence >= 0) & ~attribution.autograd[ranges.thread])
    rows = rows[np.lexsort((ranges.start[rows], tree.sequence[rows], ranges.process[rows]))]
    if not len(rows) or not len(sequence):
        return out
    numbers, number = np.unique(tree.sequence[rows], return_inverse=True)
    place = np.searchsorted(numbers, sequence).clip(0, len(numbers) - 1)
    known = numbers[place] == sequence
    keys = ranges.process[rows].astype(np.int64) * len(numbers) + number
    asked = np.where(known, process.astype(np.int64) * len(numbers) + place, -1)
    at = np.searchsorted(keys, asked, side="right") - 1
    hit = (at >= 0) & (keys[np.maximum(at, 0)] == asked)
    out[hit] = tree.path[rows[at[hit]]]
    return out
