"""The gaps of each device, what ended them, and their time summed by what it is assigned to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import counts, distinct, sums
from nvprobe.analysis.model import DeviceUse
from nvprobe.analysis.timelines import DeviceOrder, Streams, device_order
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.attribution.intervals import expand, merged, slices, sorted_by, union_length
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting
from nvprobe.trace import NO_ROW, Column, Table, Trace, column


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
        order = np.argsort(time, kind="stable")
        ordered = time[order]
        for low, high in slices(self.device):
            first = np.searchsorted(ordered, self.start[low:high])
            gap, place = expand(first, np.searchsorted(ordered, self.end[low:high]))
            yield low + gap, order[place]


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
    """Bool per interval: part of it was recorded by no source, so that it is not a gap."""
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


def device_use(attribution: Attribution) -> DeviceUse:
    """Busy, idle and window of each device with ops; impossible times are left out.

    Of a selection the window is its own time: busy, or idle before one of its ops.
    """
    ops = attribution.trace.ops
    if not attribution.valid.any():
        return DeviceUse.empty()
    valid = attribution.valid
    device, start, end = ops.device[valid] + 1, ops.start[valid], ops.end[valid]
    size = int(device.max()) + 1
    number = counts(device, size)
    first = np.full(size, np.iinfo(np.int64).max)
    last = np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(first, device, start)
    np.maximum.at(last, device, end)
    used = np.flatnonzero(number)
    busy = union_length(device, start, end, size)[used]
    window = last[used] - first[used] - _unrecorded(attribution, device, start, end, size)[used]
    if attribution.unfiltered is not None:
        gaps = device_gaps(attribution, device_order(attribution))
        window = busy + sums(gaps.device + 1, gaps.length, size)[used]
    return DeviceUse(
        device=used - 1,
        ops=number[used],
        start=first[used],
        end=last[used],
        busy_ns=busy,
        idle_ns=window - busy,
        window_ns=window,
    )


def _unrecorded(
    attribution: Attribution, device: Column, start: Column, end: Column, size: int
) -> Column:
    """ns per device between works for which it is unknown whether it idled."""
    if not attribution.trace.unrecorded:
        return np.zeros(size, np.int64)
    group, begin, finish = merged(device, start, end)
    before = np.flatnonzero(group[1:] == group[:-1])
    low, high = finish[before], begin[before + 1]
    apart = unrecorded(attribution.trace, low, high)
    return sums(group[before][apart], (high - low)[apart], size)


Cut = tuple[Column, Column]
"""(row of the gaps, time) of instants at which to cut; those outside their gap cut nothing."""


@dataclass(frozen=True, slots=True)
class GapParts:
    """Parts of gaps with one thread, path, step and side of the call each."""

    gap: Column
    """Row of the gaps."""
    start: Column
    end: Column

    @property
    def length(self) -> Column:
        """ns of each part."""
        return self.end - self.start

    def rows(self, low: int, high: int) -> GapParts:
        """Parts ``low … high - 1``."""
        return GapParts(self.gap[low:high], self.start[low:high], self.end[low:high])


def cut(gaps: Gaps, cuts: Iterable[Cut]) -> GapParts:
    """Cut every gap at the given instants."""
    gap, time = (np.concatenate(column) for column in zip(*cuts, strict=True))
    inside = (time > gaps.start[gap]) & (time < gaps.end[gap])
    gap, time = gap[inside], time[inside]
    # Gaps of one device are disjoint and sorted: by device and time is by gap and time.
    order = sorted_by(gaps.device[gap] + 1, time)
    return _inserted(gaps, gap[order], time[order])


def _inserted(gaps: Gaps, gap: Column, time: Column) -> GapParts:
    """Cut gaps at sorted instants inside them: gap starts and cuts, merged by counting."""
    count = np.bincount(gap, minlength=len(gaps))
    first = np.arange(len(gaps)) + np.cumsum(count) - count
    place = np.arange(len(gap)) + gap + 1
    start = np.empty(len(gaps) + len(gap), np.int64)
    start[first], start[place] = gaps.start, time
    of = np.repeat(np.arange(len(gaps)), count + 1)
    end = np.append(start[1:], 0)
    end[first + count] = gaps.end
    filled = end > start
    return GapParts(of[filled], start[filled], end[filled])


def borders_of_ranges(attribution: Attribution, gaps: Gaps) -> Iterator[Cut]:
    """(gap, time) of every begin and end of a range on the gap's thread (rules 1 and 2)."""
    head = np.full(len(gaps), NO_ROW, np.int32)
    inherits = gaps.thread != NO_ROW
    inherits[inherits] = attribution.autograd[gaps.thread[inherits]]
    head[inherits] = attribution.open.initiator(gaps.thread[inherits])
    return borders(gaps, (gaps.thread, head), *ends(attribution.open.nesting))


def ends(nesting: Nesting) -> tuple[Column, Column]:
    """(thread, time) of the begin and end of everything that nests."""
    lane = np.repeat(np.arange(len(nesting.first) - 1, dtype=np.int32), np.diff(nesting.first))
    return np.tile(lane, 2), np.concatenate((nesting.start, nesting.end))


def borders(gaps: Gaps, wanted: tuple[Column, ...], lane: Column, time: Column) -> Iterator[Cut]:
    """(gap, time) of the instants of any lane that a gap wants, inside that gap."""
    for gap, border in gaps.containing(time):
        of = lane[border]
        ours = np.zeros(len(gap), bool)
        for lanes in wanted:
            ours |= lanes[gap] == of
        yield gap[ours], time[border[ours]]


LONG_NS = 2_000_000
"""Host time before one op that launching does not account for. The slowest launches seen, those of
a ``foreach`` optimizer that gathers its tensors, take half a millisecond under nsys, and 1.8 ms
with every operator traced besides."""
_MOST_CODES = 1 << 62


@dataclass(frozen=True, slots=True)
class IdleTime(Table):
    """Idle time by everything it is assigned to; rows add up to the idle time of the devices."""

    device: Column = column("i4")
    """Row of the device, -1 where the source names none."""
    stream: Column = column("i4")
    """Row of ``Streams``: where the op ran that ended the gap."""
    step: Column = column("i4")
    """Row of the steps, -1 outside of all."""
    next_step: Column = column("i4")
    """Row of the step that is open or comes next, -1 after the last."""
    path: Column = column("i4")
    """Owner path of the launching thread at the time, -1 for none."""
    line: Column = column("i4")
    """Row of the labels of ``CodeLines``: the user's frame at the time, -1 where unknown."""
    long: Column = column("?")
    """Of a gap with `LONG_NS` or more of ``host`` and ``launch_call``: one long pause."""
    cause: Column = column("i1")
    """:class:`~nvprobe.analysis.waiting.host_causes.Cause`."""
    ns: Column = column("i8")


def by(idle: IdleTime, *names: str) -> tuple[Column, ...]:
    """The distinct values of some columns, and last the ns assigned to each combination."""
    columns = [getattr(idle, name) for name in names]
    code, first = _codes(columns)
    return *(column[first] for column in columns), sums(code, idle.ns, len(first))


def summed(streams: Streams, places: tuple[Column, ...], ns: dict[Cause, Column]) -> IdleTime:
    """Sum the parts by place (stream, step, next_step, path, line, long) and cause."""
    code, first = _codes(places)
    size = len(first)
    by_cause = np.zeros((size, len(Cause)), np.int64)
    for cause, own in ns.items():
        some = np.flatnonzero(own)
        by_cause[:, cause] = sums(code[some], own[some], size)
    row, why = np.nonzero(by_cause)
    stream, step, next_step, path, line, long = (rows[first[row]] for rows in places)
    return IdleTime(
        device=streams.device[stream],
        stream=stream,
        step=step,
        next_step=next_step,
        path=path,
        line=line,
        long=long,
        cause=why,
        ns=by_cause[row, why],
    )


def _codes(places: Sequence[Column]) -> tuple[Column, Column]:
    """(number of each distinct place, in order of appearance; the first row of each number)."""
    code, size = np.zeros(len(places[0]), np.int64), 1
    for rows in places:
        if not len(rows) or (rows == rows[0]).all():
            continue
        low, high = int(rows.min()), int(rows.max())
        if size * (high - low + 1) >= _MOST_CODES:
            keys, code = distinct(code)
            code, size = code.astype(np.int64), len(keys)
        code, size = code * (high - low + 1) + rows - low, size * (high - low + 1)
    code = distinct(code)[1].astype(np.int64)
    return code, np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))


def joined(tables: list[IdleTime]) -> IdleTime:
    """The tables of consecutive parts as one."""
    if len(tables) < 2:
        return tables[0] if tables else IdleTime.empty()
    whole = IdleTime(
        *(
            np.concatenate(column)
            for column in zip(*(t.columns().values() for t in tables), strict=True)
        )
    )
    code, first = _codes(
        (whole.stream, whole.step, whole.next_step, whole.path, whole.line, whole.long)
    )
    by_cause = np.zeros(len(first) * len(Cause), np.int64)
    np.add.at(by_cause, code * len(Cause) + whole.cause, whole.ns)
    cell = np.flatnonzero(by_cause)
    out = whole.take(first[cell // len(Cause)])
    return dataclasses.replace(out, cause=cell % len(Cause), ns=by_cause[cell])
