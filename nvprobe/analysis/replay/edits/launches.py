"""Changes of how work is launched: graphs, compiled code without breaks, loops in one launch."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.changes import merge, scale
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import NEVER, NOTHING, EventKind, Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.waiting.gaps import LONG_NS
from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column

GRAPH_NS, NODE_NS = 8_000, 250
"""Host time of a graph's launch, and more for each of its nodes."""
NODE_GAP_NS = 1_200
COMPILED = 0.75, 0.9
"""Of the host's work before launches and in them, what remains when compiled code launches."""
SMALL_NS, FUSED = 20_000, 0.5
"""Of kernels this small, what remains at best when they are fused."""
LEAST_NODES = 10
BORDER_NS = 6_000
LOOP_NS = 20_000
"""Host time of one launch that does the work of a loop over parameters."""
FLOOR_NS = 1_500
"""Of a small kernel's length, what starting and ending it takes."""
LOOP_HOST = {Level.LOW: 0.3, Level.MID: 0.04, Level.HIGH: 0.0}
LOOP_OPS = {Level.LOW: 1.0, Level.MID: 0.4, Level.HIGH: 0.2}


def cuda_graph(sample: Sample, events: Column) -> Edit:
    """Each stretch of ``events`` without a wait or a long pause as one graph.

    Low: compiled and launched one by one. High: compiled, so that small kernels are fused.
    """
    group = _stretches(sample, events)

    def edit(model: Model, level: Level) -> None:
        o, rows = model.ops, np.flatnonzero(group >= 0)
        if not len(rows):
            return
        if level == Level.LOW:
            _less_host(model, rows, *COMPILED)
            return
        inside = _as_graphs(model, group)
        if level == Level.HIGH:
            small = inside & (o.dur < SMALL_NS)
            scale(model, small, FUSED)
            o.gap[small] //= 2

    return edit


def recaptured(sample: Sample, events: Column) -> Edit:
    """Each stretch of ``events`` as one graph of the same kernels. Low: half of the host's work."""
    group = _stretches(sample, events)

    def edit(model: Model, level: Level) -> None:
        rows = np.flatnonzero(group >= 0)
        if level == Level.LOW:
            _less_host(model, rows, 0.5, 0.5)
        elif len(rows):
            _as_graphs(model, group)

    return edit


def _as_graphs(model: Model, group: Column) -> Column:
    """Launch the events of each group at once; gives (bool per op) their ops."""
    e, o = model.events, model.ops
    rows = np.flatnonzero(group >= 0)
    inside = (group >= 0)[o.event]
    nodes = np.bincount(group[o.event[inside]], minlength=int(group.max()) + 1)
    heads = rows[runs(group[rows])]
    rest = np.setdiff1d(rows, heads)
    e.gap[rest], e.dur[rest] = 0, 0
    e.dur[heads] = np.rint(GRAPH_NS + NODE_NS * nodes[group[heads]]).astype(np.int64)
    o.gap[inside] = np.minimum(o.gap[inside], NODE_GAP_NS)
    o.lat[inside & np.isin(o.event, rest)] = NEVER
    return inside


def compiled(sample: Sample, events: Column) -> Edit:
    """Each stretch of ``events`` compiled and launched one by one. Low: nothing is gained."""
    rows = np.flatnonzero(_stretches(sample, events) >= 0)
    share = {Level.LOW: (1.0, 1.0), Level.MID: COMPILED, Level.HIGH: (0.5, 0.5)}

    def edit(model: Model, level: Level) -> None:
        _less_host(model, rows, *share[level])

    return edit


def _less_host(model: Model, rows: Column, gap: float, dur: float) -> None:
    """Events that take these shares of their time on the host."""
    e = model.events
    e.gap[rows] = np.rint(gap * e.gap[rows]).astype(np.int64)
    e.dur[rows] = np.rint(dur * e.dur[rows]).astype(np.int64)


def _stretches(sample: Sample, events: Column) -> Column:
    """Per event the number of its stretch of launches that nothing waits in, -1."""
    e = sample.model.events
    paused = np.append(e.gap[1:] >= LONG_NS, False)  # the pause is before the stretch, not in it
    breaks = (e.awaits != NOTHING) | (e.kind == EventKind.STEP) | ~events | paused
    number = np.where(breaks, -1, np.cumsum(breaks))
    launches = np.bincount(number[number >= 0], minlength=len(breaks) + 1)
    number[(number >= 0) & (launches[np.maximum(number, 0)] < LEAST_NODES)] = -1
    return number


def graph_break(between: Column, inside: Column) -> Edit:
    """Compiled graphs with nothing between them. Bools per event: gaps outside, all launches.

    Low: half of what is between. High: one graph needs half of the launches.
    """

    def edit(model: Model, level: Level) -> None:
        gap, dur = model.events.gap, model.events.dur
        if level == Level.LOW:
            gap[between] //= 2
            return
        gap[between] = np.minimum(gap[between], BORDER_NS if level == Level.MID else 0)
        if level == Level.HIGH:
            gap[inside] //= 2
            dur[inside] //= 2

    return edit


def graph_gaps(sample: Sample, ops: Column) -> Edit:
    """Nodes of graphs without gaps between them; nothing of it is sure."""
    rest = {Level.LOW: 1.0, Level.MID: 0.5, Level.HIGH: 0.0}

    def edit(model: Model, level: Level) -> None:
        nodes = ops & (model.ops.lat == NEVER)
        model.ops.gap[nodes] = np.rint(model.ops.gap[nodes] * rest[level]).astype(np.int64)

    return edit


def fuse_loop(sample: Sample, events: Column, group: Column | None = None) -> Edit:
    """A loop that launches the same small kernels again and again, as one launch a step.

    ``group``: a number per event, rising; one launch for each instead of for each step.
    """
    rows = np.flatnonzero(events)
    group = sample.step if group is None else group
    number = group[rows]
    inside = events[sample.model.ops.event] if len(sample.model.ops) else np.empty(0, bool)

    def edit(model: Model, level: Level) -> None:
        work = (np.maximum(model.ops.dur - FLOOR_NS, 0) * inside)[inside]
        work = np.bincount(group[model.ops.event[inside]], weights=work)
        host = model.events.gap[rows] + model.events.dur[rows]
        merge(model, events, number, LOOP_HOST[level], LOOP_OPS[level] * work[np.unique(number)])
        heads = rows[runs(number)]
        first = host[runs(number)]
        kept = np.rint(LOOP_HOST[level] * first).astype(np.int64)
        model.events.gap[heads], model.events.dur[heads] = kept, LOOP_NS

    return edit
