"""Pauses of the host between its calls that come back in every step, found in the replayed steps.

:mod:`nvprobe.analysis.findings.host` knows idle time only, and cannot say of less than two
milliseconds whether launching took them. In a step that is replayed each gap is known by where it
lies: no dispatch of an operator takes as long as these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nvprobe.analysis.findings.habits import FORWARD, OPTIMIZER
from nvprobe.analysis.findings.host import own_work, place_before, unexplained
from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import BACKWARD, Sampled
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.replay.edits.waits import shorten_gaps
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.analysis.verdict import duration
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import NO_ROW, Column

LONG_NS = 400_000
"""So long nothing of torch takes between two calls, but passes that begin or end."""
PLAIN = 0.25
"""Of the host's time: with less in pauses it is held up by launching, and by passes that end."""
IDLE = 0.05
"""Of the window, what the GPU waits for the host at least."""


def host_pauses(evidence: Evidence, sample: Sample, found: Sequence[Finding]) -> Iterator[Proposed]:
    """The host does something of its own in every step, outside of the passes.

    ``found``: what is known without a replay; its own pauses, and what else it explains, count.
    """
    idle = int(unexplained(evidence, found).sum())
    if idle < IDLE * evidence.window_ns or any(one.id == "host_work" for one in found):
        return
    pauses = _pauses(Sampled(evidence, sample))
    each = np.bincount(sample.step[pauses], minlength=sample.steps)[: sample.steps]
    e = sample.model.events
    whole = int((e.gap + e.dur)[_main(sample)].sum())
    if np.median(each) < 1 or int(e.gap[pauses].sum()) < PLAIN * whole:
        return
    rows, paths = np.flatnonzero(pauses), evidence.attribution.paths
    spent = np.zeros(len(paths.parent) + 1, np.int64)
    np.add.at(spent, sample.gap_path[rows], e.gap[rows])
    path, total = common_path(paths, spent), int(spent.sum())
    ops = sample.op[pauses[sample.model.ops.event]]
    before = place_before(evidence, path, ops)
    yield (
        own_work(
            evidence,
            path,
            f"The host does {duration(total // sample.steps)} of its own work per step in "
            f"{named(paths, path)}{before}",
            0,
            {
                "pauses_per_step": round(int(pauses.sum()) / sample.steps, 1),
                "host_ns_per_step": total // sample.steps,
                "median_pause_ns": int(np.median(e.gap[rows])),
            },
            ops,
        ),
        Proposal(shorten_gaps(pauses), 0.6, "host"),
    )


def _pauses(steps: Sampled) -> Column:
    """Bool per event: a long gap before it that no pass, no call and no data explain."""
    sample = steps.sample
    gap = sample.model.events.gap - sample.input_ns
    torch = steps.gap_below(FORWARD) | steps.gap_below(BACKWARD) | steps.gap_below(OPTIMIZER)
    torch |= steps.gap_below(r".", Kind.MODULE, Kind.GRAPH, Kind.COLLECTIVE)
    operator = _outermost_operator(steps.evidence.attribution.paths)
    torch |= (operator[sample.gap_path] >= 0) & (operator[sample.gap_path] == operator[sample.path])
    own = _main(sample) & ~torch & ~steps.on_autograd & ~sample.compiling_gap
    long = (gap >= LONG_NS) & own
    return (gap - _in_calls(steps) >= LONG_NS) & long if long.any() else long


def _in_calls(steps: Sampled) -> Column:
    """Per event: time in calls that start nothing in the gap before it."""
    calls, e = steps.evidence.trace.calls, steps.sample.events
    near = (calls.end > (e.begin - e.gap).min()) & (calls.start < e.end.max())
    rows = np.flatnonzero(near)
    return steps.sample.gap_within(calls.thread[rows], calls.start[rows], calls.end[rows])


def _outermost_operator(paths: PathTable) -> Column:
    """Per path, and a last one for none: the first operator on the way to it, -1."""
    out = np.full(len(paths.parent) + 1, NO_ROW, np.int64)
    for rows in paths.levels():
        above = out[paths.parent[rows]]
        out[rows] = np.where((above < 0) & (paths.kind[rows] == Kind.OPERATOR), rows, above)
    return out


def _main(sample: Sample) -> Column:
    """Bool per event: of the thread that runs the steps; others may wait for it."""
    lane = sample.model.events.lane
    return np.asarray(lane == lane[sample.model.borders[0]])
