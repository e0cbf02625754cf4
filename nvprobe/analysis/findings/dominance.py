"""One kernel that takes most of the GPU time: how it fits, and what counters say of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import HARDLY, Evidence, Finding, Value
from nvprobe.analysis.findings.sources import common_path
from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.kernels.counters import METRICS, Bound
from nvprobe.trace import Column, OpKind

DOMINATES = 0.5
MOST_SMS = 0.5
MANY_SAMPLES = 10
FEW_LAUNCHES = 3
"""A kernel launched less often is not part of a loop."""


def _dominant(evidence: Evidence) -> tuple[Column, float] | None:
    """(op rows of the kernel with most time, its share), if it takes at least half of all time.

    Kernels that compute: a collective waits for others, whatever its grid is. None where the GPU
    hardly works at all.
    """
    if evidence.busy_share < HARDLY:
        return None
    duration = np.where(evidence.trusted, evidence.attribution.duration, 0)
    computes = evidence.classes.activity == Activity.COMPUTE
    kernels = np.flatnonzero((evidence.ops.kind == OpKind.KERNEL) & computes)
    names, place = distinct(evidence.ops.name[kernels].astype(np.int64))
    spent = sums(place, duration[kernels], len(names))
    total = int(duration.sum())
    if not len(spent) or not total or spent.max() < DOMINATES * total:
        return None
    best = int(np.argmax(spent))
    mine = kernels[place == best]
    return (mine, float(spent[best] / total)) if len(mine) >= FEW_LAUNCHES else None


def _place_of(evidence: Evidence, rows: Column) -> int:
    spent = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(spent, evidence.attribution.owner[rows], evidence.attribution.duration[rows])
    return common_path(evidence.attribution.paths, spent)


def underfilled_kernel(evidence: Evidence) -> Iterator[Finding]:
    """One kernel takes most of the GPU time, and most SMs get no block of it.

    High end: the share of those SMs. A kernel that gives each SM a block is not one, even
    if more would fit: only counters show what it could gain.
    """
    fit, geometry = evidence.fit, evidence.trace.geometry
    found = _dominant(evidence) if fit is not None else None
    if fit is None or found is None:
        return
    mine, share = found
    rows = np.flatnonzero(np.isin(geometry.op, mine) & ~np.isnan(fit.waves))
    weight = evidence.attribution.duration[geometry.op[rows]]
    blocks = geometry.grid_x[rows].astype(np.int64) * geometry.grid_y[rows] * geometry.grid_z[rows]
    sms = evidence.trace.devices.sm_count[evidence.ops.device[geometry.op[rows]]]
    empty = int((weight * np.maximum(1 - blocks / sms, 0)).sum())
    if not weight.sum() or empty < MOST_SMS * weight.sum():
        return
    yield Finding(
        id="kernel_underfills",
        ops=mine,
        title=f"One kernel takes {share:.0%} of GPU time and leaves "
        f"{empty / int(weight.sum()):.0%} of the GPU's SMs without work",
        path=_place_of(evidence, mine),
        sources=(),
        evidence={
            "kernel": evidence.kernel_name(int(mine[0])),
            "gpu_ns": int(weight.sum()),
            "blocks": round(float(np.average(blocks, weights=weight)), 1),
            "sms": int(sms.max()),
            "waves": round(float(np.average(fit.waves[rows], weights=weight)), 3),
            "occupancy": round(float(np.average(fit.occupancy[rows], weights=weight)), 3),
            "empty_sms": round(empty / int(weight.sum()), 3),
        },
        saves_ns=(0, empty),
        advice=(
            "give it more parallel work: a larger batch, split-K, or several streams",
            "profile this kernel with Nsight Compute",
        ),
    )


def latency_bound_kernel(evidence: Evidence) -> Iterator[Finding]:
    """Counters say that the kernel with most of the time is far from every limit of the GPU.

    High end: what remains to the nearest peak: memory, tensor cores or instructions. Without these
    counters, or with few samples, nothing is said.
    """
    use = evidence.counters
    found = _dominant(evidence) if use is not None else None
    if use is None or found is None:
        return
    mine, share = found
    row = np.flatnonzero(use.kernels.key == evidence.ops.name[mine[0]])
    if not len(row) or use.kernels.samples[row[0]] < MANY_SAMPLES:
        return
    means = {metric: float(getattr(use.kernels, metric)[row[0]]) for metric, _ in METRICS}
    nearest = max(
        means["dram_read"] + means["dram_write"], means["tensor_active"], means["sm_issue"]
    )
    low = use.kernels.bound[row[0]] in (Bound.LATENCY, Bound.IDLE)
    if not low or np.isnan(means["sm_issue"]):
        return
    spent = int(evidence.attribution.duration[mine].sum())
    facts: dict[str, Value] = {
        "kernel": evidence.kernel_name(int(mine[0])),
        "gpu_ns": spent,
        "samples": int(use.kernels.samples[row[0]]),
        **{m: None if np.isnan(value) else round(value, 1) for m, value in means.items()},
    }
    yield Finding(
        id="kernel_latency_bound",
        ops=mine,
        title=f"One kernel takes {share:.0%} of GPU time and is latency-bound: far from the "
        "memory, tensor-core and issue limits",
        path=_place_of(evidence, mine),
        sources=(),
        evidence=facts,
        saves_ns=(0, int(spent * (1 - min(nearest, 100.0) / 100))),
        advice=(
            "a fused or flash version of it, or another precision",
            "Nsight Compute shows which resource it waits for",
        ),
    )
