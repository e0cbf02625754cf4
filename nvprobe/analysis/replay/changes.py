"""What a change does to a model: the primitives that every kind of change is made of.

Each works in place. Rows stay: a dropped one takes no time.
"""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.model import NEVER, NOTHING, EventKind, Model
from nvprobe.trace import Column

ASYNC_NS = 4_000
"""An asynchronous copy takes the host at most this long."""


def ops_of(model: Model, events: Column) -> Column:
    """Bool per op: launched by one of ``events`` (bool per event)."""
    return events[model.ops.event] if len(model.ops) else np.empty(0, bool)


def drop(model: Model, events: Column) -> None:
    """Events as if they were not there: no time in or before them, no ops, no wait."""
    drop_ops(model, ops_of(model, events))
    model.events.gap[events] = 0
    unwait(model, events)
    model.events.dur[events] = 0


def drop_ops(model: Model, ops: Column) -> None:
    """Ops that take no time and hold nothing back."""
    model.ops.dur[ops] = 0
    model.ops.gap[ops] = 0
    model.ops.lat[ops] = NEVER
    model.ops.dep[ops] = NOTHING


def unwait(model: Model, events: Column) -> None:
    """A pure synchronization takes no time; a copy becomes an asynchronous call."""
    e = model.events
    waiting = events & (e.awaits != NOTHING)
    launching = model.op_end() > e.first_op
    e.awaits[waiting] = NOTHING
    copies = waiting & launching
    e.dur[copies] = np.minimum(e.dur[copies], ASYNC_NS)
    e.dur[events & (e.kind == EventKind.SYNC) & ~launching] = 0


def own_stream(model: Model, ops: Column) -> None:
    """Ops run on a stream of their own, and no op of another stream waits for them."""
    model.ops.stream[ops] = len(model.tails)
    model.tails = np.append(model.tails, NEVER)
    after = (model.ops.dep >= 0) & ops[np.maximum(model.ops.dep, 0)]
    model.ops.dep[after] = NOTHING


def scale(model: Model, ops: Column, factor: float | Column) -> None:
    """Ops last this much of what they did. ``factor``: one for all, or one per chosen op."""
    model.ops.dur[ops] = np.rint(model.ops.dur[ops] * factor).astype(np.int64)


def merge(model: Model, events: Column, groups: Column, host_ns: float, op_ns: Column) -> None:
    """The first of each group does it all in ``op_ns`` (per group); the rest keep a host share.

    ``groups``: a code per chosen event. ``host_ns``: the share of their gaps and calls that the
    others keep.
    """
    rows = np.flatnonzero(events)
    code, first = np.unique(groups, return_index=True)
    leaders = rows[first]
    rest = events.copy()
    rest[leaders] = False
    e = model.events
    gap, dur = e.gap[rest].copy(), e.dur[rest].copy()
    drop(model, rest)
    e.gap[rest] = np.rint(gap * host_ns).astype(np.int64)
    e.dur[rest] = np.rint(dur * host_ns).astype(np.int64)
    until = model.op_end()
    for leader, length in zip(leaders.tolist(), op_ns[: len(code)].tolist(), strict=True):
        low, high = int(e.first_op[leader]), int(until[leader])
        if high > low:
            model.ops.dur[low:high] = 0
            model.ops.dur[low] = round(length)
