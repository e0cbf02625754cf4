"""The model of a replay: what the host does in order, what the GPU does, and what waits for what.

All times are int64 nanoseconds, so a replay is exact. Rows are never removed: a change sets
lengths to zero, so that every reference stays what it was. Definitions: docs/replay.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np

from nvprobe.trace import Column, Table, column

T = TypeVar("T", bound=Table)

NEVER = -(1 << 60)
"""A time that bounds nothing; sums with any length of a capture stay in 64 bits."""
NOTHING = -1
"""Awaits no op; depends on none."""
ALL = -2
"""Awaits the last op of every stream."""
QUEUE = 1024
"""Launches that a GPU takes before the next one has to wait."""


class EventKind(IntEnum):
    """What a host event is; of calls inside each other the greatest counts."""

    STEP = 0
    """The border of a step: no length."""
    LAUNCH = 1
    OTHER = 2
    """Compiles, links or loads device code."""
    ALLOCATION = 3
    SYNC = 4
    BLOCKING_COPY = 5


@dataclass(frozen=True, slots=True)
class HostEvents(Table):
    """One row per event, in the order of the capture: the outermost calls, and borders of steps."""

    lane: Column = column("i4")
    gap: Column = column("i8")
    """Host work before it, since the event before in its lane."""
    dur: Column = column("i8")
    """Length without waiting."""
    kind: Column = column("i1")
    awaits: Column = column("i8")
    """Row of the op it waits for, ``ALL`` or ``NOTHING``."""
    ret: Column = column("i8")
    """From the end of what it awaits to its own end; negative where it returns before."""
    first_op: Column = column("i8")
    """Its ops begin here in ``QueuedOps`` and end where those of the next event begin."""


@dataclass(frozen=True, slots=True)
class QueuedOps(Table):
    """One row a GPU op, in the order in which they were launched."""

    event: Column = column("i8")
    stream: Column = column("i4")
    dur: Column = column("i8")
    gap: Column = column("i8")
    """From the end of the op before on its stream, at least."""
    lat: Column = column("i8")
    """From the end of its event, at least; negative where the GPU starts inside the call."""
    dep: Column = column("i8")
    """Row of an op of another stream that it waits for, or ``NOTHING``."""
    dep_lat: Column = column("i8")


@dataclass(slots=True)
class Model:
    """A sequence of steps of one process."""

    events: HostEvents
    ops: QueuedOps
    lanes: int
    tails: Column
    """Per stream: until when earlier work holds it; ``NEVER`` where nothing does."""
    queue: int = QUEUE
    floor: int = 0
    """No step is shorter, whatever the host and the GPU do."""
    waited: Column | None = None
    """Per event: how much of its gap waits for data, in a model whose host was calibrated."""

    def edit(self) -> Model:
        """A copy that may be changed."""
        return dataclasses.replace(
            self, events=_copied(self.events), ops=_copied(self.ops), tails=self.tails.copy()
        )

    def streams_of(self, lane: int) -> Column:
        """The streams that a wait for ``ALL`` in this lane is for."""
        return np.arange(len(self.tails))

    @property
    def borders(self) -> Column:
        """Rows of the events that begin a step, and of the one that ends the last."""
        return np.flatnonzero(self.events.kind == EventKind.STEP)

    def op_end(self) -> Column:
        """Per event: where its ops end."""
        return np.append(self.events.first_op[1:], len(self.ops))

    def limits(self) -> Column:
        """Per event: row of the op that must have ended before the queue takes another launch."""
        until = self.op_end()
        launching = np.flatnonzero(until > self.events.first_op)
        out = np.full(len(self.events), NOTHING)
        if len(launching) > self.queue:
            out[launching[self.queue :]] = until[launching[: -self.queue]] - 1
        return out

    def section(self, low: int, high: int, start: Column) -> Model:
        """Steps ``low … high - 1`` alone, with nothing queued. ``start``: recorded, per event."""
        borders = self.borders
        first, last = int(borders[low]), int(borders[high])
        events = self.events.take(np.arange(first, last + 1))
        begin = int(events.first_op[0])
        ops = self.ops.take(np.arange(begin, int(events.first_op[-1])))
        gap = events.gap.copy()
        for lane in range(self.lanes):
            mine = np.flatnonzero(events.lane == lane)[:1]
            gap[mine] = start[first + mine] - start[first]
        events = dataclasses.replace(
            events,
            gap=gap,
            first_op=events.first_op - begin,
            awaits=_moved(events.awaits, begin),
        )
        ops = dataclasses.replace(ops, event=ops.event - first, dep=_moved(ops.dep, begin))
        return dataclasses.replace(
            self, events=events, ops=ops, tails=np.full_like(self.tails, NEVER)
        )


def _moved(rows: Column, begin: int) -> Column:
    """References to ops when the first ``begin`` are gone."""
    return np.where(rows >= begin, rows - begin, np.where(rows == ALL, ALL, NOTHING))


def _copied(table: T) -> T:
    return dataclasses.replace(
        table, **{name: values.copy() for name, values in table.columns().items()}
    )
