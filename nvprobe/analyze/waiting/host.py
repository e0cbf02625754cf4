"""Host time between launches: what the threads that feed the GPU do, by path and Python frame.

From the end of one launching call to the start of the next, time belongs to the thread that makes
the next one; what of it has no name of its own (synchronising, allocating, compiling,
communicating, waiting for data) is Python and dispatch, ``host`` in the words of ``hostwork``. It
bounds how fast a program can launch, whether or not the GPU waited for it. An initiating thread and
its autograd threads take turns, so they are one *line* of launches; every other thread is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analyze.grouping import distinct, sums
from nvprobe.analyze.waiting.charges import IdleCharges
from nvprobe.analyze.waiting.hostwork import Cause, HostWork
from nvprobe.analyze.waiting.lanes import Lanes
from nvprobe.analyze.waiting.lines import NO_LINE, CodeLines
from nvprobe.analyze.waiting.sampled import LineSamples, added_up, shared_out
from nvprobe.attribute.intervals import running_max, runs, sorted_by
from nvprobe.attribute.model import Attribution
from nvprobe.attribute.nesting import Nesting
from nvprobe.trace import NO_ROW, Column, Table, column

__all__ = ["HostTime", "by_label", "host_time", "sampled_host_time"]

_BATCH = 1 << 18
"""Pieces looked at together: it bounds the arrays alive at once."""


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
    """GPU idle time charged to ``host`` here."""
    samples: Column | None = column("i8", optional=True)
    """Python samples that told the line; launches and times of a path are divided among its
    lines as its samples are. ``None`` where lines are exact, or where there are none."""


def host_time(
    attribution: Attribution, work: HostWork, idle: IdleCharges, lines: CodeLines | None
) -> HostTime:
    """Sum the host time of every line of launches, and the idle time it caused."""
    started = _started(attribution)
    if not len(started):
        return HostTime.empty()
    waited = idle.take(np.flatnonzero(idle.cause == Cause.HOST))
    parts = [
        *_host_parts(attribution, started, work, lines),
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
    work: HostWork,
    table: HostTime,
    samples: LineSamples,
    waited: tuple[Column, Column],
) -> HostTime:
    """The host time of paths divided among the lines that samples saw.

    ``waited`` are the (path, line) of the samples in idle time charged to ``host``.
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
    attribution: Attribution, work: HostWork, samples: LineSamples
) -> tuple[Column, Column]:
    """(path, line) of the samples in host time between launches."""
    turns = _turns(attribution, _lines(attribution), _started(attribution))
    lane = _lines(attribution)[samples.thread]
    inside = (samples.time >= turns.first[lane]) & (samples.time < turns.last[lane])
    lane, time = lane[inside], samples.time[inside]
    thread = turns.thread[turns.lanes.count_before(lane, time, "right") - 1]
    ours = samples.tellers(attribution)[thread] == samples.thread[inside]
    ours &= work.split(thread, time, time + 1)[Cause.HOST] == 1
    path = attribution.open.at(thread[ours], time[ours])
    return path, samples.line[inside][ours]


def _costliest_first(table: HostTime) -> HostTime:
    return table.take(np.lexsort((-table.host_ns, -table.idle_ns)))


def _started(attribution: Attribution) -> Column:
    """Rows of the calls that launched something."""
    calls = attribution.trace.calls
    used = np.zeros((0 if calls is None else len(calls)) + 1, bool)
    used[attribution.call] = True  # NO_ROW marks the spare last row
    return np.flatnonzero(used[:-1])


def _lines(attribution: Attribution) -> Column:
    """Which line of launches each thread belongs to: its own number, or its leader's."""
    line_of = np.arange(len(attribution.trace.threads))
    backward = np.flatnonzero(attribution.autograd)
    head = attribution.open.initiator(backward)
    line_of[backward[head != NO_ROW]] = head[head != NO_ROW]
    return line_of


@dataclass(frozen=True, slots=True)
class _Part:
    """Sums of some rows by place; a trace has millions of pieces, and few places."""

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
    attribution: Attribution, started: Column, work: HostWork, lines: CodeLines | None
) -> Iterator[_Part]:
    """Host ns of the launching threads' time."""
    for thread, start, end in _pieces(attribution, started, lines):
        ns = work.split(thread, start, end)[Cause.HOST]
        yield _part(*_place(attribution, lines, thread, start), 1, ns)


def _launch_parts(
    attribution: Attribution, started: Column, lines: CodeLines | None
) -> Iterator[_Part]:
    """Launching calls."""
    calls = attribution.trace.calls
    assert calls is not None
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


@dataclass(frozen=True, slots=True)
class _Turns:
    """Whose turn it is to launch, by line of launches and time."""

    lanes: Lanes
    """When each turn begins."""
    thread: Column
    """The thread that launches next, per turn."""
    first: Column
    """Per line: when its first launching call starts."""
    last: Column
    """Per line: when its last one ends."""


def _turns(attribution: Attribution, line_of: Column, started: Column) -> _Turns:
    """A turn begins where the thread before has made its last call."""
    calls = attribution.trace.calls
    assert calls is not None
    lines = len(line_of)
    rows = started[sorted_by(line_of[calls.thread[started]], calls.start[started])]
    thread = calls.thread[rows]
    line, start = line_of[thread], calls.start[rows]
    reach = running_max(line, calls.end[rows])
    begins = np.append(True, (line[1:] != line[:-1]) | (thread[1:] != thread[:-1]))
    heads = runs(line)
    first = np.full(lines, np.iinfo(np.int64).max)
    last = np.full(lines, np.iinfo(np.int64).min)
    first[line[heads]] = start[heads]
    last[line[heads]] = reach[np.append(heads[1:], len(line)) - 1]
    since = np.where(np.isin(np.arange(len(line)), heads), start, np.roll(reach, 1))
    at = np.flatnonzero(begins)
    bounds = np.searchsorted(line[at], np.arange(lines + 1))
    return _Turns(Lanes(bounds, since[at]), thread[at], first, last)


def _pieces(
    attribution: Attribution, started: Column, lines: CodeLines | None
) -> Iterator[tuple[Column, Column, Column]]:
    """(thread, start, end) of launching threads' time, cut where thread, path or frame change.

    In batches: there are about two pieces a range.
    """
    line_of = _lines(attribution)
    turns = _turns(attribution, line_of, started)
    nestings = [attribution.open.nesting, *([lines.users] if lines is not None else [])]
    for line in np.flatnonzero(turns.last > turns.first).tolist():
        time = _borders(turns, line, nestings, np.flatnonzero(line_of == line))
        for low in range(0, len(time) - 1, _BATCH):
            start, end = time[low:-1][:_BATCH], time[low + 1 :][:_BATCH]
            filled = end > start
            start, end = start[filled], end[filled]
            turn = turns.lanes.count_before(np.full(len(start), line), start, "right") - 1
            yield turns.thread[turn], start, end


def _borders(turns: _Turns, line: int, nestings: list[Nesting], threads: Column) -> Column:
    """When something begins or ends on a line of launches, in order."""
    whole = turns.lanes.first[line : line + 2]
    times = [turns.lanes.time[slice(*whole)], turns.last[[line]]]
    for nesting in nestings:
        for thread in threads.tolist():
            own = slice(*nesting.first[thread : thread + 2])
            for time in (nesting.start[own], nesting.end[own]):
                inside = (time > turns.first[line]) & (time < turns.last[line])
                times.append(time[inside])
    out = np.concatenate(times)
    out.sort(kind="stable")
    return out
