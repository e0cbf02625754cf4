"""Overlap of a whole run: classes of work, streams and paths."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import counts, sums
from nvprobe.analysis.model import Steps
from nvprobe.analysis.overlap.combinations import (
    Combinations,
    Crowd,
    Pairs,
    alone_time,
    by_device,
    by_path,
    by_step,
    shared_time,
)
from nvprobe.analysis.steps import step_at
from nvprobe.analysis.timelines import Streams
from nvprobe.attribution.intervals import merged
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, column


@dataclass(frozen=True, slots=True)
class StreamUse(Table):
    """One row per stream, as in ``Streams``."""

    ops: Column = column("i8")
    busy_ns: Column = column("i8")
    """Length of the union of its ops."""
    alone_ns: Column = column("i8")
    """Of it, the time in which no other stream of its device ran."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What ran beside what. Combinations of the devices add up to their busy time."""

    devices: Combinations
    """Group: row of the device + 1, 0 where the source names none."""
    steps: Combinations
    """Group: row of the steps."""
    paths: Combinations
    """Group: path row; inclusive."""
    streams: StreamUse
    stream_pairs: Pairs
    """Members: rows of ``Streams``; pairs that never met are not in it."""
    path_pairs: Pairs
    """Members: path rows (the very owner paths, not those above them); -1 for ops without one."""


def overlap(
    attribution: Attribution, crowd: Crowd, work: Column, lanes: Streams, steps: Steps
) -> Overlap:
    """Measure what overlapped."""
    ops = attribution.trace.ops
    rows = crowd.row
    device, start, end = ops.device[rows] + 1, ops.start[rows], ops.end[rows]
    pairs = shared_time(device, attribution.owner[rows] + 1, start, end)
    return Overlap(
        devices=by_device(attribution, crowd, work),
        steps=by_step(attribution, crowd, work, _steps_of_ops(attribution, steps)),
        paths=by_path(attribution, crowd, work),
        streams=_stream_use(attribution, crowd, lanes),
        stream_pairs=shared_time(device, lanes.of_op[rows], start, end),
        path_pairs=dataclasses.replace(pairs, first=pairs.first - 1, second=pairs.second - 1),
    )


def _steps_of_ops(attribution: Attribution, steps: Steps) -> Column:
    """Row of the step in which each op was called for, -1 for none."""
    ops, calls = attribution.trace.ops, attribution.trace.calls
    step = np.full(len(ops), NO_ROW, np.int64)
    called = np.flatnonzero(attribution.call != NO_ROW)
    if len(steps):
        time = calls.start[attribution.call[called]]
        step[called] = step_at(steps, ops.process[called], time)
    return step


def _stream_use(attribution: Attribution, crowd: Crowd, lanes: Streams) -> StreamUse:
    ops = attribution.trace.ops
    size, rows = len(lanes.stream), crowd.row
    single = sums(lanes.of_op[crowd.alone], attribution.duration[crowd.alone], size)
    lane = lanes.of_op[rows]
    code, start, end = merged(lane, ops.start[rows], ops.end[rows])
    alone = np.zeros(size, np.int64)
    some = alone_time(ops.device[rows] + 1, lane, ops.start[rows], ops.end[rows])
    alone[: len(some)] = some
    return StreamUse(
        ops=counts(lanes.of_op, size),
        busy_ns=single + sums(code, end - start, size),
        alone_ns=single + alone,
    )
