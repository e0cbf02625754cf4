"""Findings about memory limits and about the profiler itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.allocator import same_process
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import named, times
from nvprobe.attribution.intervals import union_length
from nvprobe.trace import Trace

NEAR = 0.9
COSTLY = 0.05
GROWING_STEPS = 4
"""So many steady steps must grow, and all of them, before memory counts as leaking."""
MANY_STEPS = 100_000
"""A GPU that would be full after more steps than these is not filled by a leak."""
_SNAPSHOT = (
    "torch.cuda.memory._record_memory_history(), then _dump_snapshot(file): with it nvprobe "
    "analyze --memory-snapshot shows who holds memory, by line"
)


@dataclass(frozen=True, slots=True)
class _Level:
    """The fullest that one process made one GPU; -1 where it is not known."""

    path: int
    used: int
    """Bytes in tensors."""
    held: int
    """Bytes taken from the driver, a cache included."""
    capacity: int
    retries: int


def memory_limit(evidence: Evidence) -> Iterator[Finding]:
    """The peak comes within a tenth of the device's memory. It saves no time, but a crash.

    Events without a known begin only add to what was there before, so their peak is a lower bound.
    """
    levels = _of_counters(evidence)
    for key, level in _of_events(evidence).items():  # events know the path, counters the retries
        known = levels.get(key, level)
        used, held = max(level.used, known.used), max(level.held, known.held)
        levels[key] = _Level(level.path, used, held, level.capacity, known.retries)
    for level in levels.values():
        full = level.capacity > 0 and max(level.used, level.held) >= NEAR * level.capacity
        if full or level.retries > 0:
            yield _near_limit(evidence, level)


def _of_events(evidence: Evidence) -> dict[tuple[int, int], _Level]:
    if evidence.memory is None:
        return {}
    use = evidence.memory.devices
    of_torch = not evidence.memory.of_driver
    return {
        (process, device): _Level(
            path, peak if of_torch else -1, reserved if of_torch else peak, capacity, -1
        )
        for process, device, path, peak, reserved, capacity in zip(
            *(c.tolist() for c in (use.process, use.device, use.peak_path, use.peak_bytes,
                                   use.peak_reserved_bytes, use.capacity_bytes)),
            strict=True,
        )
    }  # fmt: skip


def _of_counters(evidence: Evidence) -> dict[tuple[int, int], _Level]:
    if evidence.allocator is None:
        return {}
    use = evidence.allocator.devices
    return {
        (process, device): _Level(-1, peak, reserved, capacity, retries)
        for process, device, peak, reserved, capacity, retries in zip(
            *(c.tolist() for c in (use.process, use.device, use.peak_bytes,
                                   use.peak_reserved_bytes, use.capacity_bytes, use.retries)),
            strict=True,
        )
    }  # fmt: skip


def _near_limit(evidence: Evidence, level: _Level) -> Finding:
    where = f", in {named(evidence.attribution.paths, level.path)}" if level.path >= 0 else ""
    most = max(level.used, level.held)
    if level.retries > 0:
        title = f"The GPU is full: torch gave its cache back {times(level.retries)} to go on"
    elif level.used >= NEAR * level.capacity:
        title = f"Memory in use peaks at {most / level.capacity:.0%} of the GPU's{where}"
    else:
        title = f"{most / level.capacity:.0%} of the GPU's memory is taken from the driver{where}"
    return Finding(
        id="memory_near_limit",
        title=title,
        path=level.path,
        sources=(),
        evidence={
            "peak_bytes": _known(level.used),
            "reserved_bytes": _known(level.held),
            "capacity_bytes": _known(level.capacity),
            "retries": _known(level.retries),
        },
        saves_ns=(0, 0),
        advice=(
            _SNAPSHOT,
            "activation checkpointing where most of it is passing",
        ),
    )


def memory_growth(evidence: Evidence) -> Iterator[Finding]:
    """Every steady step leaves more memory in use than the one before it."""
    if evidence.allocator is None:
        return
    devices, steps = evidence.allocator.devices, evidence.allocator.steps
    steps = steps.take(np.isin(steps.step, evidence.steady))
    for row, (process, device) in enumerate(zip(devices.process, devices.device, strict=True)):
        own = same_process(evidence.trace, process)[evidence.steps.process[steps.step]]
        here = own & (steps.device == device)
        growth, level = steps.growth_bytes[here], steps.allocated_bytes[here]
        if len(growth) < GROWING_STEPS or growth.min() <= 0:
            continue
        typical, capacity = int(np.median(growth)), int(devices.capacity_bytes[row])
        left = (capacity - int(level.max())) // typical if capacity > 0 else None
        if left is not None and left > MANY_STEPS:
            continue
        yield Finding(
            id="memory_growth",
            title=f"Memory in use grows in every step, by {typical / 1e6:,.3g} MB (median)"
            + ("" if left is None else f": the GPU is full after {left:,} more"),
            path=-1,
            sources=(),
            evidence={
                "steps": len(growth),
                "growth_bytes": typical,
                "allocated_bytes": int(level.max()),
                "steps_left": left,
            },
            saves_ns=(0, 0),
            advice=(
                "look for tensors that are kept from step to step: losses summed up without "
                ".item() or .detach(), lists, caches",
                _SNAPSHOT,
            ),
        )


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _traced_by_node(trace: Trace) -> bool:
    """Whether nsys recorded every node of CUDA graphs: run.json says it, else the nodes do.

    Nodes may stand in a capture of whole graphs too, taken from a second run.
    """
    if not any(source.kind.startswith("nsys") for source in trace.sources):
        return False
    recorded = None if trace.profiling is None else trace.profiling.graph_nodes
    return bool((trace.ops.graph_node > 0).any()) and recorded is not False


def profiler_cost(evidence: Evidence) -> Iterator[Finding]:
    """The profiler's own work takes a notable part of the window."""
    overheads = evidence.trace.overheads
    if not len(overheads) or not len(evidence.devices):
        return
    begin, end = int(evidence.devices.start.min()), int(evidence.devices.end.max())
    start = np.clip(overheads.start, begin, end)
    stop = np.clip(overheads.end, begin, end)
    threads = len(evidence.trace.threads) + 1
    spent = int(union_length(overheads.thread + 1, start, stop, threads).max())
    if spent < COSTLY * (end - begin):
        return
    by_node = _traced_by_node(evidence.trace)
    yield Finding(
        id="profiler_cost",
        title=f"The profiler itself takes {spent / (end - begin):.0%} of the window on a thread",
        path=-1,
        sources=(),
        evidence={"overhead_ns": spent, "records": len(overheads)},
        saves_ns=(0, 0),
        advice=(
            "a narrower window (nvprobe launch --steps 10:15)",
            *(("--graphs-whole instead of tracing every node of CUDA graphs",) if by_node else ()),
        ),
    )
