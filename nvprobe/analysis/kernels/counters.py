"""GPU counters averaged over exactly the time that each path, and each kernel, kept a GPU busy.

A sample's value is the mean of a metric over the interval since the sample before it. So a metric
is a step function of time, its integral is piecewise linear, and the average over a busy interval
is a difference of two values of that integral: samples count by the very nanoseconds they share
with the path's busy time. ``samples`` is how many shared any; few say little.

What bounds a path is read off its averages (``Bound``). The oracle is in
tests/unit/analysis/test_counters.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.intervals import merged
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, Table, column
from nvprobe.trace import Counters as Samples

METRICS: tuple[tuple[str, str], ...] = (
    ("sm_active", r"^SMs? Active\b([^\[]*|.*%.*)$"),
    ("sm_issue", r"^SM Issue\b([^\[]*|.*%.*)$"),
    ("tensor_active", r"^Tensor Active\b([^\[]*|.*%.*)$"),
    ("dram_read", r"^DRAM Read\b([^\[]*|.*%.*)$"),
    ("dram_write", r"^DRAM Write\b([^\[]*|.*%.*)$"),
    ("pcie_rx", r"^PCIe (RX|Read)\b([^\[]*|.*%.*)$"),
    ("pcie_tx", r"^PCIe (TX|Write)\b([^\[]*|.*%.*)$"),
    ("clock_mhz", r"^GPC Clock\b([^\[]*|.*MHz.*)$"),
)
"""(column, pattern of the recorded name); percentages of the device's peak, whether the name says
so or, before 2023, has no unit."""
FEW_SAMPLES = 3
HIGHEST_MHZ = 100_000.0
TENSOR, DRAM, ISSUE, IDLE = 40.0, 60.0, 60.0, 20.0
"""Averages in percent from which (IDLE: below which) they bound a path."""


class Bound(IntEnum):
    """Roofline class: what the averages say a path is bound by."""

    UNKNOWN = -1
    """Too few samples, or the metrics needed were not sampled."""
    TENSOR = 0
    DRAM = 1
    LATENCY = 2
    """SMs are active, but neither memory nor tensor cores nor instructions are near their peak."""
    IDLE = 3
    """Most SMs have nothing to do even while the GPU is busy."""
    ISSUE = 4
    """Instructions are issued as fast as they can be: arithmetic off the tensor cores."""


@dataclass(frozen=True, slots=True)
class Averages(Table):
    """One row per path, or per kernel name; NaN where a metric was not sampled in its busy time."""

    key: Column = column("i8")
    """Row of the paths, or the kernel's name (row of the trace's strings)."""
    samples: Column = column("i8")
    sampled_ns: Column = column("i8")
    """Busy time that samples cover."""
    sm_active: Column = column("f8")
    sm_issue: Column = column("f8")
    tensor_active: Column = column("f8")
    dram_read: Column = column("f8")
    dram_write: Column = column("f8")
    pcie_rx: Column = column("f8")
    pcie_tx: Column = column("f8")
    clock_mhz: Column = column("f8")
    bound: Column = column("i1")
    """:class:`Bound`."""


@dataclass(frozen=True, slots=True)
class CounterUse:
    """Counters of a capture."""

    paths: Averages
    kernels: Averages
    samples: int
    """Instants sampled, over all devices."""
    period_ns: int
    """Median distance of samples."""
    lowest_clock_mhz: float
    """Lowest sampled clock while busy, NaN where clocks were not sampled."""
    highest_clock_mhz: float


@dataclass(frozen=True, slots=True)
class _Series:
    """Samples of one device: instants and, per metric, its integral up to each of them."""

    time: Column
    integral: dict[str, Column]
    value: dict[str, Column]


def counter_use(attribution: Attribution) -> CounterUse | None:
    """Average every metric; None where nothing was sampled."""
    samples, ops = attribution.trace.counters, attribution.trace.ops
    if not len(samples):
        return None
    series = _series(attribution, samples)
    if not series:
        return None
    rows = np.flatnonzero(attribution.valid & (ops.device >= 0))
    per_path = _path_intervals(attribution, rows[attribution.owner[rows] >= 0])
    name = ops.name[rows].astype(np.int64)
    by_name = [_busy(attribution, name, ops.device[rows], ops.start[rows], ops.end[rows])]
    clocks = [_clocks(one, attribution, device) for device, one in series.items()]
    distances = np.concatenate([np.diff(one.time) for one in series.values()])
    return CounterUse(
        paths=_averages(per_path, series),
        kernels=_averages(by_name, series),
        samples=sum(len(one.time) for one in series.values()),
        period_ns=int(np.median(distances)),
        lowest_clock_mhz=min(low for low, _ in clocks),
        highest_clock_mhz=max(high for _, high in clocks),
    )


def _series(attribution: Attribution, samples: Samples) -> dict[int, _Series]:
    """By device: integrals of the metrics that ``METRICS`` names."""
    names, code = np.unique(samples.metric, return_inverse=True)
    texts = attribution.trace.strings.take(pa.array(names, mask=names < 0))
    out = {}
    for device in np.unique(samples.device).tolist():
        here = samples.device == device
        time = np.unique(samples.time[here])
        integral, value = {}, {}
        for metric, pattern in METRICS:
            hit = np.flatnonzero(
                pc.match_substring_regex(texts, pattern).fill_null(False).to_numpy(False)
            )
            rows = np.flatnonzero(here & np.isin(code, hit[:1]))
            if len(rows) < 2:
                continue
            level = np.zeros(len(time))
            level[np.searchsorted(time, samples.time[rows])] = samples.value[rows]
            if metric == "clock_mhz" and level.max() > HIGHEST_MHZ:
                level = level / 1e6  # named MHz, recorded in Hz (nsys 2025.3)
            steps = level[1:] * np.diff(time)
            integral[metric] = np.concatenate(([0.0], np.cumsum(steps)))
            value[metric] = level
        if len(time) >= 2:
            out[int(device)] = _Series(time, integral, value)
    return out


Busy = tuple[Column, Column, Column, Column]
"""(key, device, start, end) of disjoint busy intervals, sorted by key and device, then start."""


def _busy(
    attribution: Attribution, key: Column, device: Column, start: Column, end: Column
) -> Busy:
    """The union per key and device."""
    devices = len(attribution.trace.devices) + 1
    group, first, last = merged(key.astype(np.int64) * devices + device, start, end)
    return group // devices, group % devices, first, last


def _path_intervals(attribution: Attribution, rows: Column) -> list[Busy]:
    """Busy intervals of every path, inclusive, one level of the tree after the other."""
    ops, paths = attribution.trace.ops, attribution.paths
    owner, depth = attribution.owner[rows], paths.depth[attribution.owner[rows]]
    nothing = np.empty(0, np.int64)
    below: Busy = (nothing, nothing, nothing, nothing)
    out = []
    for level in range(len(paths.levels()) - 1, -1, -1):
        here = rows[depth == level]
        below = _busy(
            attribution,
            np.concatenate((paths.parent[below[0]], owner[depth == level])),
            np.concatenate((below[1], ops.device[here])),
            np.concatenate((below[2], ops.start[here])),
            np.concatenate((below[3], ops.end[here])),
        )
        out.append(below)
    return out


def _averages(parts: list[Busy], series: dict[int, _Series]) -> Averages:
    """Sum integrals over the busy intervals of each key; keys without samples are left out."""
    nothing = np.empty(0, np.int64)  # no ranges at all: no paths
    keys = np.unique(np.concatenate([nothing, *(part[0] for part in parts)]))
    sums = {metric: np.zeros(len(keys)) for metric, _ in METRICS}
    covered = {metric: np.zeros(len(keys)) for metric, _ in METRICS}
    length, count = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for key, device, start, end in parts:
        for which, one in series.items():
            mine = np.flatnonzero((device == which) & (start < one.time[-1]) & (end > one.time[0]))
            at = np.searchsorted(keys, key[mine])
            low = np.maximum(start[mine], one.time[0])
            high = np.minimum(end[mine], one.time[-1])
            np.add.at(length, at, high - low)
            np.add.at(count, at, _samples_touched(one.time, at, low, high))
            for metric, integral in one.integral.items():
                between = np.interp(high, one.time, integral) - np.interp(low, one.time, integral)
                np.add.at(sums[metric], at, between)
                np.add.at(covered[metric], at, high - low)
    rows = np.flatnonzero(length > 0)
    means = {
        metric: np.where(covered[metric] > 0, sums[metric] / np.maximum(covered[metric], 1), np.nan)
        for metric in sums
    }
    chosen = {metric: values[rows] for metric, values in means.items()}
    return Averages(
        key=keys[rows],
        samples=count[rows],
        sampled_ns=length[rows],
        bound=_bounds(chosen, count[rows]),
        **chosen,
    )


def _samples_touched(time: Column, key: Column, low: Column, high: Column) -> Column:
    """Samples that each interval shares time with and the interval before it (same key) has not.

    Sample i covers ``time[i - 1] … time[i]``.
    """
    first = np.searchsorted(time, low, side="right")
    last = np.searchsorted(time, high, side="left")
    count = last - first + 1
    again = (key[1:] == key[:-1]) & (first[1:] == last[:-1])
    count[1:] -= again
    return count


def _bounds(means: dict[str, Column], samples: Column) -> Column:
    """Roofline class of each row."""
    dram = means["dram_read"] + means["dram_write"]
    out = np.full(len(samples), Bound.LATENCY, np.int8)
    out[means["sm_active"] < IDLE] = Bound.IDLE
    out[means["sm_issue"] >= ISSUE] = Bound.ISSUE
    out[dram >= DRAM] = Bound.DRAM
    out[means["tensor_active"] >= np.where(dram >= DRAM, dram, TENSOR)] = Bound.TENSOR
    known = ~np.isnan(dram) & ~np.isnan(means["tensor_active"]) & ~np.isnan(means["sm_active"])
    out[~known | (samples < FEW_SAMPLES)] = Bound.UNKNOWN
    return out


def _clocks(one: _Series, attribution: Attribution, device: int) -> tuple[float, float]:
    """Lowest and highest clock of samples that lie wholly in busy time."""
    ops = attribution.trace.ops
    if "clock_mhz" not in one.value:
        return np.nan, np.nan
    rows = np.flatnonzero(attribution.valid & (ops.device == device))
    _, start, end = merged(np.zeros(len(rows), np.int64), ops.start[rows], ops.end[rows])
    at = np.searchsorted(start, one.time[:-1], side="right") - 1
    inside = (at >= 0) & (one.time[1:] <= end[np.maximum(at, 0)]) if len(end) else at > at
    values = one.value["clock_mhz"][1:][inside]
    return (float(values.min()), float(values.max())) if len(values) else (np.nan, np.nan)
