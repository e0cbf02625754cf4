"""Counters over time: GPU metrics, and memory in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.intervals import slices, sorted_by
from nvprobe.trace import Column

Series = tuple[str, int | None, str, Column, Column]
"""Title, physical number of the GPU, unit, times and values; each value holds up to the next."""


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
