"""Hold the overlap of an attribution against the oracle, whole."""

from __future__ import annotations

from collections import Counter

from nvprobe.analysis.model import Steps
from nvprobe.analysis.overlap.combinations import Combinations, Work
from nvprobe.analysis.overlap.communication import exposed_by_path
from nvprobe.analysis.waiting.idle import step_at
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution import Attribution
from tests.oracle_overlap import OverlapOracle


def overlaps_agree(attribution: Attribution, steps: Steps, wait: Waits) -> None:
    """Classes by device, step and path, streams, pairs, exposed communication."""
    if not attribution.trace.ops.recorded:
        return
    ops, calls, lanes = attribution.trace.ops, attribution.trace.calls, wait.streams
    step = []
    for row, call in enumerate(attribution.call.tolist()):
        time = calls.start[[call]] if call >= 0 else None
        step.append(-1 if time is None else int(step_at(steps, ops.process[[row]], time)[0]))
    oracle = OverlapOracle(attribution, [Work(w).label for w in wait.work.tolist()], step)
    over = wait.overlap
    assert _counted(over.devices, -1) == oracle.by_device
    assert _counted(over.steps) == oracle.by_step
    assert _counted(over.paths) == oracle.by_path
    stream = list(
        zip(lanes.device.tolist(), lanes.process.tolist(), lanes.stream.tolist(), strict=True)
    )
    busy, alone = over.streams.busy_ns.tolist(), over.streams.alone_ns.tolist()
    assert +Counter(dict(zip(stream, busy, strict=True))) == +oracle.busy
    assert +Counter(dict(zip(stream, alone, strict=True))) == +oracle.alone
    p = over.stream_pairs
    pairs = Counter()
    for a, b, ns in zip(p.first.tolist(), p.second.tolist(), p.ns.tolist(), strict=True):
        pairs[tuple(sorted((stream[a], stream[b])))] += ns
    assert +pairs == oracle.stream_pairs
    p = over.path_pairs
    columns = (p.device - 1, p.first, p.second, p.ns)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    assert Counter({(d, a, b): ns for d, a, b, ns in rows}) == oracle.path_pairs
    found = exposed_by_path(attribution, wait.work, wait.exposed).tolist()
    assert +Counter(dict(enumerate(found))) == oracle.exposed_by_path
    c = wait.collectives
    rows = zip(c.name.tolist(), c.path.tolist(), c.exposed_ns.tolist(), strict=True)
    assert +Counter({(n, path): ns for n, path, ns in rows}) == oracle.exposed_by_collective
    talk = [w for w in wait.overlap.devices.mask.tolist() if w & 2 and not w & 1]
    assert bool(talk) == bool(oracle.exposed)


def _counted(table: Combinations, shift: int = 0) -> Counter:
    out = Counter()
    columns = (table.group, table.mask, table.ns)
    for group, mask, ns in zip(*(c.tolist() for c in columns), strict=True):
        names = sorted(work.label for work in Work if mask >> work & 1)
        out[group + shift, tuple(names)] += ns
    return out
