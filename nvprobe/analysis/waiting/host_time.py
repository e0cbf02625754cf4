"""Host time between launches, assigned to the thread that launches next, by path and line.

Assign the time between launches to the thread that launches next.

From the end of one launching call to the start of the next, time belongs to the thread that makes
the next one. An initiating thread and its autograd threads alternate: together they are one
*lane*, numbered as the initiating thread is. Every other thread is a lane of its own.

Host time between launches: what the threads that feed the GPU do, by path and Python frame.

The time between launches belongs to the thread that launches next; what of it has no
name of its own (synchronizing, allocating, compiling, communicating, waiting for data) is Python
and dispatch, ``host`` in the words of ``host_causes``. It bounds how fast a program can launch,
whether or not the GPU waited for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.waiting.code_lines import (
    NO_LINE,
    CodeLines,
    LineSamples,
    added_up,
    shared_out,
)
from nvprobe.analysis.waiting.gaps import IdleTime
from nvprobe.analysis.waiting.host_causes import Cause, HostCauses
from nvprobe.attribution.intervals import Instants, running_max, runs, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting
from nvprobe.trace import NO_ROW, Column, Table, column


@dataclass(frozen=True, slots=True)
class NextLaunches:
    """Which thread launches next, by lane and time."""

    lane_of: Column
    """The lane of each thread."""
    lanes: Instants
    """When each interval begins."""
    thread: Column
    """The thread that launches next, per interval."""
    first: Column
    """Per lane: when its first launching call starts (the largest int64 where it has none)."""
    last: Column
    """Per lane: when its last one ends."""

    def at(self, lane: Column, time: Column) -> Column:
        """The thread that launches next at each instant, between the first and the last call."""
        return self.thread[self.lanes.count_before(lane, time, "right") - 1]


def launching_calls(attribution: Attribution) -> Column:
    """Rows of the calls that started an op."""
    calls = attribution.trace.calls
    used = np.zeros(len(calls) + 1, bool)
    used[attribution.call] = True  # NO_ROW marks the spare last row
    return np.flatnonzero(used[:-1])


def next_launches(attribution: Attribution) -> NextLaunches:
    """An interval begins where the thread before has made its last call. There must be calls."""
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
    return NextLaunches(lane_of, Instants(bounds, since[at]), thread[at], first, last)


def thread_lanes(attribution: Attribution) -> Column:
    """The lane of each thread: its own number, or its initiating thread's."""
    lane_of = np.arange(len(attribution.trace.threads))
    backward = np.flatnonzero(attribution.autograd)
    head = attribution.open.initiator(backward)
    lane_of[backward[head != NO_ROW]] = head[head != NO_ROW]
    return lane_of


_BATCH = 1 << 18
"""Parts looked at together: it bounds the arrays alive at once."""


@dataclass(frozen=True, slots=True)
class HostTime(Table):
    """Host time by owner path and user's frame; what the GPU waited for longest stands first."""

    path: Column = column("i4")
    """What the thread had open (rules 1 and 2), -1 for nothing."""
    line: Column = column("i4")
    """Row of the labels of ``CodeLines``, -1 where no frame is known."""
    launches: Column = column("i8")
    """Launching calls that began here."""
    host_ns: Column = column("i8")
    idle_ns: Column = column("i8")
    """GPU idle time assigned to ``host`` here."""
    samples: Column | None = column("i8", optional=True)
    """Python samples that gave the line; launches and times of a path are divided among its
    lines as its samples are. ``None`` where lines are exact, or where there are none."""


def host_time(
    attribution: Attribution, work: HostCauses, idle: IdleTime, lines: CodeLines | None
) -> HostTime:
    """Sum the host time of all lanes, and the idle time it caused."""
    started = launching_calls(attribution)
    if not len(started):
        return HostTime.empty()
    waited = idle.take(np.flatnonzero(idle.cause == Cause.HOST))
    parts = [
        *_host_parts(attribution, work, lines),
        *_launch_parts(attribution, started, lines),
        _part(waited.path, waited.line, 2, waited.ns),
    ]
    keys, code = distinct(np.concatenate([part.key for part in parts]))
    launches, host_ns, idle_ns = (
        sums(code, np.concatenate([part.sums[which] for part in parts]), len(keys))
        for which in range(3)
    )
    table = HostTime(
        path=(keys >> 32) - 1,
        line=(keys & 0xFFFFFFFF) - 1,
        launches=launches,
        host_ns=host_ns,
        idle_ns=idle_ns,
    )
    return _costliest_first(table)


def sampled_host_time(
    attribution: Attribution,
    work: HostCauses,
    table: HostTime,
    samples: LineSamples,
    waited: tuple[Column, Column],
) -> HostTime:
    """The host time of paths divided among the lines that samples saw.

    ``waited`` are the (path, line) of the samples in idle time assigned to ``host``.
    """
    if not len(table):
        return table
    row = np.full(int(max(table.path.max(initial=-1), waited[0].max(initial=-1))) + 2, NO_ROW)
    row[table.path] = np.arange(len(table))  # path -1 is the spare last one
    path, line = _seen_working(attribution, work, samples)
    known = (path < len(row) - 1) & (row[np.minimum(path, len(row) - 1)] != NO_ROW)
    path, line = path[known], line[known]
    keys, total, seen = added_up(
        shared_out(table.launches, row[path], line),
        shared_out(table.host_ns, row[path], line),
        shared_out(table.idle_ns, row[waited[0]], waited[1]),
    )
    divided = HostTime(
        path=table.path[keys[0]],
        line=keys[1],
        launches=total[0],
        host_ns=total[1],
        idle_ns=total[2],
        samples=seen,
    )
    return _costliest_first(divided)


def _seen_working(
    attribution: Attribution, work: HostCauses, samples: LineSamples
) -> tuple[Column, Column]:
    """(path, line) of the samples in host time between launches."""
    intervals = next_launches(attribution)
    lane = intervals.lane_of[samples.thread]
    inside = (samples.time >= intervals.first[lane]) & (samples.time < intervals.last[lane])
    time = samples.time[inside]
    thread = intervals.at(lane[inside], time)
    ours = samples.tellers(attribution)[thread] == samples.thread[inside]
    ours &= work.split(thread, time, time + 1)[Cause.HOST] == 1
    path = attribution.open.at(thread[ours], time[ours])
    return path, samples.line[inside][ours]


def _costliest_first(table: HostTime) -> HostTime:
    return table.take(np.lexsort((-table.host_ns, -table.idle_ns)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Sums of some rows by place; a trace has millions of parts, and few places."""

    key: Column
    """int64: path and line, in order of appearance."""
    sums: Column
    """int64 of shape (3, places): launches, host ns, idle ns."""


def _part(path: Column, line: Column, which: int, values: Column) -> _Part:
    keys, code = distinct((path.astype(np.int64) + 1) << 32 | (line.astype(np.int64) + 1))
    total = np.zeros((3, len(keys)), np.int64)
    total[which] = sums(code, values, len(keys))
    return _Part(keys, total)


def _host_parts(
    attribution: Attribution, work: HostCauses, lines: CodeLines | None
) -> Iterator[_Part]:
    """Host ns of the launching threads' time."""
    for thread, start, end in _pieces(attribution, lines):
        ns = work.split(thread, start, end)[Cause.HOST]
        yield _part(*_place(attribution, lines, thread, start), 1, ns)


def _launch_parts(
    attribution: Attribution, started: Column, lines: CodeLines | None
) -> Iterator[_Part]:
    """Launching calls."""
    calls = attribution.trace.calls
    for low in range(0, len(started), _BATCH):
        rows = started[low : low + _BATCH]
        place = _place(attribution, lines, calls.thread[rows], calls.start[rows])
        yield _part(*place, 0, np.ones(len(rows), np.int64))


def _place(
    attribution: Attribution, lines: CodeLines | None, thread: Column, time: Column
) -> tuple[Column, Column]:
    """(path, line) at each instant."""
    path = attribution.open.at(thread, time)
    if lines is None:
        return path, np.full(len(time), NO_LINE, np.int32)
    return path, lines.at(thread, time)


def by_label(host: HostTime, label: list[str]) -> tuple[list[str], HostTime]:
    """Host time summed by a label of each row; ``path`` is where most idle time of it is."""
    names = list(dict.fromkeys(label))
    number = {name: row for row, name in enumerate(names)}
    code = np.array([number[name] for name in label], np.int64)
    size = len(names)
    first = np.lexsort((-host.host_ns, -host.idle_ns, code))
    first = first[runs(code[first])]
    table = HostTime(
        path=host.path[first],
        line=host.line[first],
        launches=sums(code, host.launches, size),
        host_ns=sums(code, host.host_ns, size),
        idle_ns=sums(code, host.idle_ns, size),
        samples=None if host.samples is None else sums(code, host.samples, size),
    )
    order = np.lexsort((-table.host_ns, -table.idle_ns))
    return [names[row] for row in order.tolist()], table.take(order)


def _pieces(
    attribution: Attribution, lines: CodeLines | None
) -> Iterator[tuple[Column, Column, Column]]:
    """(thread, start, end) of launching threads' time, cut where thread, path or frame change.

    In batches: there are about two parts a range.
    """
    intervals = next_launches(attribution)
    nestings = [attribution.open.nesting, *([lines.users] if lines is not None else [])]
    for lane in np.flatnonzero(intervals.last > intervals.first).tolist():
        time = _borders(intervals, lane, nestings)
        for low in range(0, len(time) - 1, _BATCH):
            start, end = time[low:-1][:_BATCH], time[low + 1 :][:_BATCH]
            filled = end > start
            start, end = start[filled], end[filled]
            yield intervals.at(np.full(len(start), lane), start), start, end


def _borders(intervals: NextLaunches, lane: int, nestings: list[Nesting]) -> Column:
    """When something begins or ends on the threads of a lane, in order."""
    times = [
        intervals.lanes.time[slice(*intervals.lanes.first[lane : lane + 2])],
        intervals.last[[lane]],
    ]
    for nesting in nestings:
        for thread in np.flatnonzero(intervals.lane_of == lane).tolist():
            own = slice(*nesting.first[thread : thread + 2])
            for time in (nesting.start[own], nesting.end[own]):
                inside = (time > intervals.first[lane]) & (time < intervals.last[lane])
                times.append(time[inside])
    out = np.concatenate(times)
    out.sort(kind="stable")
    return out
