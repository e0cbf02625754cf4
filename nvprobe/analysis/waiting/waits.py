"""Everything about waiting, worked out together because it shares its parts."""

from __future__ import annotations

from dataclasses import dataclass

from nvprobe.analysis.code_places import CodePlaces, Line, code_places
from nvprobe.analysis.kernels.attributed import classify
from nvprobe.analysis.model import Steps
from nvprobe.analysis.overlap.combinations import (
    Crowd,
    Intervals,
    Work,
    exposed_stretches,
    work_classes,
)
from nvprobe.analysis.overlap.communication import (
    Carried,
    Collectives,
    collectives,
    exposed_coverage,
)
from nvprobe.analysis.overlap.processes import Met, met_by_processes
from nvprobe.analysis.overlap.summary import Overlap, overlap
from nvprobe.analysis.timelines import DeviceOrder, Streams, device_busy, device_order, streams
from nvprobe.analysis.waiting.blocking import SyncCalls, synchronizing_calls
from nvprobe.analysis.waiting.code_lines import CodeLines, LineSamples, line_samples, lines_behind
from nvprobe.analysis.waiting.gaps import Gaps, IdleTime, device_gaps
from nvprobe.analysis.waiting.host_causes import HostCauses, Stretches, host_causes
from nvprobe.analysis.waiting.host_time import HostTime, host_time, sampled_host_time
from nvprobe.analysis.waiting.idle import (
    IdleStretches,
    LineIdle,
    SampledIdle,
    idle_by_line,
    idle_stretches,
    idle_time,
    long_gaps,
    sampled_idle,
)
from nvprobe.analysis.waiting.syncs import PathOperators, Syncs, path_operators, sync_sites
from nvprobe.attribution.intervals import Coverage
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column
from nvprobe.trace.cuda_calls import call_roles


@dataclass(frozen=True, slots=True)
class Waits:
    """Why devices were idle, which calls made the host wait, and what overlapped what."""

    streams: Streams
    gaps: Gaps
    calls: SyncCalls
    """The synchronizing calls, one by one."""
    causes: HostCauses
    long: Column
    """Bool per gap: one long pause of the host (`IdleTime.long`)."""
    idle: IdleTime
    syncs: Syncs
    overlap: Overlap
    collectives: Collectives
    messages: Carried | None
    """What NCCL says its kernels carry, where the capture has its payloads."""
    met: Met | None
    """Collectives in which several processes of the capture meet."""
    exposed: Coverage
    """Exposed communication per device."""
    work: Column
    """int64 :class:`~nvprobe.analysis.overlap.combinations.Work` per op."""
    host: HostTime
    inputs: Stretches
    """The ranges that wait for data."""
    operators: PathOperators
    places: CodePlaces | None
    """Where ranges begin in the program, where a sidecar has it."""
    lines: CodeLines | None
    """The Python frames, where the trace has any."""
    sampled: SampledIdle | None = None
    """Where it has none: what Python samples say of idle time."""

    @property
    def line_labels(self) -> list[str]:
        """Texts of the ``line`` columns of ``idle``, ``host`` and ``sampled``."""
        known = self.lines or self.sampled
        return [] if known is None else known.labels.to_pylist()

    @property
    def exposed_comm_ns(self) -> int:
        """Communication with no compute beside it, summed over devices."""
        return int((self.exposed.end - self.exposed.start).sum())

    def idle_stretches(self) -> IdleStretches:
        """Idle time as stretches of one cause each."""
        return idle_stretches(self.gaps, self.calls, self.causes)

    def sync_places(self) -> list[Line | None]:
        """Per synchronizing call site without a line: where the innermost range around it began."""
        sites, places = self.syncs.sites, self.places
        rows = zip(sites.source.tolist(), sites.path.tolist(), strict=True)
        return [places.nearest(path) if places and row < 0 else None for row, path in rows]

    def idle_by_line(self) -> list[LineIdle]:
        """Idle time by line and cause, most first: `nvprobe.analysis.waiting.idle`."""
        frames = [] if self.lines is None else self.lines.labels.to_pylist()
        return idle_by_line(self.idle, frames, self.syncs, self.sampled, self.places)


def waits(attribution: Attribution, steps: Steps, activity: Column | None = None) -> Waits:
    """Find the gaps and the synchronizing calls, and charge the one with the other.

    ``activity`` is that of ``attributed.classify``, where it is known already.
    """
    lanes, order = streams(attribution), device_order(attribution)
    roles = call_roles(attribution.trace)
    everything = order if attribution.unfiltered is None else device_order(attribution.whole)
    busy = device_busy(everything, len(attribution.trace.devices))
    calls = synchronizing_calls(attribution, roles, busy, lanes)
    host = host_causes(attribution, roles, (calls.thread, calls.start, calls.end))
    gaps = device_gaps(attribution, order)
    lines = lines_behind(attribution)
    idle, bubbles = idle_time(attribution, gaps, steps, lanes, calls, host, lines)
    samples = line_samples(attribution.trace) if lines is None else None
    syncs = sync_sites(attribution, calls, bubbles, host, lines, samples)
    worked, sampled = _worked(attribution, gaps, calls, host, idle, lines, samples)
    crowd = Crowd.of(order)
    work = _classes(attribution, activity)
    exposed = exposed_coverage(
        _exposed(attribution, crowd, work, everything), len(attribution.trace.devices)
    )
    communication, messages = collectives(attribution, work, exposed)
    return Waits(
        streams=lanes,
        gaps=gaps,
        calls=calls,
        causes=host,
        long=long_gaps(gaps, host),
        idle=idle,
        syncs=syncs,
        overlap=overlap(attribution, crowd, work, lanes, steps),
        collectives=communication,
        messages=messages,
        met=met_by_processes(attribution, work, messages, exposed, steps),
        exposed=exposed,
        work=work,
        host=worked,
        inputs=host.inputs,
        operators=path_operators(attribution),
        places=code_places(attribution),
        lines=lines,
        sampled=sampled,
    )


def _classes(attribution: Attribution, activity: Column | None) -> Column:
    """The class of work of each op."""
    ops = attribution.trace.ops
    if activity is None:
        activity = classify(attribution).activity
    return work_classes(ops, activity)


def _exposed(
    attribution: Attribution, crowd: Crowd, work: Column, everything: DeviceOrder
) -> Intervals:
    """Exposed communication; what a selection leaves out hides it, and is none of it."""
    if attribution.unfiltered is None:
        return exposed_stretches(attribution, crowd, work)
    whole = attribution.whole
    of_all = _classes(whole, None)
    others = ~attribution.unfiltered.ops & (of_all == Work.COMMUNICATION)
    of_all[others] = Work.MEMSET  # neither communication nor compute
    return exposed_stretches(whole, Crowd.of(everything), of_all)


def _worked(
    attribution: Attribution,
    gaps: Gaps,
    calls: SyncCalls,
    host: HostCauses,
    idle: IdleTime,
    lines: CodeLines | None,
    samples: LineSamples | None,
) -> tuple[HostTime, SampledIdle | None]:
    """Host time between launches; by sampled lines, and idle time so too, where there are any."""
    worked = host_time(attribution, host, idle, lines)
    if samples is None:
        return worked, None
    sampled, seen = sampled_idle(attribution, gaps, calls, host, idle, samples)
    return sampled_host_time(attribution, host, worked, samples, seen), sampled
