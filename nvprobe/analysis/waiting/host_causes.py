"""What host threads do at each instant, beyond Python and dispatch.

Of the things a thread can be inside of at once (a synchronizing call in a range that waits for
data) the first in the order of :class:`Cause` counts. So everything is held as *nested* coverages:
level k covers what is inside anything of causes 0 … k, and what belongs to cause k alone is the
difference of two levels. Definitions: docs/attribution.md, "Idle".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from nvprobe.analysis.timelines import launches_kernels
from nvprobe.attribution.intervals import Coverage, by_group
from nvprobe.attribution.kinds import RangeRole, range_roles
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import Calls, Column
from nvprobe.trace.cuda_calls import ALLOCATIONS, LAUNCH_CALLS, CallRole


class Cause(IntEnum):
    """Why a device is idle; up to ``HOST`` in the order in which they are matched."""

    SYNC = 0
    """A synchronizing call, or the time that it made the host late."""
    ALLOCATION = 1
    COMPILATION = 2
    COLLECTIVE = 3
    INPUT = 4
    """Waiting for data."""
    NO_WORK = 5
    """A server waits for requests: nobody asked for anything."""
    LAUNCH_CALL = 6
    OTHER_CALL = 7
    """Any other call: graphs being built, contexts, streams and events, queries."""
    HOST = 8
    """Python and dispatch."""
    DEVICE_WAIT = 9
    """The op was queued: it waited for an event, for its stream, or for the launch to arrive."""
    UNKNOWN = 10
    """No call is known for the op that ended the gap."""

    @property
    def label(self) -> str:
        """The cause's name in reports and in the JSON."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """The cause in a sentence."""
        return {"no_work": "no requests", "other_call": "other calls"}.get(
            self.label, self.label.replace("_", " ")
        )


HOST_CAUSES = tuple(cause for cause in Cause if cause <= Cause.HOST)
HOST_LATE = (Cause.LAUNCH_CALL, Cause.OTHER_CALL, Cause.HOST)
"""The host is awake, waits for nothing, and is later than the GPU."""

Stretches = tuple[Column, Column, Column]
"""(thread, start, end)."""

_CALL_CAUSES = (
    (Cause.ALLOCATION, ALLOCATIONS),
    (Cause.COMPILATION, (CallRole.COMPILATION,)),
    (Cause.LAUNCH_CALL, LAUNCH_CALLS),
)
_RANGE_CAUSES = (
    (Cause.COMPILATION, RangeRole.COMPILATION),
    (Cause.COLLECTIVE, RangeRole.COLLECTIVE),
    (Cause.INPUT, RangeRole.INPUT),
    (Cause.NO_WORK, RangeRole.NO_WORK),
)
NO_WORK_NS = 1_000_000
"""A server looks for requests in microseconds, iteration by iteration; from here on it waits."""


@dataclass(frozen=True, slots=True)
class HostCauses:
    """Per thread: the time inside anything of a cause or of one matched before it."""

    levels: tuple[tuple[Cause, Coverage], ...]
    """Nested coverages in the order of causes; causes that never occur are left out."""
    inputs: Stretches
    """The ranges that wait for data."""

    def split(self, thread: Column, start: Column, end: Column) -> dict[Cause, Column]:
        """ns of each host cause within ``[start, end)`` of a thread; they add up to its length."""
        out = {cause: np.zeros(len(start), np.int64) for cause, _ in self.levels}
        out[Cause.HOST] = end - start
        for lane, rows in by_group(thread):
            border, first = _borders(start[rows], end[rows])
            outer, total = np.zeros(len(first), np.int64), 0
            for cause, coverage in self.levels:
                if coverage.length(lane) == total:
                    continue  # nothing that the level before does not cover
                total = coverage.length(lane)
                until = coverage.of_one(lane, border)
                within = until[first + 1] - until[first]
                out[cause][rows] = within - outer
                outer = within
            out[Cause.HOST][rows] -= outer
        return out

    def level(self, cause: Cause) -> Coverage | None:
        """The outermost coverage of causes up to this one; ``None`` if none of them occurs."""
        inner = [coverage for own, coverage in self.levels if own <= cause]
        return inner[-1] if inner else None


def _borders(start: Column, end: Column) -> tuple[Column, Column]:
    """(instants, where each stretch begins among them; it ends one further).

    Stretches mostly follow one another: what one ends with, the next begins with.
    """
    ends = np.append(end[:-1] != start[1:], True)
    first = np.arange(len(start)) + np.cumsum(ends) - ends
    border = np.empty(len(start) + int(ends.sum()), np.int64)
    border[first] = start
    border[first[ends] + 1] = end[ends]
    return border, first


def host_causes(attribution: Attribution, roles: Column, waits: Stretches) -> HostCauses:
    """Cover every thread's time; ``waits`` are (thread, start, end) of the synchronizing calls."""
    trace = attribution.trace
    parts: dict[Cause, list[Stretches]] = {Cause.SYNC: [waits]}
    started = _started_something(attribution)
    for cause, wanted in _CALL_CAUSES:
        inside = np.isin(roles, wanted)
        if cause == Cause.LAUNCH_CALL:
            inside |= started
        parts.setdefault(cause, []).append(_calls(trace.calls, np.flatnonzero(inside)))
    parts[Cause.OTHER_CALL] = [_calls(trace.calls, np.arange(len(trace.calls)))]
    marked = _marked_ranges(attribution)
    for cause, ranges in marked.items():
        parts.setdefault(cause, []).append(ranges)
    return HostCauses(tuple(_nested(parts, len(trace.threads))), marked[Cause.INPUT])


def _calls(calls: Calls, rows: Column) -> Stretches:
    return calls.thread[rows], calls.start[rows], calls.end[rows]


def _started_something(attribution: Attribution) -> Column:
    """Bool per call: it started an op, whatever its name."""
    used = np.zeros(len(attribution.trace.calls) + 1, bool)
    used[attribution.call] = True  # NO_ROW marks the spare last row
    return used[:-1]


def _marked_ranges(attribution: Attribution) -> dict[Cause, Stretches]:
    """The ranges that say what their thread does, by cause."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    if not len(ranges):
        return {cause: (np.empty(0, np.int64),) * 3 for cause, _ in _RANGE_CAUSES}
    paths = attribution.paths
    role = range_roles(paths.names)[paths.name[tree.path]]
    role[tree.kind == Kind.COLLECTIVE] = RangeRole.COLLECTIVE
    role[tree.kind == Kind.STEP] = RangeRole.OTHER
    inputs = np.flatnonzero(role == RangeRole.INPUT)
    role[inputs[launches_kernels(attribution, inputs)]] = RangeRole.OTHER
    role[(role == RangeRole.NO_WORK) & (tree.end - ranges.start < NO_WORK_NS)] = RangeRole.OTHER
    out = {}
    for cause, wanted in _RANGE_CAUSES:
        rows = np.flatnonzero(role == wanted)
        out[cause] = ranges.thread[rows], ranges.start[rows], tree.end[rows]
    return out


def _nested(parts: dict[Cause, list[Stretches]], threads: int) -> list[tuple[Cause, Coverage]]:
    """One coverage a cause, each with all before it."""
    levels: list[tuple[Cause, Coverage]] = []
    below: list[Stretches] = []
    for cause in HOST_CAUSES:
        own = [part for part in parts.get(cause, []) if len(part[0])]
        if not own:
            continue
        thread, start, end = (np.concatenate(column) for column in zip(*below, *own, strict=True))
        coverage = Coverage.of(thread, start, end, threads)
        levels.append((cause, coverage))
        lane = np.repeat(np.arange(threads), np.diff(coverage.first))
        below = [(lane, coverage.start, coverage.end)]
    return levels
