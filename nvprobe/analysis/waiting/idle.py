"""Why each device was idle: every nanosecond of every gap assigned to one cause, path and line.

A gap ends with an op K, whose call some thread T made. Up to the end of that call the gap is the
host's and T's doing at each instant is its cause; after it the op was queued. Gaps are cut into
*parts* wherever something changes that an assignment depends on (a range of T begins or ends, a
step begins or ends, the call ends, the delay of a synchronizing call is used up), so that each
part has one path; its ns by cause then are differences of covered lengths (``host_causes``).

Definition: docs/attribution.md, "Idle". Oracle: tests/oracle_waits.py.

The line is the one that was running, else where the innermost range began; what a line is stands
beside it (`nvprobe.analysis.code_places`). How time is shared out among lines that Python samples
give, and what that is worth: :mod:`nvprobe.analysis.waiting.code_lines`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.analysis.code_places import CodePlaces, Line, running_line
from nvprobe.analysis.model import Steps
from nvprobe.analysis.steps import step_at, step_or_next
from nvprobe.analysis.timelines import Streams
from nvprobe.analysis.waiting.blocking import SyncCalls
from nvprobe.analysis.waiting.code_lines import CodeLines, LineSamples, SampledTime, shared_out
from nvprobe.analysis.waiting.gaps import (
    LONG_NS,
    GapParts,
    Gaps,
    IdleTime,
    borders,
    borders_of_ranges,
    by,
    cut,
    ends,
    joined,
    summed,
)
from nvprobe.analysis.waiting.host_causes import HOST_LATE, Cause, HostCauses
from nvprobe.analysis.waiting.syncs import Syncs
from nvprobe.attribution.intervals import Instants, expand, firsts, runs
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, column

_BATCH = 1 << 18
"""Parts assigned together: it bounds the arrays alive at once."""


@dataclass(frozen=True, slots=True)
class _Delays:
    """Per gap: the stretch of host time that the last synchronizing call made late."""

    wait: Column
    """Row of the synchronizing calls, -1 where none ended in the gap."""
    start: Column
    end: Column
    """No later than the end of the host's part; ``start`` where there is no delay."""


def idle_time(
    attribution: Attribution,
    gaps: Gaps,
    steps: Steps,
    streams: Streams,
    waits: SyncCalls,
    work: HostCauses,
    lines: CodeLines | None = None,
) -> tuple[IdleTime, Column]:
    """Assign every gap; also ``bubble_ns``, the ``sync`` idle of each synchronizing call.

    Where ``lines`` are given, by the user's Python frame too.
    """
    delays = _delays(gaps, waits, work)
    parts = _cut(attribution, gaps, steps, delays, lines)
    long = long_gaps(gaps, work)
    bubble = np.zeros(len(waits), np.int64)
    tables, waited = [], []
    for low in range(0, len(parts.gap), _BATCH):
        some = parts.rows(low, low + _BATCH)
        ns = _causes(gaps, some, delays, work)
        waited.append(some.gap[np.flatnonzero(ns[Cause.SYNC])])
        _move_late(some, delays, ns, bubble)
        places = _places(attribution, gaps, steps, streams, some, lines)
        tables.append(summed(streams, (*places, long[some.gap]), ns))
    known = np.concatenate(waited) if waited else np.empty(0, np.int64)
    bubble += _bubbles(gaps, waits, known[runs(known)])
    return joined(tables), bubble


def idle_instants(
    attribution: Attribution,
    gaps: Gaps,
    waits: SyncCalls,
    work: HostCauses,
    samples: LineSamples,
) -> tuple[Column, Column, Column]:
    """(sample, path, cause) of the samples that fall into the host's part of gaps.

    A sample stands for the gaps that its thread ended. Its cause is that at its first nanosecond.
    """
    delays = _delays(gaps, waits, work)
    found = list(gaps.containing(samples.time)) or [(np.empty(0, np.int64),) * 2]
    gap, sample = (np.concatenate(column) for column in zip(*found, strict=True))
    teller = samples.tellers(attribution)
    ours = teller[gaps.thread[gap]] == samples.thread[sample]
    ours &= samples.time[sample] < gaps.queued[gap]
    gap, sample = gap[ours], sample[ours]
    moment = GapParts(gap, samples.time[sample], samples.time[sample] + 1)
    ns = _causes(gaps, moment, delays, work)
    _move_late(moment, delays, ns, np.zeros(len(waits), np.int64))
    cause = np.argmax(np.stack([ns[cause] for cause in Cause]), axis=0)
    return sample, attribution.open.at(gaps.thread[gap], moment.start), cause


@dataclass(frozen=True, slots=True)
class IdleStretches(Table):
    """Gaps cut into stretches of one cause each, by device and time: idle time to be drawn.

    Their lengths per cause are those of :func:`idle_time`.
    """

    device: Column = column("i4")
    """Row of the device, -1 where the source names none."""
    start: Column = column("i8")
    end: Column = column("i8")
    cause: Column = column("i1")
    """:class:`~nvprobe.analysis.waiting.host_causes.Cause`."""
    op: Column = column("i8")
    """Row of the op that ended the gap."""


def idle_stretches(gaps: Gaps, waits: SyncCalls, work: HostCauses) -> IdleStretches:
    """Cut every gap wherever its cause changes: at the calls and ranges that causes depend on."""
    if not len(gaps):
        return IdleStretches.empty()
    delays = _delays(gaps, waits, work)
    late = np.flatnonzero(delays.end > delays.start)
    called = np.flatnonzero(gaps.queued > gaps.start)
    cuts = [(called, gaps.queued[called]), (late, delays.start[late]), (late, delays.end[late])]
    for _, level in work.levels:
        lane = np.repeat(np.arange(len(level.first) - 1), np.diff(level.first))
        time = np.concatenate((level.start, level.end))
        cuts += borders(gaps, (gaps.thread,), np.tile(lane, 2), time)
    parts = cut(gaps, cuts)
    cause = np.zeros(len(parts.gap), np.int8)
    for low in range(0, len(cause), _BATCH):
        some = parts.rows(low, low + _BATCH)
        ns = _causes(gaps, some, delays, work)
        _move_late(some, delays, ns, np.zeros(len(waits), np.int64))
        cause[low : low + _BATCH] = np.argmax(np.stack([ns[one] for one in Cause]), axis=0)
    first = runs(parts.gap * len(Cause) + cause)
    gap, last = parts.gap[first], np.append(first[1:], len(cause)) - 1
    return IdleStretches(
        gaps.device[gap], parts.start[first], parts.end[last], cause[first], gaps.op[gap]
    )


def long_gaps(gaps: Gaps, work: HostCauses) -> Column:
    """Bool per gap: its host time, without what has a cause of its own, is `LONG_NS` or more."""
    out = gaps.queued - gaps.start >= LONG_NS
    rows = np.flatnonzero(out & (gaps.thread != NO_ROW))
    ns = work.split(gaps.thread[rows], gaps.start[rows], gaps.queued[rows])
    out[rows] = sum(ns.get(cause, 0) for cause in HOST_LATE) >= LONG_NS
    return np.asarray(out)


def _delays(gaps: Gaps, waits: SyncCalls, work: HostCauses) -> _Delays:
    """The first ``busy_ns`` of calls and host time after the last wait to end in a gap.

    Without that wait the host would have been so much earlier, and no more than that.
    """
    wait = _last_ended(gaps, waits)
    start, end = gaps.queued.copy(), gaps.queued.copy()
    some = np.flatnonzero(wait != NO_ROW)
    if len(some):
        began, owed = waits.end[wait[some]], waits.busy_ns[wait[some]]
        matched_before = work.level(Cause.NO_WORK)
        used_up = began + owed
        if matched_before is not None:
            used_up = matched_before.after_uncovered(gaps.thread[some], began, owed)
        start[some] = np.minimum(began, gaps.queued[some])
        end[some] = np.clip(used_up, start[some], gaps.queued[some])
    return _Delays(wait=wait, start=start, end=end)


def _last_ended(gaps: Gaps, waits: SyncCalls) -> Column:
    """Row of the last synchronizing call of the gap's thread with gap start <= end < gap end."""
    out = np.full(len(gaps), NO_ROW, np.int64)
    for gap, wait in gaps.containing(waits.end):
        ours = gaps.thread[gap] == waits.thread[wait]
        np.maximum.at(out, gap[ours], wait[ours])  # waits of a thread are sorted
    return out


def _cut(
    attribution: Attribution,
    gaps: Gaps,
    steps: Steps,
    delays: _Delays,
    lines: CodeLines | None,
) -> GapParts:
    """Cut gaps at everything that an assignment depends on."""
    late = np.flatnonzero(delays.end > delays.start)
    called = np.flatnonzero(gaps.queued > gaps.start)
    cuts = [
        (called, gaps.queued[called]),
        (late, delays.start[late]),
        (late, delays.end[late]),
        *borders_of_ranges(attribution, gaps),
        *(_frame_borders(gaps, lines) if lines is not None else ()),
        *_step_borders(attribution, gaps, steps),
    ]
    return cut(gaps, cuts)


def _frame_borders(gaps: Gaps, lines: CodeLines) -> Iterator[tuple[Column, Column]]:
    """(gap, time) of every begin and end of a Python frame of the gap's thread, or its leader's."""
    leader = np.where(gaps.thread != NO_ROW, lines.leader[gaps.thread], NO_ROW)
    return borders(gaps, (gaps.thread, leader), *ends(lines.users))


def _step_borders(
    attribution: Attribution, gaps: Gaps, steps: Steps
) -> Iterator[tuple[Column, Column]]:
    """(gap, time) of every begin and end of a step of the process whose op ended the gap."""
    time = np.concatenate((steps.start, steps.end))
    return borders(gaps, (_processes(attribution, gaps),), np.tile(steps.process, 2), time)


def _processes(attribution: Attribution, gaps: Gaps) -> Column:
    ops = attribution.trace.ops
    return ops.process[gaps.op]


def _causes(gaps: Gaps, parts: GapParts, delays: _Delays, work: HostCauses) -> dict[Cause, Column]:
    """ns of each cause per part, before delays."""
    thread = gaps.thread[parts.gap]
    unknown = thread == NO_ROW
    queued = ~unknown & (parts.start >= gaps.queued[parts.gap])
    out = {cause: np.zeros(len(thread), np.int64) for cause in Cause}
    out[Cause.UNKNOWN] = np.where(unknown, parts.length, 0)
    out[Cause.DEVICE_WAIT] = np.where(queued, parts.length, 0)
    host = np.flatnonzero(~unknown & ~queued)
    for cause, ns in work.split(thread[host], parts.start[host], parts.end[host]).items():
        out[cause][host] = ns
    return out


def _move_late(parts: GapParts, delays: _Delays, ns: dict[Cause, Column], bubble: Column) -> None:
    """Assign what a synchronizing call made late to it: in ``ns``, and in its ``bubble``."""
    start, end = delays.start[parts.gap], delays.end[parts.gap]
    late = np.flatnonzero((parts.start >= start) & (parts.end <= end))
    moved = np.sum([ns[cause][late] for cause in HOST_LATE], axis=0)
    ns[Cause.SYNC][late] += moved
    for cause in HOST_LATE:
        ns[cause][late] = 0
    made = np.flatnonzero(moved)
    np.add.at(bubble, delays.wait[parts.gap[late[made]]], moved[made])


def _bubbles(gaps: Gaps, waits: SyncCalls, known: Column) -> Column:
    """Per synchronizing call: time of the gaps ``known`` that lies inside it, up to their call."""
    out = np.zeros(len(waits), np.int64)
    first = firsts(waits.thread, gaps.thread)
    thread = gaps.thread[known]
    low = Instants(first, waits.end).count_before(thread, gaps.start[known], "right")
    high = Instants(first, waits.start).count_before(thread, gaps.queued[known], "left")
    row, wait = expand(low, high)
    gap = known[row]
    begin = np.maximum(waits.start[wait], gaps.start[gap])
    np.add.at(out, wait, np.minimum(waits.end[wait], gaps.queued[gap]) - begin)
    return out


def _places(
    attribution: Attribution,
    gaps: Gaps,
    steps: Steps,
    streams: Streams,
    parts: GapParts,
    lines: CodeLines | None,
) -> tuple[Column, ...]:
    """(stream, step, next step, path, line) row of each part."""
    thread, process = gaps.thread[parts.gap], _processes(attribution, gaps)[parts.gap]
    line = np.full(len(thread), NO_ROW, np.int32)
    if lines is not None:
        line = lines.at(thread, parts.start)
    return (
        streams.of_op[gaps.op[parts.gap]],
        step_at(steps, process, parts.start),
        step_or_next(steps, process, parts.start),
        attribution.open.at(thread, parts.start),
        line,
    )


SAMPLED_CAUSES = HOST_LATE
"""Causes that a line can be blamed for; the others have names of their own."""


@dataclass(frozen=True, slots=True)
class SampledIdle:
    """Idle time of the host by path, cause and line."""

    path: Column
    cause: Column
    """Path and cause of each group of ``time``."""
    time: SampledTime
    labels: pa.StringArray

    @property
    def samples(self) -> int:
        """Samples that fell into idle time."""
        return int(self.time.samples.sum())


def sampled_idle(
    attribution: Attribution,
    gaps: Gaps,
    waits: SyncCalls,
    work: HostCauses,
    idle: IdleTime,
    samples: LineSamples,
) -> tuple[SampledIdle, tuple[Column, Column]]:
    """Idle time divided among lines; also (path, line) of the samples in ``host`` idle time."""
    sample, path, cause = idle_instants(attribution, gaps, waits, work, samples)
    own_path, own_cause, ns = by(idle.take(np.isin(idle.cause, SAMPLED_CAUSES)), "path", "cause")
    group_of = np.full((int(path.max(initial=int(own_path.max(initial=-1)))) + 2, len(Cause)), -1)
    group_of[own_path, own_cause] = np.arange(len(ns))  # path -1 is the spare last one
    group = group_of[path, cause]
    known = group != NO_ROW
    time = shared_out(ns, group[known], samples.line[sample[known]])
    worked = cause == Cause.HOST
    seen = path[worked], samples.line[sample[worked]]
    return SampledIdle(own_path, own_cause, time, samples.labels), seen


@dataclass(frozen=True, slots=True)
class LineIdle:
    """Idle time assigned to one line."""

    line: Line | None
    cause: Cause
    ns: int
    samples: int | None = None
    """Samples that saw the line; ``None`` where it is exact or unknown."""


def idle_by_line(
    idle: IdleTime,
    frames: Sequence[str],
    syncs: Syncs,
    sampled: SampledIdle | None,
    places: CodePlaces | None,
) -> list[LineIdle]:
    """Idle time by line and cause, most first; its rows add up to ``idle``.

    Args:
        idle: Its ``line`` column has rows of ``frames``, the functions of a torch trace.
        frames: Empty where the capture has no Python frames.
        syncs: The lines that ``sync`` idle time is charged to.
        sampled: Idle time of the host by sampled line; None where nothing was sampled.
        places: Where ranges begin: the lines of what has no other.

    """
    sites = syncs.sites
    of_sync = np.full(len(sites), Cause.SYNC)
    others = idle.take(~np.isin(idle.cause, (Cause.SYNC, *(SAMPLED_CAUSES if sampled else ()))))
    tables: list[tuple[Sequence[str], tuple[Column, ...]]] = [
        (frames, by(others, "line", "path", "cause")),
        (syncs.labels.to_pylist(), (sites.source, sites.path, of_sync, sites.bubble_ns)),
    ]
    if sampled is not None:
        group, time = sampled.time.group, sampled.time
        seen = (time.line, sampled.path[group], sampled.cause[group], time.ns, time.samples)
        tables.append((sampled.labels.to_pylist(), seen))
    begun_at = places.nearest if places else _nowhere
    total: Counter[tuple[Line | None, int]] = Counter()
    samples: Counter[tuple[Line | None, int]] = Counter()
    for labels, columns in tables:
        for row, path, cause, ns, *seen_in in zip(*(c.tolist() for c in columns), strict=True):
            line = running_line(labels[row], bool(frames)) if row >= 0 else begun_at(path)
            total[line, cause] += ns
            samples[line, cause] += sum(seen_in)
    rows = [
        LineIdle(line, Cause(cause), ns, samples[line, cause] or None)
        for (line, cause), ns in total.items()
    ]
    return sorted((one for one in rows if one.ns or one.samples), key=lambda one: -one.ns)


def _nowhere(path: int) -> None:
    return None
