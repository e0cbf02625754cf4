"""Numbers of steps from a sidecar (docs/sidecar.md): the ranges of torch.profiler carry none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from nvprobe.trace import NO_PAYLOAD, OPEN, Column, Ranges, Trace

__all__ = ["StepRows", "numbered"]

_STEP = "step"


@dataclasses.dataclass(frozen=True)
class StepRows:
    """The steps of one process: their numbers, and when they began and ended on the trace's clock.

    A step's range lies inside these times: they are taken before it opens and after it closes.
    """

    process: int
    index: Column
    start: Column
    end: Column


def numbered(trace: Trace, steps: Sequence[StepRows]) -> Ranges:
    """The ranges of a trace without payloads, those named ``step`` with their number as payload."""
    ranges = trace.ranges
    if ranges.payload is not None or not steps:
        return ranges
    names = [name for name in np.unique(ranges.name).tolist() if trace.text(name) == _STEP]
    named = np.isin(ranges.name, names) & (ranges.end != OPEN)
    payload = np.full(len(ranges), NO_PAYLOAD, np.int64)
    for one in steps:
        rows = np.flatnonzero(named & (ranges.process == one.process))
        middle = ranges.start[rows] + (ranges.end[rows] - ranges.start[rows]) // 2
        order = np.argsort(one.start, kind="stable")
        at = np.searchsorted(one.start[order], middle, side="right") - 1
        inside = (at >= 0) & (middle < one.end[order][at])
        payload[rows[inside]] = one.index[order][at[inside]]
    if (payload == NO_PAYLOAD).all():
        return ranges
    return dataclasses.replace(ranges, payload=payload)
