"""Counters over time as the page draws them: GPU metrics, and memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.intervals import slices, sorted_by
from nvprobe.trace import Column

_MOST_POINTS = 10_000
"""Points of one series; more are thinned to the mean of so many neighbors."""

Series = tuple[str, int | None, str, Column, Column]
"""Title, physical number of the GPU, unit, times and values; each value holds up to the next."""


def counter_series(
    analysis: Analysis, first: int
) -> tuple[dict[str, Column], list[dict[str, Any]]]:
    """Columns ``t0``, ``v0``, ``t1``, … and what they are; times are distances, from ``first``."""
    columns: dict[str, Column] = {}
    about = []
    for number, (title, device, unit, time, value) in enumerate(series(analysis)):
        time, value, each = _thinned(time, value)
        columns[f"t{number}"] = np.diff(time - first, prepend=0)
        columns[f"v{number}"] = value
        about.append({"title": title, "device": device, "unit": unit, "mean_of": each})
    return columns, about


def series(analysis: Analysis) -> Iterator[Series]:
    """Every metric of every GPU, then the memory in use as its allocation events say."""
    trace = analysis.attribution.trace
    table = trace.counters
    order = np.lexsort((table.time, table.metric, table.device))
    code = table.device[order].astype(np.int64) << 32 | table.metric[order]
    for low, high in slices(code):
        row = order[low:high]
        name = trace.text(int(table.metric[row[0]])) or "counter"
        title, _, unit = name.partition(" [")
        device = _device(analysis, int(table.device[row[0]]))
        yield title, device, unit.rstrip("]"), table.time[row], table.value[row]
    memory = trace.memory
    known = np.flatnonzero((memory.allocated >= 0) & (memory.device >= 0))
    known = known[sorted_by(memory.device[known], memory.time[known])]
    for low, high in slices(memory.device[known]):
        row = known[low:high]
        device = _device(analysis, int(memory.device[row[0]]))
        yield "memory allocated", device, "bytes", memory.time[row], memory.allocated[row]


def _device(analysis: Analysis, row: int) -> int | None:
    devices = analysis.attribution.trace.devices
    return int(devices.id[row]) if 0 <= row < len(devices) else None


def _thinned(time: Column, value: Column) -> tuple[Column, Column, int]:
    """Means of so many neighbors that `_MOST_POINTS` are not passed, and how many that are."""
    each = -(-len(time) // _MOST_POINTS)
    if each < 2:
        return time, value, 1
    heads = np.arange(0, len(time), each)
    size = np.diff(np.append(heads, len(time)))
    return time[heads], np.add.reduceat(value.astype(float), heads) / size, each
