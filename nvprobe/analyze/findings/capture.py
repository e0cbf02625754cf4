"""Findings about memory limits and about the profiler itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analyze.findings.model import Evidence, Finding
from nvprobe.analyze.findings.places import named
from nvprobe.attribute.intervals import union_length

__all__ = ["memory_limit", "profiler_cost"]

NEAR = 0.9
COSTLY = 0.05


def memory_limit(evidence: Evidence) -> Iterator[Finding]:
    """The peak comes within a tenth of the device's memory. It saves no time, but a crash."""
    if evidence.memory is None or not evidence.memory.from_zero:
        return
    use = evidence.memory.devices
    level = np.maximum(use.peak_bytes, use.peak_reserved_bytes)
    for row in np.flatnonzero((use.capacity_bytes > 0) & (level >= NEAR * use.capacity_bytes)):
        path = int(use.peak_path[row])
        yield Finding(
            id="memory_near_limit",
            title=f"Memory peaks at {level[row] / use.capacity_bytes[row]:.0%} of the GPU's, in "
            f"{named(evidence.attribution.paths, path)}",
            path=path,
            sources=(),
            evidence={
                "peak_bytes": int(use.peak_bytes[row]),
                "reserved_bytes": int(use.peak_reserved_bytes[row]),
                "capacity_bytes": int(use.capacity_bytes[row]),
            },
            saves_ns=(0, 0),
            advice=(
                "torch.cuda.memory._dump_snapshot and nvprobe analyze --memory-snapshot show who "
                "holds it",
                "activation checkpointing where most of it is passing",
            ),
        )


def profiler_cost(evidence: Evidence) -> Iterator[Finding]:
    """The profiler's own work takes a notable part of the window."""
    overheads = evidence.trace.overheads
    if overheads is None or not len(overheads) or not len(evidence.devices):
        return
    begin, end = int(evidence.devices.start.min()), int(evidence.devices.end.max())
    start = np.clip(overheads.start, begin, end)
    stop = np.clip(overheads.end, begin, end)
    threads = len(evidence.trace.threads) + 1
    spent = int(union_length(overheads.thread + 1, start, stop, threads).max())
    if spent < COSTLY * (end - begin):
        return
    yield Finding(
        id="profiler_cost",
        title=f"The profiler itself takes {spent / (end - begin):.0%} of the window on a thread",
        path=-1,
        sources=(),
        evidence={"overhead_ns": spent, "records": len(overheads)},
        saves_ns=(0, 0),
        advice=(
            "a narrower window (nvprobe launch --steps 10:15)",
            "--graphs-whole instead of tracing every node of CUDA graphs",
        ),
    )
