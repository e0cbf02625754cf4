"""Counters over time: GPU metrics, and memory in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.kernels.counters import HIGHEST_MHZ
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.intervals import slices, sorted_by
from nvprobe.trace import Column

Series = tuple[str, int | None, str, Column, Column]
"""Title, physical number of the GPU, unit, times and values; a value holds up to the next time."""


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
        # A sample is the mean since the sample before it; the last one holds for no time.
        value = table.value[np.append(row[1:], row[-1])]
        if "MHz" in unit and value.max() > HIGHEST_MHZ:
            value = value / 1e6  # named MHz, recorded in Hz (nsys 2025.3)
        yield title, device, unit.rstrip("]"), table.time[row], value
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
