"""The gaps of each device, and what ended them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribute.intervals import running_max, sorted_by
from nvprobe.attribute.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, column

__all__ = ["Gaps", "device_gaps"]


@dataclass(frozen=True, slots=True)
class Gaps(Table):
    """Maximal intervals between a device's first and last op without any op; by device and time."""

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


def device_gaps(attribution: Attribution) -> Gaps:
    """Find the gaps of every device."""
    trace = attribution.trace
    ops = trace.ops
    if ops is None or not attribution.valid.any():
        return Gaps.empty()
    rows = np.flatnonzero(attribution.valid)
    rows = rows[sorted_by(ops.device[rows] + 1, ops.start[rows])]
    device, start = ops.device[rows], ops.start[rows]
    reach = running_max(device, ops.end[rows])
    ends = np.flatnonzero((device[1:] == device[:-1]) & (start[1:] > reach[:-1])) + 1
    op = _first_of_ties(rows, device, start, ops.stream[rows], ends)
    begin, end = reach[ends - 1], start[ends]
    thread, queued = _called(attribution, op, begin, end)
    return Gaps(device=device[ends], start=begin, end=end, op=op, thread=thread, queued=queued)


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
    if calls is not None and len(known):
        call = attribution.call[op[known]]
        thread[known] = calls.thread[call]
        queued[known] = np.clip(calls.end[call], start[known], end[known])
    return thread, queued
