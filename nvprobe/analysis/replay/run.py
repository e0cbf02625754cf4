"""Run a model: when each event and each op ends.

Between two events that wait the host knows no GPU, so a whole segment is two running maxima: one of
the host, one of each stream. Where waits are close together, the plain loop is faster.
tests/oracle_replay.py is that loop in its simplest form; both agree to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.replay.model import ALL, NEVER, NOTHING, Model
from nvprobe.attribution.intervals import by_group
from nvprobe.trace import Column

_WORTH_A_SCAN = 60
"""Mean events of a segment from which running maxima beat the loop."""


@dataclass(frozen=True, slots=True)
class Times:
    """When everything ends, in ns since the begin of the model."""

    event: Column
    op: Column


def replay(model: Model) -> Times:
    """End of each event and op. Lanes keep the order in which the capture has their events."""
    if not len(model.events):
        return Times(np.empty(0, np.int64), np.empty(0, np.int64))
    waits = np.count_nonzero(model.events.awaits != NOTHING)  # each ends a segment
    if len(model.events) < _WORTH_A_SCAN * waits:
        return _loop(model)
    borders = _segments(model)
    if len(model.events) < _WORTH_A_SCAN * len(borders):
        return _loop(model)
    return _Scan(model).run(borders)


def replay_cost(model: Model) -> int:
    """How long a replay takes, in events of the plain loop (1 µs or so each)."""
    return min(len(model.events), _WORTH_A_SCAN * len(_segments(model)))


def step_times(model: Model, times: Times) -> Column:
    """Length of each step: from when host and launched ops are done at its begin to its end."""
    return np.maximum(np.diff(completion(model, times)), model.floor)


def completion(model: Model, times: Times) -> Column:
    """Per border: when the host is there and every op that its lane launched before has ended.

    What other threads launched counts where these ops wait for it.
    """
    rows = model.borders
    return np.maximum(times.event[rows], done_before(model, times.op)[rows])


def done_before(model: Model, op_end: Column) -> Column:
    """Per event: when all earlier ops of the lane that makes the steps have ended."""
    if not len(op_end):
        return np.full(len(model.events), NEVER)
    lane = model.events.lane
    mine = lane[model.ops.event] == lane[model.borders[:1]].max(initial=0)
    reach = np.maximum.accumulate(np.where(mine, op_end, NEVER))
    return np.append(NEVER, reach)[model.events.first_op]


def _loop(model: Model) -> Times:
    """One event after the other."""
    e, o = model.events, model.ops
    host, tails = [0] * model.lanes, model.tails.tolist()
    lanes = np.unique(model.events.lane[model.events.awaits == ALL]).tolist()
    awaitable = {lane: model.streams_of(lane).tolist() for lane in lanes}
    ended: list[int] = []
    event_end: list[int] = []
    columns_of_ops = (o.stream, o.gap, o.lat, o.dur, o.dep, o.dep_lat)
    ops = list(zip(*(c.tolist() for c in columns_of_ops), strict=True))
    columns = (e.lane, e.gap, e.dur, e.awaits, e.ret, e.first_op, model.op_end(), model.limits())
    for lane, gap, dur, awaits, ret, first, last, limit in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        now = host[lane] + gap
        if limit >= 0 and ended[limit] > now:
            now = ended[limit]
        now += dur
        for stream, op_gap, lat, op_dur, dep, dep_lat in ops[first:last]:
            start = max(0, tails[stream] + op_gap, now + lat)
            if dep >= 0:
                start = max(start, ended[dep] + dep_lat)
            tails[stream] = start + op_dur
            ended.append(start + op_dur)
        if awaits != NOTHING:
            until = max(tails[s] for s in awaitable[lane]) if awaits == ALL else ended[awaits]
            now = max(now, until + ret)
        host[lane] = now
        event_end.append(now)
    return Times(np.array(event_end, np.int64), np.array(ended, np.int64))


def _segments(model: Model) -> list[int]:
    """Where segments end: after an event that waits, before one that needs an op of the segment.

    An event with ops that depend on one another is a segment of its own.
    """
    e, o = model.events, model.ops
    size = len(e)
    need = np.full(size, -1)
    limits = model.limits()
    bound = limits >= 0
    need[bound] = o.event[limits[bound]]
    depends = np.flatnonzero(o.dep >= 0)
    np.maximum.at(need, o.event[depends], o.event[o.dep[depends]])
    inner = np.unique(o.event[depends][o.event[o.dep[depends]] == o.event[depends]])
    need[inner] = np.minimum(need[inner], inner - 1)
    reach = np.maximum.accumulate(need)
    waits = np.union1d(np.flatnonzero(e.awaits != NOTHING) + 1, np.union1d(inner, inner + 1))
    borders, at = [], 0
    while at < size:
        wait = np.searchsorted(waits, at, "right")
        end = int(waits[wait]) if wait < len(waits) else size
        at = min(end, max(int(np.searchsorted(reach, at)), at + 1), size)
        borders.append(at)
    return borders


class _Scan:
    """A replay segment by segment; what is done so far is in ``host``, ``tails`` and ``ended``."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.host = np.zeros(model.lanes, np.int64)
        self.tails = model.tails.copy()
        self.ended = np.zeros(len(model.ops) + 1, np.int64)
        self.ended[-1] = NEVER  # what a reference to nothing finds
        self.event_end = np.zeros(len(model.events), np.int64)
        self.limits, self.op_end = model.limits(), model.op_end()
        ops = model.ops
        depends = np.flatnonzero(ops.dep >= 0)
        inner = ops.event[ops.dep[depends]] == ops.event[depends]
        self.inner = set(ops.event[depends[inner]].tolist())

    def run(self, borders: list[int]) -> Times:
        """All segments."""
        low = 0
        for high in borders:
            self._hosts(low, high)
            first, last = int(self.model.events.first_op[low]), int(self.op_end[high - 1])
            if low in self.inner:
                self._one_by_one(first, last)
            elif last > first:
                self._streams(first, last)
            self._wait(high - 1)
            low = high
        return Times(self.event_end, self.ended[:-1])

    def _hosts(self, low: int, high: int) -> None:
        e = self.model.events
        for lane, rows in by_group(e.lane[low:high]):
            mine = np.arange(low, high)[rows]
            work = np.cumsum(e.gap[mine] + e.dur[mine])
            bound = self.ended[self.limits[mine]] + e.dur[mine] - work
            bound[0] = max(bound[0], self.host[lane])
            self.event_end[mine] = work + np.maximum.accumulate(bound)
            self.host[lane] = self.event_end[mine[-1]]

    def _streams(self, first: int, last: int) -> None:
        o = self.model.ops
        ready = self.event_end[o.event[first:last]] + o.lat[first:last]
        ready = np.maximum(
            np.maximum(ready, 0), self.ended[o.dep[first:last]] + o.dep_lat[first:last]
        )
        for stream, rows in by_group(o.stream[first:last]):
            dur = o.dur[first:last][rows]
            work = np.cumsum(o.gap[first:last][rows] + dur)
            bound = ready[rows] + dur - work
            bound[0] = max(bound[0], self.tails[stream])
            end = work + np.maximum.accumulate(bound)
            self.ended[first:last][rows] = end
            self.tails[stream] = end[-1]

    def _one_by_one(self, first: int, last: int) -> None:
        o = self.model.ops
        for op in range(first, last):
            stream = o.stream[op]
            start = max(
                0,
                self.tails[stream] + o.gap[op],
                self.event_end[o.event[op]] + o.lat[op],
                self.ended[o.dep[op]] + o.dep_lat[op],
            )
            self.ended[op] = self.tails[stream] = start + o.dur[op]

    def _wait(self, event: int) -> None:
        e = self.model.events
        awaits = e.awaits[event]
        if awaits != NOTHING:
            if awaits == ALL:
                until = self.tails[self.model.streams_of(int(e.lane[event]))].max()
            else:
                until = self.ended[awaits]
            end = max(self.event_end[event], until + e.ret[event])
            self.event_end[event] = self.host[e.lane[event]] = end
