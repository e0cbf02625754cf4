"""What happened when, as slices on tracks: what the page draws, and what Perfetto gets.

Host threads carry their ranges, start/end ranges and CUDA calls, streams their ops, devices their
idle time by cause. Slices of one lane of one track never overlap (:mod:`nvprobe.report.lanes`).
Times are those of the trace, in ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa

from nvprobe.analysis.grouping import distinct
from nvprobe.analysis.kernels.by_name import short_kernel_name
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.steps import OWN_WINDOW
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.report.lanes import lanes, track_order
from nvprobe.trace import NO_ROW, OPEN, Column, OpKind, Table, Trace, column
from nvprobe.trace.cuda_calls import ALLOCATIONS, LAUNCH_CALLS, call_roles


class TrackKind(IntEnum):
    """What a track holds, in the order in which tracks of a process or device are shown."""

    RANGES = 0
    SPANS = 1
    """Start/end ranges, by the thread that began them."""
    CALLS = 2
    STREAM = 3
    IDLE = 4

    @property
    def on_host(self) -> bool:
        """Whether it is of a thread."""
        return self <= TrackKind.CALLS


class CallColor(IntEnum):
    """What a CUDA call is drawn as."""

    LAUNCH = 0
    SYNC = 1
    """It made the host wait."""
    ALLOCATION = 2
    OTHER = 3


class Role(IntEnum):
    """What a thread does in its process."""

    INITIATING = 0
    """It runs the steps."""
    AUTOGRAD = 1
    """What it launches belongs to what the initiating thread has open, too."""
    OTHER = 2


@dataclass(frozen=True, slots=True)
class Track:
    """A thread, a stream, or the idle time of a device."""

    kind: TrackKind
    process: int
    """Row of the trace's processes, -1 for a device."""
    device: int
    """Row of the trace's devices, -1 for a thread, or where the source names none."""
    number: int
    """Thread id or stream; 0 for idle time."""
    title: str
    slices: int
    role: Role = Role.OTHER


@dataclass(frozen=True, slots=True)
class Slices(Table):
    """By track, lane and start."""

    track: Column = column("i4")
    lane: Column = column("i4")
    start: Column = column("i8")
    end: Column = column("i8")
    name: Column = column("i4")
    """Row of the timeline's names."""
    path: Column = column("i4")
    """Owner path of an op, path of a range, path open at a call; row of the paths, -1 for none."""
    color: Column = column("i1")
    """Kind of a range, `CallColor`, Family of an op, Cause of idle time: see `Timeline.colors`."""
    row: Column = column("i8")
    """Row of the ranges, spans, calls or ops of the trace; of idle time the op that ended it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tracks in the order in which they are shown, and their slices."""

    tracks: list[Track]
    slices: Slices
    names: list[str]
    colors: dict[TrackKind, list[str]]
    """What the numbers in ``slices.color`` stand for, by kind of track."""
    call: Column
    """int64 per slice: the slice of the call that launched it, -1 for none."""

    def take(self, rows: Column) -> Timeline:
        """Some slices, in their order."""
        place = np.full(len(self.slices) + 1, NO_ROW)  # the last: no call
        place[rows] = np.arange(len(rows))
        kept = self.slices.take(rows)
        return Timeline(self.tracks, kept, self.names, self.colors, place[self.call[rows]])


@dataclass(frozen=True, slots=True)
class _Part:
    """The slices of one kind before they are given lanes; ``track`` numbers the part's tracks."""

    tracks: list[Track]
    track: Column
    start: Column
    end: Column
    name: Column
    names: list[str]
    path: Column
    color: Column
    row: Column


def timeline(analysis: Analysis) -> Timeline:
    """Tracks and slices of a whole capture."""
    made = [_ranges(analysis), _spans(analysis), _calls(analysis), _ops(analysis)]
    if analysis.waits is not None:
        made.append(_idle(analysis.waits))
    tracks, place = _in_order([track for part in made for track in part.tracks])
    names: list[str] = []
    rows: list[list[Column]] = []
    before = 0
    for part in made:
        track = place[before + part.track]
        order = track_order(track, part.start, part.end)
        lane = lanes(track[order], part.start[order], part.end[order])
        columns = (part.start, part.end, part.name + len(names), part.path, part.color, part.row)
        rows.append([track[order], lane, *(one[order] for one in columns)])
        names += part.names
        before += len(part.tracks)
    found = Slices(*(np.concatenate(column) for column in zip(*rows, strict=True)))
    found = found.take(np.lexsort((found.start, found.lane, found.track)))
    return Timeline(tracks, found, names, _COLORS, _launching_slices(analysis, tracks, found))


_COLORS = {
    TrackKind.RANGES: [kind.name.lower() for kind in Kind],
    TrackKind.SPANS: ["span"],
    TrackKind.CALLS: [color.name.lower() for color in CallColor],
    TrackKind.STREAM: [family.label for family in Family],
    TrackKind.IDLE: [cause.label for cause in Cause],
}


def _in_order(tracks: list[Track]) -> tuple[list[Track], Column]:
    """Tracks as they are shown, and the new place of each: host threads first, then devices.

    Of the threads of a process the initiating one stands first, then the busiest.
    """

    def key(row: int) -> tuple[int, ...]:
        one = tracks[row]
        if not one.kind.on_host:
            return (1, one.device, -one.kind, one.process, one.number)
        busiest = max(t.slices for t in tracks if t.kind.on_host and _same(t, one))
        return (0, one.process, one.role, -busiest, one.number, one.kind)

    order = sorted(range(len(tracks)), key=key)
    place = np.empty(len(tracks), np.int64)
    place[order] = np.arange(len(tracks))
    return [tracks[row] for row in order], place


def _same(one: Track, other: Track) -> bool:
    return (one.process, one.number) == (other.process, other.number)


def _ranges(analysis: Analysis) -> _Part:
    made = analysis.attribution
    ranges, tree, paths = made.trace.ranges, made.tree, made.paths
    row = np.flatnonzero(~tree.folded & (tree.path >= 0))
    tracks, track = _threads(made, ranges.thread[row], TrackKind.RANGES)
    clean, index = paths.name[tree.path[row]], tree.index[row]
    index = np.where(tree.kind[row] == Kind.STEP, index, -1)
    pair, name = distinct(clean.astype(np.int64) << 32 | (index + 1) & 0xFFFFFFFF)
    texts = paths.names.take(pa.array(pair >> 32)).to_pylist()
    numbers = ((pair & 0xFFFFFFFF) - 1).tolist()
    return _Part(
        tracks,
        track,
        ranges.start[row],
        np.maximum(tree.end[row], ranges.start[row]),
        name,
        [f"{t} {n}" if n >= 0 else t for t, n in zip(texts, numbers, strict=True)],
        tree.path[row],
        tree.kind[row],
        row,
    )


def _threads(made: Attribution, thread: Column, kind: TrackKind) -> tuple[list[Track], Column]:
    """The tracks of threads, and the number of the track per given thread."""
    threads = made.trace.threads
    rows, code, count = np.unique(thread, return_inverse=True, return_counts=True)
    role = np.where(made.autograd[rows], Role.AUTOGRAD, Role.OTHER)
    role[np.isin(rows, made.initiating)] = Role.INITIATING
    names = made.trace.texts(threads.name[rows])
    columns = (threads.process[rows], threads.tid[rows], count, role)
    tracks = [
        Track(kind, process, NO_ROW, tid, name or "thread", size, Role(value))
        for name, process, tid, size, value in zip(
            names, *(one.tolist() for one in columns), strict=True
        )
    ]
    return tracks, code


def _spans(analysis: Analysis) -> _Part:
    """Without nvprobe's own, which opens the capture window."""
    trace, spans = analysis.attribution.trace, analysis.attribution.trace.spans
    used, name = np.unique(spans.name, return_inverse=True)
    texts = [text or "(unnamed)" for text in trace.texts(used)]
    own = np.array([text == OWN_WINDOW for text in texts], bool)
    row = np.flatnonzero(~own[name])
    tracks, track = _threads(analysis.attribution, spans.thread[row], TrackKind.SPANS)
    start, end = spans.start[row], spans.end[row]
    return _Part(
        tracks,
        track,
        start,
        np.maximum(np.where(end == OPEN, trace.end_ns, end), start),
        name[row],
        texts,
        np.full(len(row), NO_ROW),
        np.zeros(len(row), np.int8),
        row,
    )


def _calls(analysis: Analysis) -> _Part:
    made = analysis.attribution
    calls = made.trace.calls
    tracks, track = _threads(made, calls.thread, TrackKind.CALLS)
    roles = call_roles(made.trace)
    color = np.full(len(calls), CallColor.OTHER, np.int8)
    color[np.isin(roles, LAUNCH_CALLS)] = CallColor.LAUNCH
    color[np.isin(roles, ALLOCATIONS)] = CallColor.ALLOCATION
    if analysis.waits is not None:
        color[analysis.waits.calls.call] = CallColor.SYNC
    used, name = distinct(calls.name.astype(np.int64))
    return _Part(
        tracks,
        track,
        calls.start,
        np.maximum(calls.end, calls.start),
        name,
        [text or "call" for text in made.trace.texts(used)],
        made.open.at(calls.thread, calls.start),
        color,
        np.arange(len(calls)),
    )


def _ops(analysis: Analysis) -> _Part:
    made, trace = analysis.attribution, analysis.attribution.trace
    ops = trace.ops
    row = np.flatnonzero(made.valid)
    tracks, track = _streams(trace, row)
    pair, name = distinct(
        ops.name[row].astype(np.int64) << 32 | (ops.short_name[row].astype(np.int64) + 1)
    )
    full, short = (trace.texts(column) for column in (pair >> 32, (pair & 0xFFFFFFFF) - 1))
    return _Part(
        tracks,
        track,
        ops.start[row],
        ops.end[row],
        name,
        [_op_name(f or "", s or "") for f, s in zip(full, short, strict=True)],
        made.owner[row],
        _families(analysis)[row],
        row,
    )


def _op_name(full: str, short: str) -> str:
    return short_kernel_name(full, short) or short or full or "op"


def _streams(trace: Trace, rows: Column) -> tuple[list[Track], Column]:
    """The tracks of streams, and the number of the track per given op."""
    ops = trace.ops
    _, stream = distinct(ops.stream[rows])
    _, place = distinct(ops.process[rows].astype(np.int64) << 32 | ops.device[rows] + 1)
    _, code = distinct(place.astype(np.int64) << 32 | stream)
    _, first, count = np.unique(code, return_index=True, return_counts=True)
    tracks = []
    for n, row in enumerate(rows[first].tolist()):
        where = int(ops.process[row]), int(ops.device[row]), int(ops.stream[row])
        tracks.append(Track(TrackKind.STREAM, *where, f"stream {where[2]}", int(count[n])))
    return tracks, code


def _families(analysis: Analysis) -> Column:
    """The family of each op, as the kernels' table has it."""
    ops = analysis.attribution.trace.ops
    whole = {
        OpKind.MEMCPY: Family.MEMCPY,
        OpKind.MEMSET: Family.MEMSET,
        OpKind.GRAPH: Family.GRAPH,
    }
    out = np.full(len(ops), Family.CUSTOM, np.int8)
    for kind, family in whole.items():
        out[ops.kind == kind] = family
    if analysis.traits is None or not len(analysis.kernels):
        return out
    order = np.argsort(analysis.kernels.name)
    known = analysis.kernels.name[order]
    at = np.minimum(np.searchsorted(known, ops.name), len(known) - 1)
    found = (ops.kind == OpKind.KERNEL) & (known[at] == ops.name)
    out[found] = analysis.traits.family[order[at[found]]]
    return out


def _idle(waits: Waits) -> _Part:
    found = waits.idle_stretches()
    devices, track, count = np.unique(found.device, return_inverse=True, return_counts=True)
    tracks = [
        Track(TrackKind.IDLE, NO_ROW, device, 0, "idle by cause", int(count[n]))
        for n, device in enumerate(devices.tolist())
    ]
    return _Part(
        tracks,
        track,
        found.start,
        found.end,
        found.cause.astype(np.int64),
        [cause.label for cause in Cause],
        np.full(len(found), NO_ROW),
        found.cause,
        found.op,
    )


def _launching_slices(analysis: Analysis, tracks: list[Track], found: Slices) -> Column:
    """The slice of the call that launched each op; -1 for what no shown call launched."""
    kind = np.array([track.kind for track in tracks], np.int8)[found.track]
    slice_of = np.full(len(analysis.attribution.trace.calls) + 1, NO_ROW)  # the last: no call
    calls = np.flatnonzero(kind == TrackKind.CALLS)
    slice_of[found.row[calls]] = calls
    out = np.full(len(found), NO_ROW)
    ops = np.flatnonzero(kind == TrackKind.STREAM)
    out[ops] = slice_of[analysis.attribution.call[found.row[ops]]]
    return out
