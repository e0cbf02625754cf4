"""Everything about waiting, worked out together because it shares its parts.

Run it before tables that have one row a path: looking up what a thread has open at an instant may
make new paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analyze.coverage import Coverage
from nvprobe.analyze.kernels.classes import classify_ops
from nvprobe.analyze.model import Steps
from nvprobe.analyze.overlap.combinations import Crowd, exposed_stretches, work_classes
from nvprobe.analyze.overlap.communication import (
    Carried,
    Collectives,
    collectives,
    exposed_coverage,
)
from nvprobe.analyze.overlap.streams import Streams, streams
from nvprobe.analyze.overlap.summary import Overlap, overlap
from nvprobe.analyze.waiting.blocking import synchronising_calls
from nvprobe.analyze.waiting.gaps import Gaps, device_gaps
from nvprobe.analyze.waiting.host import HostTime, host_time
from nvprobe.analyze.waiting.hostwork import Cause, call_roles, host_work
from nvprobe.analyze.waiting.idle import IdleCharges, by, idle_charges
from nvprobe.analyze.waiting.lines import CodeLines, lines_behind
from nvprobe.analyze.waiting.order import device_busy, device_order
from nvprobe.analyze.waiting.sync_operators import PathOperators, path_operators
from nvprobe.analyze.waiting.syncs import Syncs, sync_sites
from nvprobe.attribute.model import Attribution
from nvprobe.trace import Column, Ops

__all__ = ["Waits", "waits"]


@dataclass(frozen=True, slots=True)
class Waits:
    """Why devices were idle, which calls made the host wait, and what overlapped what."""

    streams: Streams
    gaps: Gaps
    idle: IdleCharges
    syncs: Syncs
    overlap: Overlap
    collectives: Collectives
    messages: Carried | None
    """What NCCL says its kernels carry, where the capture has its payloads."""
    exposed: Coverage
    """Exposed communication per device."""
    work: Column
    """int64 :class:`~nvprobe.analyze.combinations.Work` per op."""
    host: HostTime
    operators: PathOperators
    lines: CodeLines | None
    """The Python frames, where the trace has any."""

    @property
    def line_labels(self) -> list[str]:
        """Texts of the ``line`` columns of ``idle`` and ``host``."""
        return self.lines.labels.to_pylist() if self.lines is not None else []

    @property
    def exposed_comm_ns(self) -> int:
        """Communication with no compute beside it, summed over devices."""
        return int((self.exposed.end - self.exposed.start).sum())

    def idle_by_line(self) -> tuple[list[str | None], Column, Column]:
        """(line, cause, ns): the frame of the time, for ``sync`` the line that synchronised."""
        labels = self.line_labels
        line, cause, ns = by(self.idle.take(self.idle.cause != Cause.SYNC), "line", "cause")
        keys = [(labels[row] if row >= 0 else None, c) for row, c in zip(line, cause, strict=True)]
        total = dict(zip(keys, ns.tolist(), strict=True))
        sources, sites = self.syncs.labels.to_pylist(), self.syncs.sites
        for row, bubble in zip(sites.source.tolist(), sites.bubble_ns.tolist(), strict=True):
            key = (sources[row] if row >= 0 else None, Cause.SYNC)
            if bubble:
                total[key] = total.get(key, 0) + bubble
        lines, causes = [line for line, _ in total], np.array([c for _, c in total], np.int8)
        return lines, causes, np.array(list(total.values()), np.int64)


def waits(attribution: Attribution, steps: Steps, activity: Column | None = None) -> Waits:
    """Find the gaps and the synchronising calls, and charge the one with the other.

    ``activity`` is that of ``classes.classify_ops``, where it is known already.
    """
    lanes, order = streams(attribution), device_order(attribution)
    roles = call_roles(attribution.trace)
    busy = device_busy(order, len(attribution.trace.devices))
    calls = synchronising_calls(attribution, roles, busy, lanes)
    host = host_work(attribution, roles, (calls.thread, calls.start, calls.end))
    gaps = device_gaps(attribution, order)
    lines = lines_behind(attribution)
    idle, bubbles = idle_charges(attribution, gaps, steps, lanes, calls, host, lines)
    syncs = sync_sites(attribution, calls, bubbles, host, lines)
    crowd = Crowd.of(order)
    ops = attribution.trace.ops if attribution.trace.ops is not None else Ops.empty()
    if activity is None:
        activity = classify_ops(attribution.trace).activity
    work = work_classes(ops, activity)
    exposed = exposed_coverage(
        exposed_stretches(attribution, crowd, work), len(attribution.trace.devices)
    )
    communication, messages = collectives(attribution, work, exposed)
    return Waits(
        streams=lanes,
        gaps=gaps,
        idle=idle,
        syncs=syncs,
        overlap=overlap(attribution, crowd, work, lanes, steps),
        collectives=communication,
        messages=messages,
        exposed=exposed,
        work=work,
        host=host_time(attribution, host, idle, lines),
        operators=path_operators(attribution),
        lines=lines,
    )
