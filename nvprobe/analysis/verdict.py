"""The verdict of a run: one line, never stronger than the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.model import UNKNOWN, DeviceUse, PathQuantities
from nvprobe.attribution.model import Attribution, Kind, PathTable, shown_path
from nvprobe.trace import Column

_LARGEST_SHARE = 0.4
"""A path is named as the place where GPU time goes from this share of it on."""
_DOUBTFUL_SHARE = 0.1
"""From this share of GPU time with impossible ends on, no figure of time is repeated."""
_LONGEST_PATH = 60
_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))


@dataclass(frozen=True, slots=True)
class Doubts:
    """What stands against believing the figures."""

    lost_launches: int
    suspect_ns: int


def duration(ns: int) -> str:
    """A duration with three significant digits: ``17.8 ms``."""
    for unit, size in _UNITS:
        value = ns / size
        if abs(value) >= 0.9995:  # what rounds to 1,000 of a unit is 1 of the next
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:,.{digits}f} {unit}"
    return f"{ns} ns"


def short_path(text: str, longest: int = _LONGEST_PATH) -> str:
    """A path as one reads it: a long one loses names from its middle, then the end of its last.

    ``step/…/fwd:attention`` still says where it is; a name cut in front says nothing.
    """
    text = shown_path(text)
    if len(text) <= longest:
        return text
    first, *rest = text.split("/")
    if len(first) > longest // 6:
        lead = "…/" if rest else ""
    else:
        lead = f"{first}/…/" if len(rest) > 1 else f"{first}/"
    for begin in range(len(rest)):
        short = lead + "/".join(rest[begin:])
        if len(short) <= longest:
            return short
    return (lead + (rest or [first])[-1])[: longest - 1] + "…"


def verdict(
    attribution: Attribution,
    devices: DeviceUse,
    ranges: PathQuantities,
    doubts: Doubts,
    bound: str,
    step: str = "",
) -> str:
    """What bounds the run and where the GPU time goes, in one sentence."""
    total = int(attribution.duration.sum())
    if not len(devices) or not total:
        return _without_gpu(attribution, ranges, doubts)
    if doubts.suspect_ns > _DOUBTFUL_SHARE * total:
        share = doubts.suspect_ns / total
        return f"unclear: {share:.0%} of GPU time is of ops whose recorded end cannot be right"
    window, busy = int(devices.window_ns.sum()), int(devices.busy_ns.sum())
    least = "at least " if doubts.lost_launches else ""
    use = f"{bound}: GPU busy {least}{busy / window:.0%} of {duration(window)}"
    if len(devices) > 1:
        use += f" over {len(devices)} GPUs"
    use += f"; {step}" if step else ""
    place = _place(total, ranges.gpu_ns, attribution.paths)
    return f"{use}; {place[0]} of GPU time in {place[1]}" if place else use


def _without_gpu(attribution: Attribution, ranges: PathQuantities, doubts: Doubts) -> str:
    """What there is to say without GPU work: why there is none, else where the host's time goes."""
    outside, profiling = attribution.outside, attribution.trace.profiling
    if outside is not None and outside.ops:
        return f"unclear: no GPU work lies inside the filters{_elsewhere(attribution)}"
    failure = None if profiling is None else profiling.failure
    host = np.where(ranges.wall_ns == UNKNOWN, 0, ranges.wall_ns)
    total = int(host[attribution.paths.parent < 0].sum())
    if failure and not total:
        return f"{failure}, before any GPU work was recorded"
    if doubts.lost_launches or not total:
        return "unclear: the capture has no GPU records"
    place = _place(total, host, attribution.paths)
    where = f"; {place[0]} of host time in {place[1]}" if place else ""
    return f"{failure or 'CPU only'}, no GPU work is recorded: {duration(total)} in ranges{where}"


def _elsewhere(attribution: Attribution) -> str:
    """When the GPU works, where a window of time misses it."""
    outside, ops = attribution.outside, attribution.whole.trace.ops
    if outside is None or not any(word.startswith("time ") for word in outside.filters):
        return ""
    begin, end = int(ops.start.min()), int(ops.end.max())
    return f"; the GPU works from {duration(begin)} to {duration(end)}"


def _place(total: int, ns: Column, paths: PathTable) -> tuple[str, str] | None:
    """(share, path) of the deepest range of the program with most of the time."""
    program = ~np.isin(paths.kind, (Kind.OPERATOR, Kind.LIBRARY))
    large = np.flatnonzero((ns >= _LARGEST_SHARE * total) & program)
    if not len(large):
        return None
    best = large[np.lexsort((ns[large], paths.depth[large]))[-1]]
    return f"{int(ns[best]) / total:.0%}", short_path(paths.text(int(best)))
