"""The verdict of a run: one line, never stronger than the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.model import DeviceUse, PathQuantities
from nvprobe.attribution.model import Attribution, Kind, PathTable, shown_path

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
        filtered = attribution.outside is not None and attribution.outside.ops > 0
        return (
            "unclear: no GPU work lies inside the filters"
            if filtered
            else "unclear: the capture has no GPU records"
        )
    if doubts.suspect_ns > _DOUBTFUL_SHARE * total:
        share = doubts.suspect_ns / total
        return f"unclear: {share:.0%} of GPU time is of ops whose recorded end cannot be right"
    window, busy = int(devices.window_ns.sum()), int(devices.busy_ns.sum())
    least = "at least " if doubts.lost_launches else ""
    use = f"{bound}: GPU busy {least}{busy / window:.0%} of {duration(window)}"
    if len(devices) > 1:
        use += f" over {len(devices)} GPUs"
    use += f"; {step}" if step else ""
    place = _place(total, ranges, attribution.paths)
    return f"{use}; {place}" if place else use


def _place(total: int, ranges: PathQuantities, paths: PathTable) -> str | None:
    """The deepest range of the program (no operator, no library) with most of the GPU time."""
    program = ~np.isin(paths.kind, (Kind.OPERATOR, Kind.LIBRARY))
    large = np.flatnonzero((ranges.gpu_ns >= _LARGEST_SHARE * total) & program)
    if not len(large):
        return None
    best = large[np.lexsort((ranges.gpu_ns[large], paths.depth[large]))[-1]]
    where = short_path(paths.text(int(best)))
    return f"{int(ranges.gpu_ns[best]) / total:.0%} of GPU time in {where}"
