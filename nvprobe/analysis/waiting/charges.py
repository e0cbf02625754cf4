"""Idle time summed by everything it is charged to: a table of few rows, from millions of pieces."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.overlap.streams import Streams
from nvprobe.analysis.waiting.hostwork import Cause
from nvprobe.trace import Column, Table, column

__all__ = ["LONG_NS", "IdleCharges", "by", "charged", "joined"]

LONG_NS = 2_000_000
"""Host time before one op that launching does not account for. The slowest launches seen, those of
a ``foreach`` optimizer that gathers its tensors, take half a millisecond under nsys, and 1.8 ms
with every operator traced besides."""
_MOST_CODES = 1 << 62


@dataclass(frozen=True, slots=True)
class IdleCharges(Table):
    """Idle time by everything it is charged to; rows add up to the idle time of the devices."""

    device: Column = column("i4")
    """Row of the device, -1 where the source names none."""
    stream: Column = column("i4")
    """Row of ``Streams``: where the op ran that ended the gap."""
    step: Column = column("i4")
    """Row of the steps, -1 outside of all."""
    path: Column = column("i4")
    """Owner path of the launching thread at the time, -1 for none."""
    line: Column = column("i4")
    """Row of the labels of ``CodeLines``: the user's frame at the time, -1 where unknown."""
    long: Column = column("?")
    """Of a gap with `LONG_NS` or more of ``host`` and ``launch_call``: one long pause."""
    cause: Column = column("i1")
    """:class:`~nvprobe.analysis.waiting.hostwork.Cause`."""
    ns: Column = column("i8")


def by(charges: IdleCharges, *names: str) -> tuple[Column, ...]:
    """The distinct values of some columns, and last the ns charged to each combination."""
    code = np.zeros(len(charges), np.int64)
    for name in names:
        values = getattr(charges, name).astype(np.int64) + 1
        _, code = distinct(code.astype(np.int64) << 32 | values)
    size = int(code.max(initial=-1)) + 1
    first = np.full(size, len(charges))
    np.minimum.at(first, code, np.arange(len(charges)))
    return (*(getattr(charges, name)[first] for name in names), sums(code, charges.ns, size))


def charged(streams: Streams, places: tuple[Column, ...], ns: dict[Cause, Column]) -> IdleCharges:
    """Sum the pieces by place (stream, step, path, line, long) and cause."""
    code = _codes(places)
    size = int(code.max(initial=-1)) + 1
    by_cause = np.zeros((size, len(Cause)), np.int64)
    for cause, own in ns.items():
        some = np.flatnonzero(own)
        by_cause[:, cause] = sums(code[some], own[some], size)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    row, why = np.nonzero(by_cause)
    stream, step, path, line, long = (rows[first[row]] for rows in places)
    return IdleCharges(
        device=streams.device[stream],
        stream=stream,
        step=step,
        path=path,
        line=line,
        long=long,
        cause=why,
        ns=by_cause[row, why],
    )


def _codes(places: tuple[Column, ...]) -> Column:
    """Number of each distinct place, in order of appearance."""
    code, size = np.zeros(len(places[0]), np.int64), 1
    for rows in places:
        if not len(rows) or (rows == rows[0]).all():
            continue
        low, high = int(rows.min()), int(rows.max())
        if size * (high - low + 1) >= _MOST_CODES:
            keys, code = distinct(code)
            code, size = code.astype(np.int64), len(keys)
        code, size = code * (high - low + 1) + rows - low, size * (high - low + 1)
    return distinct(code)[1].astype(np.int64)


def joined(tables: list[IdleCharges]) -> IdleCharges:
    """The tables of consecutive pieces as one."""
    if len(tables) < 2:
        return tables[0] if tables else IdleCharges.empty()
    whole = IdleCharges(
        *(
            np.concatenate(column)
            for column in zip(*(t.columns().values() for t in tables), strict=True)
        )
    )
    code = _codes((whole.stream, whole.step, whole.path, whole.line, whole.long))
    size = int(code.max(initial=-1)) + 1
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    by_cause = np.zeros(size * len(Cause), np.int64)
    np.add.at(by_cause, code * len(Cause) + whole.cause, whole.ns)
    cell = np.flatnonzero(by_cause)
    out = whole.take(first[cell // len(Cause)])
    return dataclasses.replace(out, cause=cell % len(Cause), ns=by_cause[cell])
