"""Idle time by line: the line that was running, else where the innermost range began.

What a line is stands beside it (`nvprobe.analysis.code_places`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.code_places import CodePlaces, Line, running_line
from nvprobe.analysis.waiting.gaps import IdleTime, by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.idle import SAMPLED_CAUSES, SampledIdle
from nvprobe.analysis.waiting.syncs import Syncs
from nvprobe.trace import Column


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
