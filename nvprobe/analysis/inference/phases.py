"""Steps by phase: how many, how long, how far apart, what they compute.

Of one process, the one with most GPU time: ranks of a tensor-parallel job run a copy each of every
step, and copies are never added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.model import UNKNOWN, Steps
from nvprobe.attribution.engines import StepPhase
from nvprobe.trace import Column, Table, column


@dataclass(frozen=True, slots=True)
class PhaseRows(Table):
    """One row a phase, that of most steps first; UNKNOWN where names do not say."""

    phase: Column = column("i1")
    steps: Column = column("i8")
    requests: Column = column("i8")
    """Requests summed over steps: a request that decodes n tokens counts n times."""
    tokens: Column = column("i8")
    wall_p50_ns: Column = column("i8")
    wall_p90_ns: Column = column("i8")
    wall_p99_ns: Column = column("i8")
    interval_ns: Column = column("i8")
    """Median time from a step's begin to that of the next: the least time between two tokens."""
    gap_ns: Column = column("i8")
    """Median time from the end of the step before."""
    busy_ns: Column = column("i8")
    """Median time in which the GPU works."""
    total_ns: Column = column("i8")
    """All intervals together."""
    tokens_per_s: Column = column("f8")
    """Not a number where tokens are not known."""


def leading_steps(steps: Steps) -> Column:
    """Rows of the steps with ops that a report is about, of the process with most GPU time."""
    chosen = steps.ops > 0
    if steps.steady is not None:
        chosen &= steps.steady
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return rows
    process = np.bincount(steps.process[rows], weights=steps.gpu_ns[rows]).argmax()
    rows = rows[steps.process[rows] == process]
    return rows[np.argsort(steps.start[rows], kind="stable")]


def intervals(steps: Steps, rows: Column) -> Column:
    """ns from each step's begin to that of the next, of the last its own length."""
    after = np.append(steps.start[rows[1:]], steps.end[rows[-1:]])
    return np.maximum(after - steps.start[rows], 0)


def phase_rows(steps: Steps) -> PhaseRows | None:
    """The phases of inference; ``None`` where nothing says that a step has one."""
    rows = leading_steps(steps)
    phase = steps.phase[rows]
    if not (phase != StepPhase.UNKNOWN).any():
        return None
    interval = intervals(steps, rows)
    before = np.append(steps.start[rows[:1]], steps.end[rows[:-1]])
    gap = np.maximum(steps.start[rows] - before, 0)
    found = [_row(steps, rows, interval, gap, phase == one) for one in np.unique(phase).tolist()]
    table = PhaseRows(**{key: np.array([row[key] for row in found]) for key in found[0]})
    return table.take(np.argsort(-table.steps, kind="stable"))


def _row(
    steps: Steps, rows: Column, interval: Column, gap: Column, mine: Column
) -> dict[str, float]:
    own, total = rows[mine], int(interval[mine].sum())
    requests = _both(steps.prefill_requests[own], steps.decode_requests[own])
    decoded = np.where(  # one for each request where nothing is said, as without a draft model
        steps.decode_tokens[own] == UNKNOWN, steps.decode_requests[own], steps.decode_tokens[own]
    )
    tokens = _both(steps.prefill_tokens[own], decoded)
    later = gap[mine][rows[mine] != rows[0]]
    p50, p90, p99 = np.percentile(steps.wall_ns[own], (50, 90, 99), method="higher")
    return {
        "phase": int(steps.phase[own[0]]),
        "steps": len(own),
        "requests": requests,
        "tokens": tokens,
        "wall_p50_ns": p50,
        "wall_p90_ns": p90,
        "wall_p99_ns": p99,
        "interval_ns": int(np.median(interval[mine])),
        "gap_ns": int(np.median(later)) if len(later) else UNKNOWN,
        "busy_ns": int(np.median(steps.gpu_busy_ns[own])),
        "total_ns": total,
        "tokens_per_s": np.nan if tokens == UNKNOWN or not total else tokens * 1e9 / total,
    }


def _both(prefill: Column, decode: Column) -> int:
    """Sum of both sides, UNKNOWN where a step says neither; a side that is not named counts 0."""
    if ((prefill == UNKNOWN) & (decode == UNKNOWN)).any():
        return UNKNOWN
    return int(sum(side[side != UNKNOWN].sum() for side in (prefill, decode)))


def main_phase(table: PhaseRows) -> int:
    """The phase of most steps."""
    return int(table.phase[0])
