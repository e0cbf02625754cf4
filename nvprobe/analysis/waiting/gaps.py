"""The gaps of each device, and what ended them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.waiting.order import DeviceOrder, device_order
from nvprobe.attribution.intervals import slices
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, Trace, column

__all__ = ["Gaps", "device_gaps", "unrecorded"]


@dataclass(frozen=True, slots=True)
class Gaps(Table):
    """Maximal intervals between a device's first and last op without any op; by device and time.

    Of a selection: those that end with an op of it.
    """

    device: Column = column("i4")
    """Row of the device, -1 where the source names none."""
    start: Column = column("i8")
    end: Column = column("i8")
    op: Column = column("i8")
    """Row of the op that ended the gap (several: lowest stream, then row)."""
    thread: Column = column("i4")
    """Thread that called for that op, -1 where no call is known."""
    queued: Column = column("i8")
    """From here on the op had been called for: the end of its call, cut to the gap."""

    @property
    def length(self) -> Column:
        """ns of each gap."""
        return self.end - self.start

    def containing(self, time: Column) -> Iterator[tuple[Column, Column]]:
        """(gap, instant) for each instant in each gap with start <= instant < end, by device."""
        order = np.argsort(time, kind="stable")  # searching in order is several times faster
        for low, high in slices(self.device):
            gap = low + np.searchsorted(self.start[low:high], time[order], "right") - 1
            inside = (gap >= low) & (time[order] < self.end[gap])
            yield gap[inside], order[inside]


def device_gaps(attribution: Attribution, order: DeviceOrder) -> Gaps:
    """Find the gaps of every device."""
    ops = attribution.trace.ops
    if not len(order.row):
        return Gaps.empty()
    if attribution.unfiltered is not None:
        return _of_selection(attribution, attribution.unfiltered.ops)
    device, start = order.device, order.start
    ends = np.flatnonzero((device[1:] == device[:-1]) & (start[1:] > order.reach[:-1])) + 1
    ends = ends[~unrecorded(attribution.trace, order.reach[ends - 1], start[ends])]
    op = _first_of_ties(order.row, device, start, ops.stream[order.row], ends)
    begin, end = order.reach[ends - 1], start[ends]
    thread, queued = _called(attribution, op, begin, end)
    return Gaps(device=device[ends], start=begin, end=end, op=op, thread=thread, queued=queued)


def _of_selection(attribution: Attribution, inside: Column) -> Gaps:
    """The gaps of the whole that an op ended which is ``inside``, cut where the selection begins.

    A device that works for what a selection leaves out is not idle.
    """
    whole = attribution.whole
    gaps = device_gaps(whole, device_order(whole))
    begin = np.maximum(gaps.start, attribution.trace.start_ns)
    kept = np.flatnonzero(inside[gaps.op] & (begin < gaps.end))
    gaps, begin = gaps.take(kept), begin[kept]
    return dataclasses.replace(
        gaps,
        start=begin,
        queued=np.maximum(gaps.queued, begin),
        op=(np.cumsum(inside) - 1)[gaps.op],
    )


def unrecorded(trace: Trace, begin: Column, end: Column) -> Column:
    """Bool per interval: part of it was recorded by no source, so that it is no gap."""
    if not trace.unrecorded:
        return np.zeros(len(begin), bool)
    starts, ends = np.array(trace.unrecorded, np.int64).T
    holes = np.searchsorted(starts, end, "left") - np.searchsorted(ends, begin, "right")
    return np.asarray(holes > 0)


def _first_of_ties(
    rows: Column, device: Column, start: Column, stream: Column, at: Column
) -> Column:
    """Of the ops that start together with position ``at``: lowest stream, then row."""
    op = rows[at].copy()
    after = np.minimum(at + 1, len(rows) - 1)
    tied = np.flatnonzero(
        (after > at) & (start[after] == start[at]) & (device[after] == device[at])
    )
    if not len(tied):
        return op
    together = np.zeros(len(rows), bool)
    together[1:] = (start[1:] == start[:-1]) & (device[1:] == device[:-1])
    run = np.cumsum(~together)
    wanted = run[at[tied]]
    members = np.flatnonzero(np.isin(run, wanted))
    members = members[np.lexsort((rows[members], stream[members], run[members]))]
    op[tied] = rows[members[np.searchsorted(run[members], wanted)]]
    return op


def _called(
    attribution: Attribution, op: Column, start: Column, end: Column
) -> tuple[Column, Column]:
    """(thread, end of the call cut to the gap) per gap; without a call nothing is the host's."""
    calls = attribution.trace.calls
    thread, queued = np.full(len(op), NO_ROW, np.int32), start.copy()
    known = np.flatnonzero(attribution.call[op] != NO_ROW)
    if len(known):
        call = attribution.call[op[known]]
        thread[known] = calls.thread[call]
        queued[known] = np.clip(calls.end[call], start[known], end[known])
    return thread, queued
