"""The process that the others of the capture wait for in their collectives.

What they wait is gone where it is no longer last, as far as no compute hides it: that is the most
it saves. How much of its work the others could take over is not known: the low end is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named, program_paths
from nvprobe.analysis.grouping import sums
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.overlap.processes import Met
from nvprobe.analysis.verdict import duration
from nvprobe.trace import NO_ROW, Column

_MOSTLY = 0.5
"""Share of the waiting that one process must cause to be named."""
_EXPLAINS = 0.3
"""Share of the delay that what it does longer must reach to count as its cause."""


def late_process(evidence: Evidence) -> Iterator[Finding]:
    """One process that arrives last at most collectives."""
    met = evidence.waits.met
    if met is None:
        return
    ops, meeting, meetings = evidence.ops, met.arrivals.meeting, met.arrivals.meetings
    last = ops.process[met.op[meetings.last]]
    awaited = sums(meeting, met.exposed_wait_ns, len(meetings))
    by_process = sums(last.astype(np.int64), awaited, len(evidence.trace.processes))
    late, total = int(by_process.argmax()), int(by_process.sum())
    if not total or by_process[late] < _MOSTLY * total:
        return
    mine = last == late
    delay = int((meetings.latest - meetings.typical)[mine].sum())
    others = np.unique(ops.process[met.op[mine[meeting] & (ops.process[met.op] != late)]])
    path, own, usual = _longer(evidence, met, late, others, delay)
    rows = met.op[mine[meeting]]
    place = common_path(
        evidence.attribution.paths, _by_path(evidence, rows, evidence.attribution.duration[rows])
    )
    pid = int(evidence.trace.processes.pid[late])
    yield Finding(
        id="late_process",
        ops=rows,
        title=f"Process {pid}{_gpu(evidence, met, late)} arrives last in "
        f"{named(evidence.attribution.paths, place, 'collectives')}: the others wait for it"
        + _doing(evidence, path, own - usual),
        path=place if path < 0 else path,
        sources=(),
        evidence={
            "process": pid,
            "collectives": len(meetings),
            "last_in": int(np.count_nonzero(mine & (awaited > 0))),
            "late_ns": delay,
            "wait_ns": int(by_process[late]),
            "own_gpu_ns": own if path >= 0 else None,
            "usual_gpu_ns": usual if path >= 0 else None,
        },
        saves_ns=(0, int(by_process[late])),
        advice=_advice(evidence, pid, path),
    )


def _gpu(evidence: Evidence, met: Met, process: int) -> str:
    """``(GPU 2)`` where the process used one GPU alone."""
    ops, devices = evidence.ops, evidence.trace.devices
    used = np.unique(ops.device[met.op[ops.process[met.op] == process]])
    return f" (GPU {int(devices.id[used[0]])})" if len(used) == 1 and used[0] >= 0 else ""


def _longer(
    evidence: Evidence, met: Met, late: int, others: Column, delay: int
) -> tuple[int, int, int]:
    """(path, its GPU time, median of the others') in which a process works longer; -1 for none."""
    ops, paths = evidence.ops, evidence.attribution.paths
    program = np.append(program_paths(paths), NO_ROW)[evidence.attribution.owner]
    work = evidence.trusted & (evidence.classes.activity != Activity.COMMUNICATION) & (program >= 0)
    table = np.zeros((len(others) + 1, len(paths.parent)), np.int64)
    for row, process in enumerate((late, *others.tolist())):
        rows = np.flatnonzero(work & (ops.process == process))
        np.add.at(table[row], program[rows], evidence.attribution.duration[rows])
    usual = np.median(table[1:], axis=0).astype(np.int64)
    more = table[0] - usual
    path = int(more.argmax()) if len(more) else NO_ROW
    if path < 0 or more[path] < max(_EXPLAINS * delay, 1):
        return NO_ROW, 0, 0
    return path, int(table[0, path]), int(usual[path])


def _doing(evidence: Evidence, path: int, longer: int) -> str:
    if path < 0:
        return ""
    return f", {duration(longer)} longer in {named(evidence.attribution.paths, path)}"


def _advice(evidence: Evidence, pid: int, path: int) -> tuple[str, ...]:
    """What to try: where its GPU works longer, even the work out; else look at its host."""
    if path >= 0:
        return (
            f"give process {pid} less to do there, or as much as the others: shards, sequence "
            "lengths, experts and pipeline stages of equal work",
            "the same work there: look at the clocks and the temperature of that GPU (nvidia-smi)",
        )
    return (
        f"see what process {pid} does before its collectives: --process {pid}",
        "the same work there: look at the clocks and the temperature of that GPU (nvidia-smi), and "
        "at what else runs on its CPUs",
    )


def _by_path(evidence: Evidence, rows: Column, ns: Column) -> Column:
    size = len(evidence.attribution.paths.parent)
    owner = evidence.attribution.owner[rows]
    return sums(np.where(owner >= 0, owner, size), ns, size + 1)
