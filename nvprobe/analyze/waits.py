"""Everything about waiting, worked out together because it shares its parts.

Run it before tables that have one row a path: looking up what a thread has open at an instant may
make new paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvprobe.analyze.blocking import synchronising_calls
from nvprobe.analyze.classes import classify_ops
from nvprobe.analyze.combinations import Crowd, exposed_stretches, work_classes
from nvprobe.analyze.communication import Collectives, collectives, exposed_coverage
from nvprobe.analyze.coverage import Coverage
from nvprobe.analyze.gaps import Gaps, device_gaps
from nvprobe.analyze.hostwork import call_roles, host_work
from nvprobe.analyze.idle import IdleCharges, idle_charges
from nvprobe.analyze.model import Steps
from nvprobe.analyze.order import device_busy, device_order
from nvprobe.analyze.overlap import Overlap, overlap
from nvprobe.analyze.streams import Streams, streams
from nvprobe.analyze.syncs import Syncs, sync_sites
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
    exposed: Coverage
    """Exposed communication per device."""
    work: Column
    """int64 :class:`~nvprobe.analyze.overlap.Work` per op."""


def waits(attribution: Attribution, steps: Steps) -> Waits:
    """Find the gaps and the synchronising calls, and charge the one with the other."""
    lanes, order = streams(attribution), device_order(attribution)
    roles = call_roles(attribution.trace)
    busy = device_busy(order, len(attribution.trace.devices))
    calls = synchronising_calls(attribution, roles, busy, lanes)
    host = host_work(attribution, roles, (calls.thread, calls.start, calls.end))
    gaps = device_gaps(attribution, order)
    idle, bubbles = idle_charges(attribution, gaps, steps, lanes, calls, host)
    syncs = sync_sites(attribution, calls, bubbles, host)
    crowd = Crowd.of(order)
    ops = attribution.trace.ops if attribution.trace.ops is not None else Ops.empty()
    work = work_classes(ops, classify_ops(attribution.trace).activity)
    exposed = exposed_coverage(
        exposed_stretches(attribution, crowd, work), len(attribution.trace.devices)
    )
    return Waits(
        streams=lanes,
        gaps=gaps,
        idle=idle,
        syncs=syncs,
        overlap=overlap(attribution, crowd, work, lanes, steps),
        collectives=collectives(attribution, work, exposed),
        exposed=exposed,
        work=work,
    )
