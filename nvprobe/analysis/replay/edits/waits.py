"""Changes of what the host waits for: synchronizations, uploads, allocations, data, pauses."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.changes import drop, merge, ops_of, own_stream, scale, unwait
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import NOTHING, EventKind, Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.trace import Column, Ops

DEVICE_TO_HOST = 2
PINNED_BYTES_NS, SLOWEST_BYTES_NS, COPY_NS = 45.0, 12.0, 1_500
"""Rates of copies from pinned memory on a current bus and on the slowest, and what each costs."""
DATA_WORKERS = {Level.LOW: 2, Level.MID: 8}
READY_NS = 20_000
"""The host takes a batch that is ready."""
INPUT_GAP_NS = 50_000
PAUSE_NS = 100_000
DISPATCH_NS = 100_000
"""Sending one tensor takes the host no longer; the rest of a gap is something else."""
TURNS = 4
"""So many selections close together are turns of a loop."""
SELDOM = {Level.LOW: 1.0, Level.MID: 0.1, Level.HIGH: 0.0}
"""Of the steps, those in which something is done that is not needed in each."""
BESIDE = 0.2
"""A copy takes this much of its time from what runs beside it."""


def remove_sync(sample: Sample, events: Column) -> Edit:
    """Synchronizations that go. Low: the last of each step has to stay. High: with the read.

    Of values that are read in a row one copy reads all. Low: half of the work around each remains.
    """
    last = _last_of_steps(sample, events)
    reads = _reads_before(sample, events) | events
    others = _others_of_rows(sample, events)

    def edit(model: Model, level: Level) -> None:
        unwait(model, events & ~last if level == Level.LOW else events)
        if level == Level.HIGH:
            drop(model, reads)
        else:
            _read_at_once(model, others, 0.5 if level == Level.LOW else 0.0)

    return edit


def reads_in_a_row(sample: Sample, events: Column) -> Column:
    """Per event the number of its row of values that are read one by one, -1.

    ``events``: waits. Nothing is launched between the reads of a row, so what the last one reads
    was there at the first: a loop in Python picks values out of a tensor.
    """
    copies = _reads_before(sample, events)
    launching = sample.model.op_end() > sample.model.events.first_op
    reading = _copying_to_host(sample)
    barrier = (launching & ~reading) | (sample.model.events.kind == EventKind.STEP)
    number = np.cumsum(barrier)
    values = events & (reading | np.append(False, copies[:-1]))
    count = np.bincount(number[values], minlength=int(number.max(initial=0)) + 1)
    mine = (values | copies) & (count[number] >= TURNS)
    return np.where(mine, number, NOTHING)


def _others_of_rows(sample: Sample, events: Column) -> Column:
    """Bool per event: of a row of reads, but not the last one, which can read all values."""
    row = reads_in_a_row(sample, events)
    rows = np.flatnonzero((row != NOTHING) & events)
    stay = np.zeros(len(events), bool)
    stay[rows[np.flatnonzero(np.diff(row[rows], append=NOTHING))]] = True
    stay |= _reads_before(sample, stay)
    return np.asarray((row != NOTHING) & ~stay)


def _read_at_once(model: Model, others: Column, share: float) -> None:
    """Reads that another one does as well. ``share``: what remains of the work around each."""
    e = model.events
    other = np.maximum(e.gap[others] - DISPATCH_NS, 0)
    gap, dur = e.gap[others] - other, e.dur[others].copy()
    drop(model, others)
    e.gap[others] = other + np.rint(share * gap).astype(np.int64)
    e.dur[others] = np.rint(share * dur).astype(np.int64)


def without_selection(
    sample: Sample, events: Column, selecting: Column, adding: Column, product_ns: int
) -> Edit:
    """Masks instead of selections: the read, the wait and the selecting kernels go.

    ``selecting``: bool per event, launches of kernels that count or find the selected rows.
    ``adding``: bool per op, kernels that add gradients to these rows; one that multiplies by the
    mask takes ``product_ns`` at most. Low: only the waits go. High: turns of a loop become one.
    """
    gone = _reads_before(sample, events) | events | selecting
    turns = gone | _turns(sample, events)

    def edit(model: Model, level: Level) -> None:
        if level == Level.LOW:
            unwait(model, events)
            return
        dur = model.ops.dur
        dur[adding] = np.minimum(dur[adding], product_ns)
        drop(model, turns if level == Level.HIGH else gone)

    return edit


def _turns(sample: Sample, events: Column) -> Column:
    """Bool per event: between the first and the last of several ``events`` that follow closely."""
    out, rows = np.zeros(len(events), bool), np.flatnonzero(events)
    if len(rows) < TURNS:
        return out
    distance = np.diff(rows)
    close = (distance <= 2 * np.median(distance)) & (np.diff(sample.step[rows]) == 0)
    for run in np.split(rows, np.flatnonzero(~close) + 1):
        if len(run) >= TURNS:
            out[run[0] : run[-1]] = True
    return out


def less_often(sample: Sample, events: Column) -> Edit:
    """What is done in every step, once in a few: with all that the host does for it.

    Low: it is needed in each. Mid: in every tenth. High: hardly ever. A wait right after it is the
    one for its result.
    """
    near = np.append(False, events[:-1]) | np.append([False] * 2, events[:-2])[: len(events)]
    waits = near & ~events & (sample.model.events.awaits != NOTHING)
    whole = events | waits | (_reads_before(sample, waits) & near)

    def edit(model: Model, level: Level) -> None:
        share, e, ops = SELDOM[level], model.events, ops_of(model, whole)
        if level != Level.LOW:
            unwait(model, whole)
        scale(model, ops, share)
        model.ops.gap[ops] = np.rint(share * model.ops.gap[ops]).astype(np.int64)
        e.gap[whole] = np.rint(share * e.gap[whole]).astype(np.int64)
        e.dur[whole] = np.rint(share * e.dur[whole]).astype(np.int64)

    return edit


def _last_of_steps(sample: Sample, events: Column) -> Column:
    rows = np.flatnonzero(events)
    last = np.zeros(len(events), bool)
    if len(rows):
        step = sample.step[rows]
        last[rows[np.append(step[1:] != step[:-1], True)]] = True
    return last


def _reads_before(sample: Sample, events: Column) -> Column:
    """The copies to the host that come right before ``events`` (bool per event)."""
    return np.append(_copying_to_host(sample)[:-1] & events[1:], False)


def _copying_to_host(sample: Sample) -> Column:
    """Bool per event: it launches a copy to the host."""
    reads = np.zeros(len(sample.events), bool)
    to_host = _ops(sample).copy_kind[sample.op] == DEVICE_TO_HOST
    reads[sample.model.ops.event[to_host]] = True
    return reads


def _ops(sample: Sample) -> Ops:
    ops = sample.attribution.trace.ops
    assert ops is not None
    return ops


def async_upload(sample: Sample, ops: Column) -> Edit:
    """Uploads from pinned memory that nobody waits for. ``ops``: bool per op."""
    events = _events(sample, ops)
    size = _ops(sample).bytes[sample.op[ops]]

    def edit(model: Model, level: Level) -> None:
        unwait(model, events)
        if level == Level.HIGH:
            model.ops.dur[ops] = 0
        else:
            rate = SLOWEST_BYTES_NS if level == Level.LOW else PINNED_BYTES_NS
            pinned = np.rint(size / rate + COPY_NS).astype(np.int64)
            model.ops.dur[ops] = np.minimum(model.ops.dur[ops], pinned)

    return edit


def merge_uploads(sample: Sample, ops: Column) -> Edit:
    """Small uploads with no read between them in one. Low: half of the work around each remains.

    What the host does before an upload beyond sending it is something else, and remains.
    """
    events = _events(sample, ops)
    stretch = between_reads(sample)[events]
    size = np.zeros(len(events))
    np.add.at(size, sample.model.ops.event[ops], _ops(sample).bytes[sample.op[ops]])
    _, place = np.unique(stretch, return_inverse=True)
    total = np.bincount(place, weights=size[events]) / PINNED_BYTES_NS + COPY_NS

    def edit(model: Model, level: Level) -> None:
        gap = model.events.gap
        other = np.where(events, np.maximum(gap - DISPATCH_NS, 0), 0)
        gap -= other
        unwait(model, events)
        merge(model, events, stretch, 0.5 if level == Level.LOW else 0.0, total)
        gap += other

    return edit


def between_reads(sample: Sample) -> Column:
    """A number per event: the same from one step's begin, or wait for a read, to the next one.

    What is sent after a value was read may depend on it.
    """
    e, read = sample.model.events, _copying_to_host(sample)
    waits = (e.awaits != NOTHING) & (read | np.append(False, read[:-1]))
    return np.cumsum(waits | (e.kind == EventKind.STEP))


def overlap_upload(sample: Sample, ops: Column) -> Edit:
    """Uploads on a stream of their own, a step ahead, beside compute that they slow down a little.

    Low: half of each copy stays in the way.
    """
    compute = ~ops & (sample.model.ops.dur > 0)

    def edit(model: Model, level: Level) -> None:
        copied = model.ops.dur[ops]
        if level == Level.LOW:
            scale(model, ops, 0.5)
            return
        busy = int(model.ops.dur[compute].sum())
        unwait(model, _events(sample, ops))
        model.ops.dep[ops] = NOTHING
        own_stream(model, ops)
        if busy:
            scale(model, compute, 1 + BESIDE * float(copied.sum()) / busy)

    return edit


def _events(sample: Sample, ops: Column) -> Column:
    """Bool per event: it launched one of ``ops``."""
    out = np.zeros(len(sample.events), bool)
    out[sample.model.ops.event[ops]] = True
    return out


def allocator(sample: Sample, events: Column) -> Edit:
    """Memory that stays with the allocator: no call, no wait. Low: half of their time."""

    def edit(model: Model, level: Level) -> None:
        unwait(model, events)
        model.events.dur[events] //= 2 if level == Level.LOW else 1
        if level != Level.LOW:
            model.events.dur[events] = 0

    return edit


def input_wait(sample: Sample) -> Edit:
    """Batches made by workers ahead of time; a step takes at least as long as they do.

    Low: two workers; mid: eight; high: as many as it takes.
    """

    def edit(model: Model, level: Level) -> None:
        waited = sample.waited_in(model)
        waited[waited <= INPUT_GAP_NS] = 0
        ready = np.where(waited > 0, READY_NS, 0)
        model.events.gap[:] = np.rint(model.events.gap - waited + ready).astype(np.int64)
        workers = DATA_WORKERS.get(level)
        floor = round(float(waited.sum()) / sample.steps / workers) if workers else 0
        model.floor = max(model.floor, floor)

    return edit


def without_work(spent: Column) -> Edit:
    """Host work that goes, ``spent`` ns of the gap before each event. Low: half of it stays."""

    def edit(model: Model, level: Level) -> None:
        gap, gone = model.events.gap, spent // 2 if level == Level.LOW else spent
        gap[:] = np.maximum(gap - gone, 0)

    return edit


def shorten_gaps(events: Column, calls: bool = False, sure: bool = False) -> Edit:
    """Host work before ``events`` that goes; ``calls``: and their own time.

    Low: all of it stays, unless ``sure``. Mid: a tenth of a millisecond each.
    """

    def edit(model: Model, level: Level) -> None:
        if level == Level.LOW and not sure:
            return
        e = model.events
        rest = 0 if level == Level.HIGH else PAUSE_NS
        e.gap[events] = np.minimum(e.gap[events], rest)
        if calls:
            own = events & np.isin(e.kind, (EventKind.OTHER, EventKind.ALLOCATION))
            e.dur[own] = np.minimum(e.dur[own], rest)

    return edit
