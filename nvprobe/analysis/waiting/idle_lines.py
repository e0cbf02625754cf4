"""Idle time by line, where Python samples tell the line.

How it is shared out, and what that is worth: :mod:`nvprobe.analysis.waiting.sampled`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.waiting.blocking import SyncCalls
from nvprobe.analysis.waiting.charges import IdleCharges, by
from nvprobe.analysis.waiting.gaps import Gaps
from nvprobe.analysis.waiting.hostwork import Cause, HostWork
from nvprobe.analysis.waiting.idle import idle_instants
from nvprobe.analysis.waiting.sampled import LineSamples, SampledTime, shared_out
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column

__all__ = ["SAMPLED_CAUSES", "LineIdle", "SampledIdle", "sampled_idle"]

SAMPLED_CAUSES = (Cause.LAUNCH_CALL, Cause.HOST)
"""Causes that a line can be blamed for; the others have names of their own."""


@dataclass(frozen=True, slots=True)
class LineIdle:
    """Idle time charged to one line."""

    line: str | None
    cause: Cause
    ns: int
    samples: int | None = None
    """Samples that told the line; ``None`` where it is exact or unknown."""


@dataclass(frozen=True, slots=True)
class SampledIdle:
    """Idle time of the host by path, cause and line."""

    path: Column
    cause: Column
    """Path and cause of each group of ``time``."""
    time: SampledTime
    labels: pa.StringArray

    @property
    def samples(self) -> int:
        """Samples that fell into idle time."""
        return int(self.time.samples.sum())

    def by_line(self) -> list[LineIdle]:
        """Summed over paths, most time first."""
        cause = self.cause[self.time.group].astype(np.int64)
        keys, code = distinct(self.time.line.astype(np.int64) + 1 << 8 | cause)
        ns, seen = (sums(code, v, len(keys)) for v in (self.time.ns, self.time.samples))
        labels = [*self.labels.to_pylist(), None]
        order = np.argsort(-ns, kind="stable")
        rows = zip(*(c[order].tolist() for c in (keys, ns, seen)), strict=True)
        return [
            LineIdle(labels[(key >> 8) - 1], Cause(key & 0xFF), time, count or None)
            for key, time, count in rows
            if time or count
        ]


def sampled_idle(
    attribution: Attribution,
    gaps: Gaps,
    waits: SyncCalls,
    work: HostWork,
    idle: IdleCharges,
    samples: LineSamples,
) -> tuple[SampledIdle, tuple[Column, Column]]:
    """Idle time divided among lines; also (path, line) of the samples in ``host`` idle time."""
    sample, path, cause = idle_instants(attribution, gaps, waits, work, samples)
    own_path, own_cause, ns = by(idle.take(np.isin(idle.cause, SAMPLED_CAUSES)), "path", "cause")
    group_of = np.full((int(path.max(initial=int(own_path.max(initial=-1)))) + 2, len(Cause)), -1)
    group_of[own_path, own_cause] = np.arange(len(ns))  # path -1 is the spare last one
    group = group_of[path, cause]
    known = group != NO_ROW
    time = shared_out(ns, group[known], samples.line[sample[known]])
    worked = cause == Cause.HOST
    seen = path[worked], samples.line[sample[worked]]
    return SampledIdle(own_path, own_cause, time, samples.labels), seen
