"""What a collective's time on each rank is made of: waiting for the last rank, and transfer.

A collective of several ranks moves nothing before the last of them has arrived. On one clock, of
each rank's time in it

* *waiting* is the time from its own arrival to the latest one,
* *transfer* the rest, up to its own end.

The two add up to the rank's time in the collective exactly, also where the clocks disagree by a few
microseconds: an arrival after a rank's own end is taken as that end. Oracle and properties:
tests/unit/analysis/test_arrivals.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column, Table, column


@dataclass(frozen=True, slots=True)
class Meetings(Table):
    """One row per collective (all ranks of it together), by its code."""

    code: Column = column("i8", "code of the collective, ascending")
    ranks: Column = column("i8", "members that were recorded")
    first: Column = column("i8", "earliest arrival", unit="ns")
    typical: Column = column("i8", "median arrival, the lower one of an even number", unit="ns")
    second: Column = column("i8", "latest arrival but one", unit="ns")
    latest: Column = column("i8", "latest arrival", unit="ns")
    last: Column = column("i8", "row of the member that arrived last")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The members of collectives, aligned with what was given, and the collectives."""

    wait_ns: Column
    transfer_ns: Column
    meeting: Column
    """Row of ``meetings``."""
    meetings: Meetings


def arrivals(code: Column, start: Column, end: Column) -> Arrivals:
    """Split each member's time; members of one collective have one ``code``, times one clock."""
    order = np.lexsort((start, code))
    first = runs(code[order])
    size = np.diff(np.append(first, len(order)))
    last = first + size - 1
    arrived = start[order]
    meetings = Meetings(
        code=code[order][first],
        ranks=size,
        first=arrived[first],
        typical=arrived[first + (size - 1) // 2],
        second=arrived[np.maximum(last - 1, first)],
        latest=arrived[last],
        last=order[last],
    )
    meeting = np.empty(len(order), np.int64)
    meeting[order] = np.repeat(np.arange(len(first)), size)
    latest = meetings.latest[meeting]
    wait = np.clip(latest, start, np.maximum(start, end)) - start
    return Arrivals(wait, np.maximum(end - start, 0) - wait, meeting, meetings)
