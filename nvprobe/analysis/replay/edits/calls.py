"""Changes that leave calls out: what they launch, what they wait for and the work before them."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.changes import drop, drop_ops, ops_of, unwait
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import NOTHING, Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.waiting.host_time import thread_lanes
from nvprobe.attribution.intervals import Coverage
from nvprobe.trace import Column

LAUNCH_NS, LATENCY_NS = 5_000, 1_000
"""A launch that nobody waits in, and how long its kernel is on its way."""


def without(sample: Sample, events: Column) -> Edit:
    """Calls that are not made. Low: they are, but nobody waits. High: nor is the work before them.

    Mid: the ops and waits go, and the work from one launch that goes to the next call that does.
    What the host does before the first of them, or with a value it has waited for, may have to be
    done anyway.
    """
    launches = events & (sample.model.events.awaits == NOTHING)
    between = events & _follows(sample.model.events.lane, launches)

    def edit(model: Model, level: Level) -> None:
        if level == Level.HIGH:
            drop(model, events)
            return
        unwait(model, events)
        if level == Level.MID:
            drop_ops(model, ops_of(model, events))
            model.events.dur[events] = 0
            model.events.gap[between] = 0

    return edit


def _follows(lane: Column, events: Column) -> Column:
    """Bool per event: the one before it in its lane is one of ``events``."""
    order = np.argsort(lane, kind="stable")
    before, same = events[order][:-1], lane[order][1:] == lane[order][:-1]
    out = np.zeros(len(events), bool)
    out[order[1:]] = before & same
    return out


def made_before(sample: Sample, events: Column) -> Edit:
    """Uploads of what is made once, before the loop, and the work of making it.

    Low: it is made in each step, on the GPU, by as much work of the host that nobody waits for.
    """

    def edit(model: Model, level: Level) -> None:
        if level != Level.LOW:
            drop(model, events)
            return
        unwait(model, events)
        drop_ops(model, ops_of(model, events))

    return edit


def unblocked(sample: Sample, events: Column) -> Edit:
    """Launches that return before their kernels have ended. Low: half of their time remains."""

    def edit(model: Model, level: Level) -> None:
        dur, lat = model.events.dur, model.ops.lat
        ops = ops_of(model, events)
        free = np.minimum(dur[events], LAUNCH_NS)
        dur[events] = (dur[events] + free) // 2 if level == Level.LOW else free
        lat[ops] = np.maximum(lat[ops], LATENCY_NS)

    return edit


def uncalled(sample: Sample, rows: Column) -> Edit:
    """Calls (rows of the trace's) that are made once, before the loop. Low: half of their time.

    Those that launch and wait for nothing lie in the gaps before events.
    """
    events, calls = sample.events, sample.attribution.trace.calls
    lane_of = thread_lanes(sample.attribution)
    covered = Coverage.of(
        lane_of[calls.thread[rows]], calls.start[rows], calls.end[rows], len(lane_of)
    )
    lane, gap = lane_of[events.thread], events.gap
    in_gap = covered.between(lane, events.begin - gap, events.begin) / np.maximum(gap, 1)
    own = np.isin(events.call, rows)

    def edit(model: Model, level: Level) -> None:
        share = 0.5 if level == Level.LOW else 1.0
        gap = model.events.gap
        gap[:] = np.rint(gap * (1 - share * in_gap)).astype(np.int64)
        unwait(model, own)
        model.events.dur[own] = np.rint((1 - share) * model.events.dur[own]).astype(np.int64)

    return edit
