"""Changes of what the GPU does: precision, fusion, layout, exposed work."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.changes import drop_ops, ops_of, own_stream, scale
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import NEVER, NOTHING, EventKind, Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.attribution.intervals import runs
from nvprobe.trace import Column

REACHED = 0.65
"""Of the ratio of two peaks, what products of usual size gain."""
SURE_GAIN = 2.5
ATTENTION = {Level.LOW: 0.5, Level.MID: 0.12, Level.HIGH: 0.04}
"""What remains of an attention's kernels in a fused one."""
FUSED_HOST = 0.3
DISPATCH_NS = 100_000
"""Dispatching one operator takes no longer; the rest of a gap is something else."""
NORM = {Level.LOW: 1.0, Level.MID: 0.5, Level.HIGH: 0.25}
"""What remains of norms and pools in the layout that the convolutions use."""


def other_precision(ops: Column, gain: float, casts: Column | None = None) -> Edit:
    """Products ``gain`` times faster at their peak; conversions (bool per op) go with them."""
    factor = {
        Level.LOW: max(1 / SURE_GAIN, 1 / gain),
        Level.MID: max(1 / (REACHED * gain), 1 / gain) if gain > 1 else 1.0,
        Level.HIGH: 1 / gain,
    }

    def edit(model: Model, level: Level) -> None:
        scale(model, ops, min(factor[level], 1.0))
        if casts is not None:
            scale(model, casts, 0.5 if level == Level.LOW else 0.0)

    return edit


def sdpa(sample: Sample, ops: Column) -> Edit:
    """Each run of ``ops`` (bool per op), an attention, in one kernel and one launch."""
    chain = _chains(sample, ops)
    rows = np.flatnonzero(chain >= 0)
    heads = rows[runs(chain[rows])] if len(rows) else rows
    events = np.setdiff1d(sample.model.ops.event[rows], sample.model.ops.event[heads])

    def edit(model: Model, level: Level) -> None:
        scale(model, ops, ATTENTION[level])
        if level != Level.LOW:
            model.events.dur[events] = 0
            _spare_dispatch(model, events)

    return edit


def scaled(ops: Column, remains: float) -> Edit:
    """Ops of which at best ``remains`` is left; nothing of it is sure."""
    factor = {Level.LOW: 1.0, Level.MID: (1 + remains) / 2, Level.HIGH: remains}

    def edit(model: Model, level: Level) -> None:
        scale(model, ops, factor[level])

    return edit


def remaining(ops: Column, shares: tuple[float, float, float]) -> Edit:
    """Ops of which these shares are left, level by level; of none of them a launch is left."""

    def edit(model: Model, level: Level) -> None:
        scale(model, ops, shares[level])
        if not shares[level]:
            drop_ops(model, ops)
            gone = np.unique(model.ops.event[ops])
            model.events.dur[gone] = 0
            _spare_dispatch(model, gone)

    return edit


def fewer_conversions(conversions: Column, around: Column) -> Edit:
    """Tensors in the layout that convolutions use: no conversions, faster kernels around them."""

    def edit(model: Model, level: Level) -> None:
        scale(model, conversions, 0.0)
        scale(model, around, NORM[level])

    return edit


def fewer_casts(shortest: Column, longest: Column, gradients: Column) -> Edit:
    """Casts that are kept instead of made again. Bools per event; high: no casts of gradients."""

    def edit(model: Model, level: Level) -> None:
        gone = shortest if level == Level.LOW else longest
        if level == Level.HIGH:
            gone = gone | gradients
        drop_ops(model, ops_of(model, gone))
        model.events.dur[gone] = 0
        if level != Level.LOW:
            _spare_dispatch(model, gone)

    return edit


def fuse_chains(sample: Sample, ops: Column) -> Edit:
    """Each run of consecutive ``ops`` (bool per op) as one kernel: its longest."""
    chain = _chains(sample, ops)
    rows = np.flatnonzero(chain >= 0)

    def edit(model: Model, level: Level) -> None:
        if not len(rows):
            return
        dur, code = model.ops.dur[rows], chain[rows]
        heads = runs(code)
        longest, total = np.maximum.reduceat(dur, heads), np.add.reduceat(dur, heads)
        share = {Level.LOW: 0.4 * (total - longest), Level.MID: 0.0, Level.HIGH: -0.5 * longest}
        model.ops.dur[rows], model.ops.gap[rows] = 0, 0
        model.ops.dur[rows[heads]] = np.rint(longest + share[level]).astype(np.int64)
        model.ops.gap[rows[heads]] = model.ops.gap[rows[heads]] + sample.captured.edges.typical_gap
        rest = np.setdiff1d(rows, rows[heads])
        model.ops.lat[rest] = NEVER
        events = np.setdiff1d(model.ops.event[rest], model.ops.event[rows[heads]])
        model.events.dur[events] = 0
        _spare_dispatch(model, events)

    return edit


def _spare_dispatch(model: Model, events: Column) -> None:
    """Shorten the host time before ``events`` (rows or bools), which are dispatched no more."""
    gap = model.events.gap[events]
    spared = (1 - FUSED_HOST) * np.minimum(gap, DISPATCH_NS)
    model.events.gap[events] = np.rint(gap - spared).astype(np.int64)


def _chains(sample: Sample, ops: Column) -> Column:
    """Per op the number of its run of neighbors on a stream, -1 for none.

    A run ends where the host waits in between: no kernel spans that.
    """
    o, e = sample.model.ops, sample.model.events
    waits = np.cumsum((e.awaits != NOTHING) | (e.kind == EventKind.STEP))[o.event]
    out = np.full(len(o), -1)
    count = 0
    for stream in np.unique(o.stream).tolist():
        mine = np.flatnonzero(o.stream == stream)
        inside = ops[mine]
        new = inside & np.append(True, ~inside[:-1] | (waits[mine][1:] != waits[mine][:-1]))
        number = np.cumsum(new) - 1 + count
        out[mine[inside]] = number[inside]
        count += int(new.sum())
    return out


def hide(ops: Column, share: Column) -> Edit:
    """Work that could run beside other work, as if nothing waited for it. Nothing is sure.

    ``share`` per op: what of it can be hidden; below 1, the rest waits for another rank and stays.
    """

    def edit(model: Model, level: Level) -> None:
        if level == Level.LOW:
            return
        if level == Level.MID:
            scale(model, ops, 1 - share[ops] / 2)
            return
        whole = ops & (share >= 1)
        scale(model, ops & ~whole, 1 - share[ops & ~whole])
        own_stream(model, whole)

    return edit
