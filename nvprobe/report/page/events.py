"""The timeline of the page: which events it holds, and those as columns.

A capture with more events than a page holds keeps those of some steps: the median one, the slowest
one, then what lies around them. Of the rest the page knows how much each track was in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.intervals import Coverage, runs
from nvprobe.report.page.columns import EXACT, Packed, pack
from nvprobe.report.page.series import counter_series
from nvprobe.report.timeline import Slices, Timeline, Track, TrackKind, timeline
from nvprobe.trace import NO_ROW, Column

MOST_EVENTS = 350_000
"""Slices that a page holds one by one."""
_BINS = 1000
"""Parts of the capture for which it is known how much a track was in use."""

Windows = list[tuple[int, int]]
"""Disjoint stretches of time, [begin, end), in order."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the page draws over time."""

    about: dict[str, Any]
    """Tracks, rows, names, and where each column lies in ``packed``."""
    packed: Packed
    left_out: list[str]


def events(
    analysis: Analysis, ranges: Column, kernels: Column, most: int = MOST_EVENTS
) -> Events | None:
    """The events of an analysis; None without any, or where they reach over 104 days.

    ``ranges`` and ``kernels``: the page's row of each path (the last entry: of none), and of each
    kernel, behind which stand the copies.
    """
    whole = timeline(analysis)
    if not len(whole.slices):
        return None
    first, last = int(whole.slices.start.min()), int(whole.slices.end.max())
    if last - first >= EXACT:
        return None
    windows = chosen_windows(analysis, whole.slices, most)
    held = whole.take(_within(whole.slices, windows))
    rows, columns = _rows(held, first)
    points, counters = counter_series(analysis, first)
    columns |= points
    columns["path"] = ranges[held.slices.path]
    columns["kernel"] = kernels[_kernel_rows(analysis, held)]
    columns["use"] = _use(whole, first, last)
    packed = pack(columns)
    about = {
        "origin_ns": str(first),
        "length_ns": last - first,
        "windows": [[low - first, high - first] for low, high in windows],
        "tracks": [_track(analysis, track) for track in held.tracks],
        "rows": rows,
        "names": [name[:_LONGEST] for name in held.names],
        "colors": {kind.name.lower(): names for kind, names in held.colors.items()},
        "bins": _BINS,
        "counters": counters,
        "columns": packed.columns,
    }
    return Events(about, packed, _left_out(whole, held))


_LONGEST = 500
"""Characters of a name on the timeline."""


def chosen_windows(analysis: Analysis, slices: Slices, most: int) -> Windows:
    """Stretches with at most ``most`` slices: everything, else steps, else how far it gets.

    Steps are taken from the median one and the slowest one outward while they fit.
    """
    start, last = np.sort(slices.start), int(slices.end.max()) + 1
    if len(start) <= most:
        return [(int(start[0]), last)]
    begin, end = _stretches(analysis, int(start[0]), last)
    count = np.searchsorted(start, end) - np.searchsorted(start, begin)
    order = _by_interest(analysis, len(begin))
    fitting = order[: int(np.searchsorted(np.cumsum(count[order]), most, "right"))]
    if not len(fitting):
        low = int(begin[order[0]])
        return [(low, int(start[int(np.searchsorted(start, low)) + most]))]
    kept = np.sort(fitting)
    heads = runs(kept - np.arange(len(kept)))  # neighbors become one window
    tails = np.append(heads[1:], len(kept)) - 1
    return list(zip(begin[kept[heads]].tolist(), end[kept[tails]].tolist(), strict=True))


def _stretches(analysis: Analysis, first: int, last: int) -> tuple[Column, Column]:
    """(begin, end): each step with what follows up to the next one; without steps, everything."""
    begin = np.unique(analysis.steps.start)
    if not len(begin):
        return np.array([first]), np.array([last])
    return begin, np.append(begin[1:], last)


def _by_interest(analysis: Analysis, size: int) -> Column:
    """Stretches by distance from the step of median length, the slowest one second."""
    if not len(analysis.steps):
        return np.arange(size)
    starts = np.unique(analysis.steps.start)
    by_length = np.argsort(analysis.steps.wall_ns, kind="stable")
    of_interest = by_length[[len(by_length) // 2, -1]]
    median, slowest = np.searchsorted(starts, analysis.steps.start[of_interest])
    distance = np.abs(np.arange(size) - median) * 2
    distance[slowest] = min(int(distance[slowest]), 1)
    return np.argsort(distance, kind="stable")


def _within(slices: Slices, windows: Windows) -> Column:
    """Rows that reach into a window."""
    inside = np.zeros(len(slices), bool)
    for low, high in windows:
        inside |= (slices.start < high) & (slices.end >= low)
    return np.flatnonzero(inside)


def _rows(held: Timeline, first: int) -> tuple[list[list[int]], dict[str, Column]]:
    """(track, lane and first slice of each row; columns): starts are distances within a row."""
    slices = held.slices
    heads = runs(slices.track.astype(np.int64) << 32 | slices.lane)
    start = slices.start - first
    step = np.diff(start, prepend=0)
    step[heads] = start[heads]
    rows = [[int(slices.track[head]), int(slices.lane[head]), head] for head in heads.tolist()]
    return rows, {
        "start": step,
        "length": slices.end - slices.start,
        "name": slices.name,
        "color": slices.color,
        "call": held.call,
    }


def _kernel_rows(analysis: Analysis, held: Timeline) -> Column:
    """Row of the kernels (behind them: of the copies) per slice of an op, -1 for others."""
    ops, kernels, copies = analysis.attribution.trace.ops, analysis.kernels, analysis.copies
    key = np.concatenate((_key(kernels.name, kernels.kind), _key(copies.name, copies.kind)))
    out = np.full(len(held.slices), NO_ROW)
    kind = np.array([track.kind for track in held.tracks], np.int8)[held.slices.track]
    shown = np.flatnonzero(kind == TrackKind.STREAM)
    if not len(key) or not len(shown):
        return out
    row = held.slices.row[shown]
    wanted, order = _key(ops.name[row], ops.kind[row]), np.argsort(key)
    at = order[np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)]
    out[shown] = np.where(key[at] == wanted, at, NO_ROW)
    return out


def _key(name: Column, kind: Column) -> Column:
    return name.astype(np.int64) << 8 | kind


def _use(whole: Timeline, first: int, last: int) -> Column:
    """Per track and bin of the capture: how much of it slices cover, from 0 to 255."""
    slices, size = whole.slices, len(whole.tracks)
    outer = np.flatnonzero(slices.lane == 0)
    covered = Coverage.of(slices.track[outer], slices.start[outer], slices.end[outer], size)
    edge = first + (last - first) * np.arange(_BINS + 1) // _BINS
    until = covered.until(np.repeat(np.arange(size), len(edge)), np.tile(edge, size))
    share = np.diff(until.reshape(size, -1), axis=1) / np.maximum(np.diff(edge), 1)
    return np.ceil(share * 255).astype(np.uint8).ravel()


def _track(analysis: Analysis, track: Track) -> dict[str, Any]:
    trace = analysis.attribution.trace
    known = 0 <= track.device < len(trace.devices)
    return {
        "kind": track.kind.name.lower(),
        "title": track.title[:_LONGEST],
        "process": track.process,
        "pid": int(trace.processes.pid[track.process]) if track.process >= 0 else None,
        "device": int(trace.devices.id[track.device]) if known else None,
        "number": track.number,
        "role": track.role.name.lower(),
    }


def _left_out(whole: Timeline, held: Timeline) -> list[str]:
    if len(held.slices) == len(whole.slices):
        return []
    return [
        f"Timeline: {len(held.slices):,} of {len(whole.slices):,} events one by one. Elsewhere it "
        "shows how much each track was in use; nvprobe analyze --steps FIRST:LAST -o report.html "
        "makes a page of other steps."
    ]
