"""What waiting adds to the quantities of paths and steps."""

from __future__ import annotations

import dataclasses

from nvprobe.analysis.grouping import push_up, sums
from nvprobe.analysis.model import PathQuantities
from nvprobe.analysis.overlap.communication import exposed_by_path
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["idle_of_steps", "with_waits"]


def with_waits(ranges: PathQuantities, attribution: Attribution, waits: Waits) -> PathQuantities:
    """``ranges`` with ``sync_ns``, ``idle_ns`` and ``exposed_comm_ns`` where they can be known."""
    trace, paths = attribution.trace, attribution.paths
    size = len(paths.parent)
    if trace.calls.recorded:
        sites = waits.syncs.sites
        waited = push_up(paths, sums(sites.path, sites.wait_ns, size))
        ranges = dataclasses.replace(ranges, sync_ns=waited)
    if attribution.valid.any():
        idle = push_up(paths, sums(waits.idle.path, waits.idle.ns, size))
        exposed = exposed_by_path(attribution, waits.work, waits.exposed)
        ranges = dataclasses.replace(ranges, idle_ns=idle, exposed_comm_ns=exposed)
    return ranges


def idle_of_steps(waits: Waits, steps: int) -> Column:
    """``idle_ns`` of every step: over devices, cut at its borders."""
    return sums(waits.idle.step, waits.idle.ns, steps)
