"""One kernel that takes most of the GPU time: how it fits, and what counters say of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analyze.findings.model import Evidence, Finding, Value
from nvprobe.analyze.findings.places import common_path
from nvprobe.analyze.grouping import distinct, sums
from nvprobe.analyze.kernels.counters import METRICS, Bound
from nvprobe.trace import Column, OpKind

__all__ = ["latency_bound_kernel", "underfilled_kernel"]

DOMINATES = 0.5
SMALL_WAVE = 0.5
MANY_SAMPLES = 10


def _dominant(evidence: Evidence) -> tuple[Column, float] | None:
    """(op rows of the kernel with most time, its share), if it takes at least half of all time."""
    duration = np.where(evidence.trusted, evidence.attribution.duration, 0)
    kernels = np.flatnonzero(evidence.ops.kind == OpKind.KERNEL)
    names, place = distinct(evidence.ops.name[kernels].astype(np.int64))
    spent = sums(place, duration[kernels], len(names))
    total = int(duration.sum())
    if not len(spent) or not total or spent.max() < DOMINATES * total:
        return None
    best = int(np.argmax(spent))
    return kernels[place == best], float(spent[best] / total)


def _place_of(evidence: Evidence, rows: Column) -> int:
    spent = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(spent, evidence.attribution.owner[rows], evidence.attribution.duration[rows])
    return common_path(evidence.attribution.paths, spent)


def _kernel_name(evidence: Evidence, rows: Column) -> str:
    return evidence.trace.text(int(evidence.ops.short_name[rows[0]])) or "a kernel"


def underfilled_kernel(evidence: Evidence) -> Iterator[Finding]:
    """One kernel takes most of the GPU time and does not fill the GPU.

    High end: the share of block slots that its grid leaves empty. A kernel that fills the GPU is
    no finding here: what it could gain only counters can tell.
    """
    fit, geometry = evidence.fit, evidence.trace.geometry
    found = _dominant(evidence) if fit is not None and geometry is not None else None
    if fit is None or geometry is None or found is None:
        return
    mine, share = found
    rows = np.flatnonzero(np.isin(geometry.op, mine) & ~np.isnan(fit.waves))
    weight = evidence.attribution.duration[geometry.op[rows]]
    empty = int((weight * np.nan_to_num(fit.tail[rows])).sum())
    if not weight.sum() or empty < SMALL_WAVE * weight.sum():
        return
    yield Finding(
        id="kernel_underfills",
        ops=mine,
        title=f"One kernel takes {share:.0%} of GPU time and leaves most of the GPU empty",
        path=_place_of(evidence, mine),
        sources=(),
        evidence={
            "kernel": _kernel_name(evidence, mine),
            "gpu_ns": int(weight.sum()),
            "waves": round(float(np.average(fit.waves[rows], weights=weight)), 3),
            "occupancy": round(float(np.average(fit.occupancy[rows], weights=weight)), 3),
            "empty_slots": round(empty / int(weight.sum()), 3),
        },
        saves_ns=(0, empty),
        advice=(
            "give it more parallel work: a larger batch, split-K, or several streams",
            "profile this kernel with Nsight Compute",
        ),
    )


def latency_bound_kernel(evidence: Evidence) -> Iterator[Finding]:
    """Counters say that the kernel with most of the time is near no peak of the GPU.

    High end: what remains to the nearer of the two peaks, memory or tensor cores. Without counters,
    or with few samples, nothing is said.
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
    if use.kernels.bound[row[0]] not in (Bound.LATENCY, Bound.IDLE):
        return
    nearest = max(means["dram_read"] + means["dram_write"], means["tensor_active"])
    spent = int(evidence.attribution.duration[mine].sum())
    facts: dict[str, Value] = {
        "kernel": _kernel_name(evidence, mine),
        "gpu_ns": spent,
        "samples": int(use.kernels.samples[row[0]]),
        **{m: None if np.isnan(value) else round(value, 1) for m, value in means.items()},
    }
    yield Finding(
        id="kernel_latency_bound",
        ops=mine,
        title=f"One kernel takes {share:.0%} of GPU time and is near neither the memory's nor the "
        "tensor cores' peak",
        path=_place_of(evidence, mine),
        sources=(),
        evidence=facts,
        saves_ns=(0, int(spent * (1 - min(nearest, 100.0) / 100))),
        advice=(
            "a fused or flash version of it, or another precision",
            "Nsight Compute tells which resource it waits for",
        ),
    )
