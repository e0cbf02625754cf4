"""The timeline as a file for ui.perfetto.dev: gzip of Chrome's JSON trace format.

Slices of one track of Perfetto must lie inside one another or side by side. The ranges of a thread
mostly do; those that cross go to tracks of their own, as do ops that overlap on a stream. Times are
µs with three decimals since the first slice: exact to the nanosecond for 104 days.

Why JSON: the protobuf classes that the ``perfetto`` package keeps would be one more dependency and
make a Python object per slice; these lines are joined from texts that are made once per name.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.intervals import runs
from nvprobe.report.cells import visible
from nvprobe.report.series import series
from nvprobe.report.timeline import Timeline, Track, TrackKind, timeline
from nvprobe.trace import NO_ROW, Column, Trace

_DEVICES = 1 << 20
"""Added to the row of a device: Perfetto's process ids are those of processes and of devices."""
_BATCH = 10_000
_CATEGORIES = {
    TrackKind.RANGES: "range",
    TrackKind.SPANS: "span",
    TrackKind.CALLS: "cuda call",
    TrackKind.STREAM: "gpu",
    TrackKind.IDLE: "gpu idle",
}


def write_perfetto(analysis: Analysis, path: Path) -> None:
    """Write ranges, calls, streams, idle causes and counters, and launches as flows."""
    found = timeline(analysis)
    first = int(found.slices.start.min()) if len(found.slices) else 0
    tracks, of_slice = _tracks(found)
    where = [f'"pid":{_process(track)},"tid":{number}' for number, (track, _) in enumerate(tracks)]
    lines = itertools.chain(
        _descriptions(analysis.attribution.trace, tracks),
        _slices(analysis, found, where, of_slice, first),
        _flows(found, where, of_slice, first),
        _counters(analysis, first),
    )
    with gzip.open(path, "wt", compresslevel=5, encoding="ascii", newline="\n") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        file.write(next(lines, ""))
        while some := list(itertools.islice(lines, _BATCH)):
            file.write(",\n" + ",\n".join(some))
        file.write("\n]}\n")


def _process(track: Track) -> int:
    return (
        track.process + 1 if track.process >= 0 and track.kind.on_host else _DEVICES + track.device
    )


def _tracks(found: Timeline) -> tuple[list[tuple[Track, int]], Column]:
    """Perfetto's tracks, as a track and one of its lanes; and the number of that of each slice.

    Lane 0 of ranges holds all that nest in it.
    """
    slices = found.slices
    kind = np.array([track.kind for track in found.tracks], np.int8)[slices.track]
    lane = slices.lane.astype(np.int64)
    lane[(kind == TrackKind.RANGES) & _nested(found)] = 0
    key = slices.track.astype(np.int64) << 32 | lane
    used, of_slice = np.unique(key, return_inverse=True)
    tracks = [(found.tracks[one >> 32], one & 0xFFFFFFFF) for one in used.tolist()]
    return tracks, of_slice


def _nested(found: Timeline) -> Column:
    """Bool per slice: it lies inside one of the lane above, and that one too, up to lane 0."""
    slices = found.slices
    out = slices.lane == 0
    heads = runs(slices.track.astype(np.int64) << 32 | slices.lane)
    tails = np.append(heads[1:], len(slices))
    for row in range(1, len(heads)):
        above, here = slice(heads[row - 1], tails[row - 1]), slice(heads[row], tails[row])
        if slices.lane[here.start] == 0:
            continue
        parent = np.searchsorted(slices.start[above], slices.start[here], "right") - 1
        known = np.maximum(parent, 0)
        inside = slices.end[above][known] >= slices.end[here]
        out[here] = (parent >= 0) & inside & out[above][known]
    return out


def _descriptions(trace: Trace, tracks: list[tuple[Track, int]]) -> Iterator[str]:
    """Names and order of processes, devices and tracks."""
    named = set()
    for number, (track, lane) in enumerate(tracks):
        process = _process(track)
        if process not in named:
            named.add(process)
            yield _description("process_name", process, name=_place(trace, track))
            yield _description("process_sort_index", process, sort_index=len(named))
        yield _description("thread_name", process, number, name=_title(track, lane))
        yield _description("thread_sort_index", process, number, sort_index=number)


def _description(what: str, process: int, track: int = 0, **arguments: str | int) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": process, "tid": track, "args": arguments})


def _place(trace: Trace, track: Track) -> str:
    if not track.kind.on_host:
        known = 0 <= track.device < len(trace.devices)
        name = trace.text(int(trace.devices.name[track.device])) if known else None
        number = int(trace.devices.id[track.device]) if known else "?"
        return visible(f"GPU {number}" + (f" {name}" if name else ""))
    name = trace.text(int(trace.processes.name[track.process]))
    return visible(f"{name or 'process'}, pid {int(trace.processes.pid[track.process])}")


def _title(track: Track, lane: int) -> str:
    title = f"{track.title} {track.number}" if track.kind.on_host else track.title
    title += {TrackKind.CALLS: ": CUDA calls", TrackKind.SPANS: ": spans"}.get(track.kind, "")
    return visible(title + (f" ({lane + 1})" if lane else ""))


def _slices(
    analysis: Analysis, found: Timeline, where: list[str], of_slice: Column, first: int
) -> Iterator[str]:
    slices, paths = found.slices, analysis.attribution.paths.texts()
    names = [f'"name":{json.dumps(visible(name))}' for name in found.names]
    inside = [f',"args":{{"path":{json.dumps(visible(path))}}}' for path in paths]
    inside.append("")  # of no path
    kinds = [f',"cat":"{_CATEGORIES[track.kind]}"' for track in found.tracks]
    columns = (of_slice, slices.track, slices.start - first, slices.end - slices.start)
    rows = zip(*(c.tolist() for c in (*columns, slices.name, slices.path)), strict=True)
    for place, track, start, length, name, path in rows:
        yield (
            f'{{"ph":"X",{where[place]},"ts":{_us(start)},"dur":{_us(length)},'
            f"{names[name]}{kinds[track]}{inside[path]}}}"
        )


def _flows(found: Timeline, where: list[str], of_slice: Column, first: int) -> Iterator[str]:
    """From the begin of each call to the begin of what it launched."""
    ops = np.flatnonzero(found.call != NO_ROW)
    calls, start = found.call[ops], found.slices.start - first
    columns = (of_slice[calls], start[calls], of_slice[ops], start[ops])
    for number, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        call, called, op, began = row
        about = f'"name":"launch","cat":"launch","id":{number}'
        yield f'{{"ph":"s",{where[call]},"ts":{_us(called)},{about}}}'
        yield f'{{"ph":"f","bp":"e",{where[op]},"ts":{_us(began)},{about}}}'


def _counters(analysis: Analysis, first: int) -> Iterator[str]:
    ids = analysis.attribution.trace.devices.id.tolist()
    for title, device, unit, time, value in series(analysis):
        process = _DEVICES + (ids.index(device) if device in ids else NO_ROW)
        name = json.dumps(visible(f"{title} [{unit}]" if unit else title))
        for at, amount in zip((time - first).tolist(), value.tolist(), strict=True):
            if at >= 0 and np.isfinite(amount):
                yield (
                    f'{{"ph":"C","pid":{process},"tid":0,"ts":{_us(at)},"name":{name},'
                    f'"args":{{"value":{amount}}}}}'
                )


def _us(ns: int) -> str:
    """ns as µs, every digit of them."""
    return f"{ns // 1000}.{ns % 1000:03d}"
