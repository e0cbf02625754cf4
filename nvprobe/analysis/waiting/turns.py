"""Whose turn it is to launch.

From the end of one launching call to the start of the next, time belongs to the thread that makes
the next one. An initiating thread and its autograd threads take turns: together they are one
*lane*, numbered as the initiating thread is. Every other thread is a lane of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.waiting.lanes import Lanes
from nvprobe.attribution.intervals import running_max, runs, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column

__all__ = ["Turns", "launching_calls", "launching_turns", "thread_lanes"]


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn it is, by lane and time."""

    lane_of: Column
    """The lane of each thread."""
    lanes: Lanes
    """When each turn begins."""
    thread: Column
    """The thread that launches next, per turn."""
    first: Column
    """Per lane: when its first launching call starts (the largest int64 where it has none)."""
    last: Column
    """Per lane: when its last one ends."""

    def at(self, lane: Column, time: Column) -> Column:
        """The thread whose turn it is at each instant, between the first and the last call."""
        return self.thread[self.lanes.count_before(lane, time, "right") - 1]


def launching_calls(attribution: Attribution) -> Column:
    """Rows of the calls that started an op."""
    calls = attribution.trace.calls
    used = np.zeros(len(calls) + 1, bool)
    used[attribution.call] = True  # NO_ROW marks the spare last row
    return np.flatnonzero(used[:-1])


def launching_turns(attribution: Attribution) -> Turns:
    """A turn begins where the thread before has made its last call. There must be calls."""
    calls, lane_of = attribution.trace.calls, thread_lanes(attribution)
    rows = launching_calls(attribution)
    rows = rows[sorted_by(lane_of[calls.thread[rows]], calls.start[rows])]
    thread, start = calls.thread[rows], calls.start[rows]
    lane = lane_of[thread]
    reach = running_max(lane, calls.end[rows])
    heads = runs(lane)
    first = np.full(len(lane_of), np.iinfo(np.int64).max)
    last = np.full(len(lane_of), np.iinfo(np.int64).min)
    first[lane[heads]] = start[heads]
    last[lane[heads]] = reach[np.append(heads[1:], len(lane)) - 1]
    since = np.roll(reach, 1)
    since[heads] = start[heads]
    begins = np.append(True, (lane[1:] != lane[:-1]) | (thread[1:] != thread[:-1]))
    at = np.flatnonzero(begins)
    bounds = np.searchsorted(lane[at], np.arange(len(lane_of) + 1))
    return Turns(lane_of, Lanes(bounds, since[at]), thread[at], first, last)


def thread_lanes(attribution: Attribution) -> Column:
    """The lane of each thread: its own number, or its initiating thread's."""
    lane_of = np.arange(len(attribution.trace.threads))
    backward = np.flatnonzero(attribution.autograd)
    head = attribution.open.initiator(backward)
    lane_of[backward[head != NO_ROW]] = head[head != NO_ROW]
    return lane_of
