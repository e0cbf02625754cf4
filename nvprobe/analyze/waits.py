"""Everything about waiting, worked out together because it shares its parts.

Run it before tables that have one row a path: looking up what a thread has open at an instant may
make new paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvprobe.analyze.blocking import device_busy, synchronising_calls
from nvprobe.analyze.gaps import Gaps, device_gaps
from nvprobe.analyze.hostwork import call_roles, host_work
from nvprobe.analyze.idle import IdleCharges, idle_charges
from nvprobe.analyze.model import Steps
from nvprobe.analyze.streams import Streams, streams
from nvprobe.analyze.syncs import Syncs, sync_sites
from nvprobe.attribute.model import Attribution

__all__ = ["Waits", "waits"]


@dataclass(frozen=True, slots=True)
class Waits:
    """Why devices were idle and which calls made the host wait."""

    streams: Streams
    gaps: Gaps
    idle: IdleCharges
    syncs: Syncs


def waits(attribution: Attribution, steps: Steps) -> Waits:
    """Find the gaps and the synchronising calls, and charge the one with the other."""
    lanes = streams(attribution)
    roles = call_roles(attribution.trace)
    calls = synchronising_calls(attribution, roles, device_busy(attribution), lanes)
    work = host_work(attribution, roles, (calls.thread, calls.start, calls.end))
    gaps = device_gaps(attribution)
    idle, bubbles = idle_charges(attribution, gaps, steps, lanes, calls, work)
    syncs = sync_sites(attribution, calls, bubbles, work)
    return Waits(streams=lanes, gaps=gaps, idle=idle, syncs=syncs)
