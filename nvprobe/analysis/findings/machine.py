"""Findings about the GPU itself: a clock below its greatest, other processes, empty SMs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import HARDLY, Evidence, Finding
from nvprobe.analysis.grouping import sums
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.attribution.intervals import union_length
from nvprobe.trace import OpKind

LOW_CLOCK = 0.8
"""Of the greatest clock; boost clocks vary by a few percent with load and temperature."""
MANY_SAMPLES = 100
SHARED = 0.05
"""Of the window, what another process has to be busy for."""
MOSTLY = 0.5


def low_clock(evidence: Evidence) -> Iterator[Finding]:
    """Sampled clocks: while busy the GPU runs well below its greatest clock.

    High end: all GPU time shorter by the ratio; what memory bounds hardly gains.
    """
    use = evidence.counters
    if use is None or use.samples < MANY_SAMPLES or evidence.busy_share < HARDLY:
        return
    known = ~np.isnan(use.kernels.clock_mhz) & (use.kernels.sampled_ns > 0)
    greatest = int(evidence.trace.devices.clock_hz.max(initial=-1)) / 1e6
    if not known.any() or greatest <= 0:
        return
    weights = use.kernels.sampled_ns[known]
    clock = float(np.average(use.kernels.clock_mhz[known], weights=weights))
    if clock >= LOW_CLOCK * greatest:
        return
    yield Finding(
        id="low_clock",
        title=f"The GPU runs at {clock:,.0f} MHz while it is busy: {clock / greatest:.0%} of its "
        "greatest clock",
        path=-1,
        sources=(),
        evidence={
            "clock_mhz": round(clock, 1),
            "lowest_clock_mhz": round(use.lowest_clock_mhz, 1),
            "greatest_clock_mhz": round(greatest, 1),
            "samples": use.samples,
        },
        saves_ns=(0, int(evidence.busy_ns * (1 - clock / greatest))),
        advice=(
            "nvidia-smi -q -d PERFORMANCE,CLOCK names what holds it back: power, temperature, or "
            "clocks that are set",
            "nvidia-smi --reset-gpu-clocks where somebody locked them; cooling and the power limit "
            "otherwise",
        ),
    )


def shared_gpu(evidence: Evidence) -> Iterator[Finding]:
    """Kernels of several processes on one GPU: each waits for the others'.

    High end: the time for which the others are busy.
    """
    ops, trace = evidence.ops, evidence.trace
    kernels = np.flatnonzero((ops.kind == OpKind.KERNEL) & evidence.trusted)
    for row in range(len(trace.devices)):
        mine = kernels[ops.device[kernels] == row]
        processes, code = np.unique(ops.process[mine], return_inverse=True)
        if len(processes) < 2:
            continue
        busy = union_length(code, ops.start[mine], ops.end[mine], len(processes))
        window = int(ops.end[mine].max() - ops.start[mine].min())
        leading = int(np.argmax(busy))
        others = int(busy.sum() - busy[leading])
        if others < SHARED * window:
            continue
        yield Finding(
            id="shared_gpu",
            title=f"{len(processes)} processes compute on GPU {int(trace.devices.id[row])}: the "
            f"others keep it busy for {others / window:.0%} of the window",
            path=-1,
            sources=(),
            evidence={
                "processes": len(processes),
                "leading_busy_ns": int(busy[leading]),
                "others_busy_ns": others,
            },
            saves_ns=(0, others),
            advice=(
                "a GPU for each process (CUDA_VISIBLE_DEVICES, LOCAL_RANK)",
                "where they have to share it, MPS lets their kernels run at the same time",
            ),
        )


def empty_processors(evidence: Evidence) -> Iterator[Finding]:
    """Most GPU time goes to kernels that leave half of the SMs without a block.

    A larger batch takes hardly longer then. That shortens no step, but what an example costs.
    """
    geometry = evidence.trace.geometry
    compute = evidence.trusted & (evidence.classes.activity == Activity.COMPUTE)
    rows = np.flatnonzero(compute[geometry.op]) if len(geometry) else np.empty(0, np.int64)
    sms = evidence.trace.devices.sm_count[evidence.ops.device[geometry.op[rows]]]
    if evidence.busy_share < MOSTLY or not len(rows) or sms.min() <= 0:
        return
    blocks = geometry.grid_x[rows].astype(np.int64) * geometry.grid_y[rows] * geometry.grid_z[rows]
    spent = evidence.attribution.duration[geometry.op[rows]]
    half = 2 * blocks <= sms
    share = int(spent[half].sum()) / max(int(spent.sum()), 1)
    names, place = np.unique(evidence.ops.name[geometry.op[rows[half]]], return_inverse=True)
    longest = sums(place, spent[half], len(names))
    if share < MOSTLY or longest.max() >= MOSTLY * int(spent.sum()):
        return  # of one kernel with half of the time `underfilled_kernel` speaks
    yield Finding(
        id="empty_processors",
        title=f"Kernels with {share:.0%} of the GPU time leave half of the SMs, or more, without "
        "work",
        path=-1,
        sources=(),
        evidence={
            "share_of_gpu_time": round(share, 4),
            "kernels": len(names),
            "median_blocks": int(np.median(blocks[half])),
            "sms": int(sms.max()),
        },
        saves_ns=(0, 0),
        advice=(
            "a larger batch: more examples in hardly more time",
            "independent parts on several streams, or batched into one product",
        ),
    )
