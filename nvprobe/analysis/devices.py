"""How long each physical device was busy and idle between its first and last op."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.grouping import counts, sums
from nvprobe.analysis.model import DeviceUse
from nvprobe.analysis.waiting.gaps import device_gaps, unrecorded
from nvprobe.analysis.waiting.order import device_order
from nvprobe.attribution.intervals import merged, union_length
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["device_use"]


def device_use(attribution: Attribution) -> DeviceUse:
    """Busy, idle and window of each device with ops; impossible times are left out.

    Of a selection the window is its own time: busy, or idle before one of its ops.
    """
    ops = attribution.trace.ops
    if not attribution.valid.any():
        return DeviceUse.empty()
    valid = attribution.valid
    device, start, end = ops.device[valid] + 1, ops.start[valid], ops.end[valid]
    size = int(device.max()) + 1
    number = counts(device, size)
    first = np.full(size, np.iinfo(np.int64).max)
    last = np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(first, device, start)
    np.maximum.at(last, device, end)
    used = np.flatnonzero(number)
    busy = union_length(device, start, end, size)[used]
    window = last[used] - first[used] - _unrecorded(attribution, device, start, end, size)[used]
    if attribution.unfiltered is not None:
        gaps = device_gaps(attribution, device_order(attribution))
        window = busy + sums(gaps.device + 1, gaps.length, size)[used]
    return DeviceUse(
        device=used - 1,
        ops=number[used],
        start=first[used],
        end=last[used],
        busy_ns=busy,
        idle_ns=window - busy,
        window_ns=window,
    )


def _unrecorded(
    attribution: Attribution, device: Column, start: Column, end: Column, size: int
) -> Column:
    """ns per device between works of which nobody can tell whether it idled."""
    if not attribution.trace.unrecorded:
        return np.zeros(size, np.int64)
    group, begin, finish = merged(device, start, end)
    before = np.flatnonzero(group[1:] == group[:-1])
    low, high = finish[before], begin[before + 1]
    apart = unrecorded(attribution.trace, low, high)
    return sums(group[before][apart], (high - low)[apart], size)
