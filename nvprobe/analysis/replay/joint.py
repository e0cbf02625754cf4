"""Several ranks replayed together: a collective moves nothing before its last member has arrived.

The models of the ranks become one model, with their lanes and streams side by side. A member of a
collective ends there when it arrives. One more event for each collective has an op for each
arrival, all on one stream, so that they end with the last, and then an op for each member: the
transfer, on the stream of its rank. Oracle: ``joint_oracle`` in tests/oracle_replay.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from nvprobe.analysis.overlap.arrivals import Arrivals, arrivals
from nvprobe.analysis.replay.contention import overlap
from nvprobe.analysis.replay.costs import mean_step
from nvprobe.analysis.replay.critical import last_of
from nvprobe.analysis.replay.model import (
    NEVER,
    NOTHING,
    EventKind,
    HostEvents,
    Model,
    QueuedOps,
)
from nvprobe.analysis.replay.run import Times, completion, replay, step_times
from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column


@dataclass(slots=True)
class JointModel(Model):
    """The model of several ranks; each waits for its own streams and its own queue."""

    held: Column = field(kw_only=True)
    """Per event: row of the op that must have ended before its queue takes a launch."""
    lane_rank: Column = field(kw_only=True)
    stream_rank: Column = field(kw_only=True)
    """-1 for what belongs to collectives alone."""

    def limits(self) -> Column:
        """As each rank has them by itself."""
        return self.held

    def streams_of(self, lane: int) -> Column:
        """Those of the lane's rank."""
        return np.flatnonzero(self.stream_rank == self.lane_rank[lane])


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of the joint model for those of one rank's own."""

    event: Column
    """Where each event ends."""
    op: Column
    """Where each op ends: of a collective its transfer."""
    arrival: Column
    """Where each op ends, of a collective its arrival."""


@dataclass(frozen=True)
class Joint:
    """Models of ranks (``joined``) as one."""

    models: Sequence[Model]
    codes: Sequence[Column]
    """Per rank and op: the collective that it waits in, ``NOTHING``."""
    model: JointModel
    places: Sequence[Places]
    of_event: tuple[Column, Column]
    """Per event of ``model``: its rank and its row there, ``NOTHING`` for a collective."""
    of_op: tuple[Column, Column]

    @cached_property
    def whole(self) -> Times:
        """Times of the joint model."""
        return replay(self.model)

    def times(self, rank: int) -> Times:
        """When the events and ops of one rank's own model end."""
        places = self.places[rank]
        return Times(self.whole.event[places.event], self.whole.op[places.op])

    def lasting(self, durations: Sequence[Column]) -> Joint:
        """The same with other lengths of ops; collectives stay as they are."""
        dur, models = self.model.ops.dur.copy(), []
        for model, code, places, own in zip(
            self.models, self.codes, self.places, durations, strict=True
        ):
            rows = np.flatnonzero(code == NOTHING)
            dur[places.op[rows]] = own[rows]
            models.append(replace(model, ops=model.ops.with_columns(dur=own)))
        changed = replace(self.model, ops=self.model.ops.with_columns(dur=dur))
        return replace(self, models=models, model=changed)

    @property
    def steps(self) -> int:
        """Whole steps in it."""
        return len(self.models[0].borders) - 1

    @cached_property
    def borders(self) -> Column:
        """Per border of the steps: when the last rank is there, and all that it launched ended."""
        done = [completion(own, self.times(rank)) for rank, own in enumerate(self.models)]
        return np.max(done, axis=0)

    def last(self) -> tuple[Literal["event", "op"], int]:
        """What ends the last step: an event or an op of ``model``."""
        done = [completion(own, self.times(rank))[-1] for rank, own in enumerate(self.models)]
        rank = int(np.argmax(done))
        kind, row = last_of(self.models[rank], self.times(rank))
        return kind, int(getattr(self.places[rank], kind)[row])

    def step_ns(self) -> int:
        """The step of the job, as ``costs.step_of`` has that of one process."""
        floor = max(model.floor for model in self.models)
        return mean_step(np.maximum(np.diff(self.borders), floor))

    def rank_step_ns(self, rank: int) -> int:
        """The step of one rank."""
        return mean_step(step_times(self.models[rank], self.times(rank)))

    def overlap(self, rank: int, talks: Column) -> Column:
        """Per op of a rank the time in which one that ``talks`` runs beside it."""
        end = self.times(rank).op
        waits = self.codes[rank] != NOTHING
        arrival = self.whole.op[self.places[rank].arrival]
        start = np.where(waits, arrival, end - self.models[rank].ops.dur)
        return overlap(talks, start, end)

    def meetings(self) -> tuple[Column, Column, Arrivals]:
        """(rank, step, waiting of each member of a collective)."""
        members = [np.flatnonzero(code != NOTHING) for code in self.codes]
        ranks = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
        columns = []
        for rank, rows in enumerate(members):
            model, places = self.models[rank], self.places[rank]
            step = np.cumsum(model.events.kind == EventKind.STEP)[model.ops.event[rows]] - 1
            arrival, end = (self.whole.op[place[rows]] for place in (places.arrival, places.op))
            columns.append((step, self.codes[rank][rows], arrival, end))
        step, code, arrival, end = (np.concatenate(one) for one in zip(*columns, strict=True))
        return ranks, step, arrivals(code, arrival, end)


def joined(models: Sequence[Model], codes: Sequence[Column], begins: Sequence[int]) -> Joint:
    """One model of several ranks.

    ``codes``: per rank and op the collective that it is a member of, ``NOTHING`` for others. The
    longest of its members is its transfer; one without length is not made, and nobody waits in it.
    ``begins``: when each rank's own model begins.
    """
    place = _sequence(models, codes)
    sequence = [np.append(place, NOTHING)[code] for code in codes]
    kept = [np.where(own >= 0, code, NOTHING) for own, code in zip(sequence, codes, strict=True)]
    return _Joining(models, sequence, begins).joint(kept)


def _sequence(models: Sequence[Model], codes: Sequence[Column]) -> Column:
    """Per collective its position in an order that all ranks keep.

    ``NOTHING`` for one that no rank waits in: without length, with a single member, or met in
    another order by another rank.
    """
    size = 1 + max((int(code.max(initial=NOTHING)) for code in codes), default=NOTHING)
    members, length = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for model, code in zip(models, codes, strict=True):
        rows = np.flatnonzero(code >= 0)
        members += np.bincount(code[rows], minlength=size)
        np.maximum.at(length, code[rows], model.ops.dur[rows])
    meets = np.append((members > 1) & (length > 0), False)
    ahead = [code[meets[code]].tolist() for code in codes]
    out, left, number = np.full(size, NOTHING), [0] * len(codes), 0
    arrived: dict[int, list[int]] = {}
    skipped: set[int] = set()
    ready = list(range(len(codes)))
    while ready or arrived:
        if not ready:  # each waits for a rank that waits elsewhere: one of these is left out
            other = next(iter(arrived))
            skipped.add(other)
            ready = arrived.pop(other)
        rank = ready.pop()
        while left[rank] < len(ahead[rank]) and ahead[rank][left[rank]] in skipped:
            left[rank] += 1
        if left[rank] == len(ahead[rank]):
            continue
        code = ahead[rank][left[rank]]
        there = arrived.setdefault(code, [])
        there.append(rank)
        if len(there) == members[code]:
            out[code], number = number, number + 1
            ready += arrived.pop(code)
            for one in there:
                left[one] += 1
    return out


class _Joining:
    """The joint tables: first rank after rank, then collective after collective, then in order."""

    def __init__(
        self, models: Sequence[Model], sequence: Sequence[Column], begins: Sequence[int]
    ) -> None:
        self.models, self.sequence, self.begins = models, sequence, begins
        self.op_base = np.cumsum([0, *(len(one.ops) for one in models)])
        self.lane_base = np.cumsum([0, *(one.lanes for one in models)])
        self.stream_base = np.cumsum([0, *(len(one.tails) for one in models)])
        self._members()
        self.pieces = [_Pieces(one, own) for one, own in zip(models, sequence, strict=True)]
        self.event_base = np.cumsum([0, *(len(one.event) for one in self.pieces)])

    def _members(self) -> None:
        """Members of collectives, by collective and rank."""
        rows = [np.flatnonzero(own >= 0) for own in self.sequence]
        rank = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
        row = np.concatenate(rows)
        number = np.concatenate([own[one] for own, one in zip(self.sequence, rows, strict=True)])
        order = np.lexsort((rank, number))
        self.rank, self.row, self.number = rank[order], row[order], number[order]
        self.arrival = self.op_base[self.rank] + self.row
        first = runs(self.number)
        self.meetings = len(first)
        self.last = np.append(first[1:], len(order)) - 1
        own = [model.ops.dur[one] for model, one in zip(self.models, rows, strict=True)]
        dur = np.concatenate(own)[order]
        self.length = np.maximum.reduceat(dur, first) if len(first) else dur
        self.final = np.arange(self.op_base[-1])
        """Per op of the ranks: where it ends."""
        self.final[self.arrival] = self.op_base[-1] + len(order) + np.arange(len(order))

    def joint(self, codes: Sequence[Column]) -> Joint:
        """The model in an order in which everything comes after what it waits for."""
        events, held, key = self._events()
        order = np.lexsort((np.arange(len(key)), key))
        place = _inverse(order)
        ops = self._ops()
        op_order = np.argsort(place[ops.event], kind="stable")
        op_place = _inverse(op_order)
        ops = ops.take(op_order).with_columns(event=place[ops.event[op_order]])
        ops = ops.with_columns(dep=_placed(op_place, ops.dep))
        events = events.take(order).with_columns(
            awaits=_placed(op_place, events.awaits[order]),
            first_op=np.searchsorted(ops.event, np.arange(len(order))),
        )
        model = JointModel(
            events, ops, int(self.lane_base[-1]) + 1, self._tails(),
            held=_placed(op_place, held[order]), lane_rank=self._of(self.lane_base, 1),
            stream_rank=self._of(self.stream_base, self.meetings),
        )  # fmt: skip
        return Joint(
            self.models, codes, model, self._places(place, op_place),
            self._origin(
                [one.event for one in self.pieces], [np.full((2, self.meetings), NOTHING)], order
            ),
            self._origin(
                [np.arange(len(one.ops)) for one in self.models],
                [np.stack((self.rank, self.row))] * 2, op_order,
            ),
        )  # fmt: skip

    def _origin(
        self, rows: Sequence[Column], more: Sequence[Column], order: Column
    ) -> tuple[Column, Column]:
        """(rank, own row) of what is put in ``order``: ``rows`` of the ranks, then ``more``."""
        own = [np.stack((np.full(len(one), rank), one)) for rank, one in enumerate(rows)]
        found = np.concatenate([*own, *more], axis=1)[:, order]
        return found[0], found[1]

    def _events(self) -> tuple[HostEvents, Column, Column]:
        """(pieces of all ranks and collectives, limits, what puts them in order)."""
        parts = []
        for rank, (model, pieces) in enumerate(zip(self.models, self.pieces, strict=True)):
            part = pieces.columns(model, self.final[self.op_base[rank] : self.op_base[rank + 1]])
            part["lane"] = part["lane"] + self.lane_base[rank]
            part["gap"][pieces.of_lanes] += self.begins[rank]
            parts.append(part)
        zero, nothing = np.zeros(self.meetings, np.int64), np.full(self.meetings, NOTHING)
        parts.append(
            {
                "lane": zero + self.lane_base[-1], "gap": zero, "dur": zero, "ret": zero,
                "kind": zero + EventKind.LAUNCH, "awaits": nothing, "held": nothing,
                "key": 2 * np.arange(self.meetings), "first_op": zero,
            }
        )  # fmt: skip
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        held, key = table.pop("held"), table.pop("key")
        return HostEvents(**table), held, key

    def _ops(self) -> QueuedOps:
        """Ops of all ranks, then for each member its arrival, then its transfer."""
        parts = []
        for rank, (model, pieces) in enumerate(zip(self.models, self.pieces, strict=True)):
            base, own = self.op_base[rank], dict(model.ops.columns())
            final = self.final[base : self.op_base[rank + 1]]
            own["event"] = pieces.of_op + self.event_base[rank]
            own["stream"] = own["stream"] + self.stream_base[rank]
            own["dep"] = _placed(final, own["dep"])
            own["dur"] = np.where(self.sequence[rank] >= 0, 0, own["dur"])
            parts.append(own)
        size = len(self.number)
        zero, never = np.zeros(size, np.int64), np.full(size, NEVER)
        event = self.event_base[-1] + self.number
        same = {"event": event, "gap": zero, "lat": never, "dep_lat": zero}
        stream = np.concatenate([part["stream"] for part in parts])[self.arrival]
        met = self.op_base[-1] + self.last[self.number]
        parts.append(
            {**same, "stream": self.stream_base[-1] + self.number, "dur": zero,
             "dep": self.arrival}
        )  # fmt: skip
        parts.append({**same, "stream": stream, "dur": self.length[self.number], "dep": met})
        names = list(parts[-1])
        return QueuedOps(**{name: np.concatenate([p[name] for p in parts]) for name in names})

    def _tails(self) -> Column:
        own = [
            np.where(model.tails > NEVER, model.tails + begin, NEVER)
            for model, begin in zip(self.models, self.begins, strict=True)
        ]
        return np.concatenate([*own, np.full(self.meetings, NEVER)])

    def _of(self, base: Column, more: int) -> Column:
        """Rank of each lane or stream, -1 for the ``more`` ones of collectives."""
        return np.append(np.repeat(np.arange(len(self.models)), np.diff(base)), np.full(more, -1))

    def _places(self, place: Column, op_place: Column) -> list[Places]:
        out = []
        for rank, pieces in enumerate(self.pieces):
            own = slice(self.op_base[rank], self.op_base[rank + 1])
            event = place[self.event_base[rank] + np.flatnonzero(pieces.last)]
            out.append(Places(event, op_place[self.final[own]], op_place[own]))
        return out


class _Pieces:
    """The events of a rank, cut after each collective that more of the event comes after."""

    def __init__(self, model: Model, sequence: Column) -> None:
        e, until = model.events, model.op_end()
        met = np.flatnonzero(sequence >= 0)
        of = model.ops.event[met]
        more = (met + 1 < until[of]) | (e.awaits[of] != NOTHING)
        event = np.concatenate((np.arange(len(e)), of[more]))
        first = np.concatenate((e.first_op, met[more] + 1))
        order = np.lexsort((first, np.arange(len(event)) >= len(e), event))
        self.event, first = event[order], first[order]
        self.head = np.append(True, self.event[1:] != self.event[:-1])[: len(order)]
        self.last = np.append(self.head[1:], True)[: len(order)]
        self.of_op = _last_at(self.event, first, model.ops.event)
        self.after = np.append(NOTHING, sequence[met])[np.searchsorted(met, first)]
        """Per piece: the last collective before it."""
        self.of_lanes = np.flatnonzero(self.head)[np.unique(e.lane, return_index=True)[1]]
        """The first piece of each lane."""

    def columns(self, model: Model, final: Column) -> dict[str, Column]:
        """Events of the pieces; references are rows of the joint ops before they are ordered."""
        e = model.events.take(self.event)
        limits = _placed(final, model.limits()[self.event])
        return {
            "lane": e.lane, "gap": np.where(self.head, e.gap, 0), "kind": e.kind,
            "dur": np.where(self.head, e.dur, 0), "ret": e.ret,
            "awaits": np.where(self.last, _placed(final, e.awaits), NOTHING),
            "held": np.where(self.head, limits, NOTHING),
            "key": 2 * self.after + 1, "first_op": e.first_op,
        }  # fmt: skip


def _last_at(event: Column, first: Column, of_op: Column) -> Column:
    """Per op: the last piece of its event that begins at or before it."""
    width = len(of_op) + 1
    return (
        np.searchsorted(event * width + first, of_op * width + np.arange(len(of_op)), "right") - 1
    )


def _placed(place: Column, rows: Column) -> Column:
    """New rows of references; ``NOTHING`` and ``ALL`` stay."""
    return np.where(rows >= 0, np.append(place, NOTHING)[np.maximum(rows, NOTHING)], rows)


def _inverse(order: Column) -> Column:
    out = np.empty(len(order), np.int64)
    out[order] = np.arange(len(order))
    return out
