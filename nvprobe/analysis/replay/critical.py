"""The critical path of a replay: from the end of its last step back, what held each thing back.

Its parts add up to the time they span, to the nanosecond. To shorten anything else shortens
nothing, until the path is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from nvprobe.analysis.replay.model import ALL, NEVER, NOTHING, Model
from nvprobe.analysis.replay.run import Times, completion
from nvprobe.trace import Column


class Part(IntEnum):
    """What the time of a stretch of the path is."""

    HOST = 0
    """The host works before an event."""
    CALL = 1
    """The host is in a call, and does not wait."""
    RETURN = 2
    """What the host waited for has ended, and its call returns."""
    LATENCY = 3
    """A launched op is on its way to a free stream."""
    GPU = 4
    """An op runs."""
    GAP = 5
    """Between two ops of a stream."""
    STREAM = 6
    """From an op to one of another stream that waits for it."""

    @property
    def label(self) -> str:
        """Its name in reports and JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Critical:
    """Stretches of the path, the last first."""

    part: Column
    row: Column
    """The event (``HOST``, ``CALL``, ``RETURN``) or the op (the others) that it belongs to."""
    ns: Column


def critical_path(model: Model, times: Times, since: int) -> Critical:
    """The path from the end of the last step back to the instant ``since``."""
    return path_back(model, times, last_of(model, times), since)


def last_of(model: Model, times: Times) -> tuple[Literal["event", "op"], int]:
    """What ends the last step: its border, or the op (of its lane) that ends last."""
    last, end = int(model.borders[-1]), int(completion(model, times)[-1])
    if int(times.event[last]) == end:
        return "event", last
    before = int(model.events.first_op[last])
    lane = model.events.lane
    mine = np.flatnonzero(lane[model.ops.event[:before]] == lane[last])
    return "op", int(mine[np.flatnonzero(times.op[mine] == end)[0]])


def path_back(
    model: Model, times: Times, last: tuple[Literal["event", "op"], int], since: int
) -> Critical:
    """The path from the end of ``last`` back to the instant ``since``."""
    kind, row = last
    walk = _Walk(model, times, since, int((times.event if kind == "event" else times.op)[row]))
    walk.back(kind, row)
    return Critical(*(np.array(column, np.int64) for column in walk.columns))


class _Walk:
    """One step back after the other; a stretch that reaches past ``since`` is cut there."""

    def __init__(self, model: Model, times: Times, since: int, end: int) -> None:
        self.model, self.times, self.since, self.at = model, times, since, end
        self.columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.limits = model.limits()
        self.in_lane = _previous(model.events.lane)
        self.on_stream = _previous(model.ops.stream)

    def add(self, part: Part, row: int, begin: int) -> bool:
        """Note a stretch from ``begin`` to where the walk is; whether the walk goes on.

        An edge of negative length (the GPU starts inside the call) leads back to something that
        ends later than the walk is: less of that counts.
        """
        begin = max(begin, self.since)
        if begin < self.at:
            for column, value in zip(self.columns, (part, row, self.at - begin), strict=True):
                column.append(int(value))
            self.at = begin
        return self.at > self.since

    def back(self, kind: str, row: int) -> None:
        """Walk back from the end of an op, an event or its call."""
        steps = {"op": self._op, "event": self._event_end, "call": self._call}
        at: tuple[str, int] | None = (kind, row)
        while at is not None:
            at = steps[at[0]](at[1])

    def _event_end(self, event: int) -> tuple[str, int] | None:
        """What its end follows from: what it waited for, or its own call."""
        e, times = self.model.events, self.times
        awaits = int(e.awaits[event])
        if awaits == NOTHING or int(times.event[event]) == self._called(event):
            return ("call", event)
        op = awaits if awaits != ALL else self._last_of_all(event)
        return ("op", op) if self.add(Part.RETURN, event, int(times.op[op])) else None

    def _last_of_all(self, event: int) -> int:
        """Of all that was launched before, on any stream that it waits for, the last to end."""
        launched = int(self.model.op_end()[event])
        own = self.model.streams_of(int(self.model.events.lane[event]))
        waited = np.isin(self.model.ops.stream[:launched], own)
        return int(np.argmax(np.where(waited, self.times.op[:launched], NEVER)))

    def _called(self, event: int) -> int:
        """When the call would have returned without waiting."""
        return self._begin(event) + int(self.model.events.dur[event])

    def _begin(self, event: int) -> int:
        before = self._before(event) + int(self.model.events.gap[event])
        limit = int(self.limits[event])
        return before if limit < 0 else max(before, int(self.times.op[limit]))

    def _before(self, event: int) -> int:
        previous = int(self.in_lane[event])
        return 0 if previous < 0 else int(self.times.event[previous])

    def _call(self, event: int) -> tuple[str, int] | None:
        """The call itself, then the work before it, or a full queue."""
        begin = self._begin(event)
        if not self.add(Part.CALL, event, begin):
            return None
        before, previous = self._before(event), int(self.in_lane[event])
        if begin > before + int(self.model.events.gap[event]):
            return ("op", int(self.limits[event]))
        going = self.add(Part.HOST, event, before)
        return ("event", previous) if going and previous >= 0 else None

    def _op(self, op: int) -> tuple[str, int] | None:
        """The op, then whatever let it start last."""
        o, ended = self.model.ops, self.times.op
        start = int(ended[op]) - int(o.dur[op])
        if not self.add(Part.GPU, op, start):
            return None
        previous, dep, event = int(self.on_stream[op]), int(o.dep[op]), int(o.event[op])
        if dep >= 0 and int(ended[dep]) + int(o.dep_lat[op]) == start:
            return self._after(Part.STREAM, op, ("op", dep), int(ended[dep]))
        if previous >= 0 and int(ended[previous]) + int(o.gap[op]) == start:
            return self._after(Part.GAP, op, ("op", previous), int(ended[previous]))
        called = self._called(event)
        if int(o.lat[op]) > NEVER and called + int(o.lat[op]) == start:
            return self._after(Part.LATENCY, op, ("call", event), called)
        self.add(Part.GAP, op, self.since)  # work from before the model held the stream
        return None

    def _after(
        self, part: Part, op: int, cause: tuple[str, int], begin: int
    ) -> tuple[str, int] | None:
        return cause if self.add(part, op, begin) else None


def _previous(code: Column) -> Column:
    """Per row the one before with the same code, -1 for none."""
    order = np.argsort(code, kind="stable")
    out = np.full(len(code), -1)
    same = code[order][1:] == code[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out
