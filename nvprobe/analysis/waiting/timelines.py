"""Ops in the order in which threads (or processes) called for them.

A range instance owns the ops whose call starts inside it on its thread, and, on an initiating
thread, those that autograd threads of the process called for meanwhile (rules 1 and 2 of
docs/attribution.md). Sorted by call time these are one slice of the thread's ops, whatever the
nesting: every quantity of an instance is a reduction of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.intervals import sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column

__all__ = ["Timeline", "process_timeline", "thread_timeline"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Ops by lane (a thread or a process), then by the start of their call."""

    op: Column
    """int64 row of ``trace.ops``."""
    time: Column
    """int64 start of the op's call."""
    first: Column
    """int64 of shape (lanes + 1,): ops of lane L are ``first[L] … first[L + 1]``."""

    def slices(self, lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
        """[low, high) of the ops that lane L called for in [start, end), interval by interval."""
        low, high = np.zeros(len(lane), np.int64), np.zeros(len(lane), np.int64)
        for here, first, last in self._lanes(lane):
            time = self.time[first:last]
            low[here] = first + np.searchsorted(time, start[here], "left")
            high[here] = first + np.searchsorted(time, end[here], "left")
        return low, np.maximum(low, high)

    def _lanes(self, lane: Column) -> list[tuple[Column, int, int]]:
        """(intervals, first op, end of ops) of each lane that has both."""
        order = np.argsort(lane, kind="stable")
        bounds = np.searchsorted(lane[order], np.arange(len(self.first)))
        out = []
        for number in np.flatnonzero((self.first[1:] > self.first[:-1]) & (np.diff(bounds) > 0)):
            here = order[bounds[number] : bounds[number + 1]]
            out.append((here, int(self.first[number]), int(self.first[number + 1])))
        return out


def thread_timeline(attribution: Attribution) -> Timeline:
    """Each thread's ops; the initiating thread's with those of its autograd threads."""
    trace = attribution.trace
    op, thread, time = _called(attribution)
    initiating = attribution.initiating[trace.threads.process[thread]]
    lent = np.flatnonzero(attribution.autograd[thread] & (initiating != NO_ROW))
    return _timeline(
        np.concatenate((op, op[lent])),
        np.concatenate((thread, initiating[lent])),
        np.concatenate((time, time[lent])),
        len(trace.threads),
    )


def process_timeline(attribution: Attribution) -> Timeline:
    """Each process's ops, whatever thread called for them."""
    op, thread, time = _called(attribution)
    trace = attribution.trace
    return _timeline(op, trace.threads.process[thread], time, len(trace.processes))


def _called(attribution: Attribution) -> tuple[Column, Column, Column]:
    """(op, thread, time) of the ops that have a call."""
    calls = attribution.trace.calls
    op = np.flatnonzero(attribution.call != NO_ROW)
    call = attribution.call[op]
    return op, calls.thread[call], calls.start[call]


def _timeline(op: Column, lane: Column, time: Column, lanes: int) -> Timeline:
    order = sorted_by(lane, time)
    first = np.searchsorted(lane[order], np.arange(lanes + 1))
    return Timeline(op=op[order], time=time[order], first=first)
