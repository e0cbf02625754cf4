"""A few steps that stand for the loop, and what is known of each of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nvprobe.analysis.replay.build import Captured
from nvprobe.analysis.replay.calls import Recorded
from nvprobe.analysis.replay.model import EventKind, Model
from nvprobe.analysis.replay.run import replay_cost
from nvprobe.analysis.waiting.host_time import thread_lanes
from nvprobe.attribution.intervals import Coverage
from nvprobe.attribution.kinds import CATEGORY_KINDS, RangeRole, range_roles
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import NO_NAME, NO_ROW, Column, RangeSource, Trace

STEPS, LEAST_STEPS = 4, 2
"""Neighboring steps that are replayed; the first only fills the queue."""
SHORT = 8_000
"""Steps that cost more than this to replay are two, and one model decides the order of changes."""
_MODULES = {name for name, kind in CATEGORY_KINDS.items() if kind == Kind.MODULE}


@dataclass(frozen=True, slots=True)
class Records:
    """What the profiler recorded in the gap before each event and in the event itself."""

    ranges: Column
    modules: Column
    operators: Column
    marks: Column


@dataclass(frozen=True)
class Sample:
    """The model of a few steps, with where its rows come from."""

    attribution: Attribution
    model: Model
    events: Recorded
    op: Column
    """Row of ``trace.ops`` per op."""
    captured: Captured

    @cached_property
    def path(self) -> Column:
        """Path open when each event begins, -1."""
        return self.attribution.open.at(self.events.thread, self.events.begin)

    @cached_property
    def gap_path(self) -> Column:
        """Path open half-way through the gap before each event, -1."""
        middle = self.events.begin - self.events.gap // 2
        return self.attribution.open.at(self.events.thread, middle)

    @cached_property
    def input_ns(self) -> Column:
        """Per event: how much of the gap before it lies in ranges that wait for data."""
        return self.gap_within(*self.captured.inputs)

    def waited_in(self, model: Model) -> Column:
        """Per event: how much of its gap waits for data in a model of these steps."""
        waited = self.input_ns if model.waited is None else model.waited
        return np.minimum(waited, model.events.gap)

    def gap_within(self, thread: Column, start: Column, end: Column) -> Column:
        """Per event: how much of the gap before it lies in some intervals of threads."""
        lane_of = thread_lanes(self.attribution)
        inside = Coverage.of(lane_of[thread], start, end, len(lane_of))
        e = self.events
        within = inside.between(lane_of[e.thread], e.begin - e.gap, e.begin)
        return np.minimum(within, self.model.events.gap)

    @cached_property
    def compiling_gap(self) -> Column:
        """Bool per event: the gap before it lies in a range of compilation."""
        paths = self.attribution.paths
        inside = range_roles(paths.names)[paths.name] == RangeRole.COMPILATION
        for depth in range(1, int(paths.depth.max(initial=0)) + 1):
            rows = np.flatnonzero(paths.depth == depth)
            inside[rows] |= inside[paths.parent[rows]]
        return np.append(inside, False)[self.gap_path]

    @cached_property
    def is_long(self) -> bool:
        """Whether replays of it take so long that few are made."""
        return replay_cost(self.model) > SHORT

    @cached_property
    def step(self) -> Column:
        """Step of each event, from 0."""
        return np.cumsum(self.model.events.kind == EventKind.STEP) - 1

    @cached_property
    def records(self) -> Records:
        """Counts of the profiler's own records, per event."""
        trace, e = self.attribution.trace, self.events
        lane_of = thread_lanes(self.attribution)
        counts = {name: np.zeros(len(e), np.int64) for name in Records.__slots__}
        for lane in np.unique(e.lane).tolist():
            rows = np.flatnonzero(e.lane == lane)
            thread = int(lane_of[e.thread[rows[0]]])
            for name, times in _times(trace, lane_of == thread).items():
                until = np.searchsorted(times, e.end[rows])
                since = np.searchsorted(times, e.begin[rows[:1]] - e.gap[rows[:1]])
                counts[name][rows] = np.diff(np.append(since, until))
        return Records(**counts)

    @property
    def steps(self) -> int:
        """Whole steps in it."""
        return len(self.model.borders) - 1


def sample(attribution: Attribution, captured: Captured) -> Sample:
    """The neighboring steps that together are nearest to the median step."""
    lengths = np.diff(captured.completion())
    far = np.abs(lengths - np.median(lengths[1:]))
    low, count = usual_steps(far, [captured.model])
    return sample_of(attribution, captured, low, count)


def usual_steps(far: Column, models: Sequence[Model]) -> tuple[int, int]:
    """(first, number) of the neighboring steps of models that are least ``far`` from usual ones."""
    long = any(STEPS * replay_cost(one) > SHORT * (len(one.borders) - 1) for one in models)
    count = min(LEAST_STEPS if long else STEPS, len(far))
    sums = np.convolve(far, np.ones(max(count - 1, 1)), "valid")[1:]
    low = int(np.argmin(sums)) if len(sums) else 0
    return min(low, len(far) - count), count


def sample_of(attribution: Attribution, captured: Captured, low: int, count: int) -> Sample:
    """``count`` steps from step ``low`` on."""
    borders = captured.model.borders
    first, last = int(borders[low]), int(borders[low + count])
    events = captured.events.take(np.arange(first, last + 1))
    ops = captured.model.events.first_op
    return Sample(
        attribution,
        captured.model.section(low, low + count, captured.events.begin),
        events,
        captured.op[int(ops[first]) : int(ops[last])],
        captured,
    )


def _times(trace: Trace, threads: Column) -> dict[str, Column]:
    """When the records of some threads were made, each kind apart and sorted."""
    out: dict[str, Column] = {}
    if (ranges := trace.ranges) is not None:
        mine = threads[ranges.thread]
        module = np.isin(ranges.category, _rows(trace, _MODULES)) & (ranges.category != NO_NAME)
        operator = ranges.source == RangeSource.OPERATOR
        written = np.isin(ranges.source, (RangeSource.NVTX, RangeSource.ANNOTATION))
        out["operators"] = ranges.start[mine & operator]
        out["modules"] = ranges.start[mine & module & written]
        out["ranges"] = ranges.start[mine & written & ~module]
    if (marks := trace.marks) is not None:
        known = marks.thread != NO_ROW
        out["marks"] = marks.time[known & threads[marks.thread]]
    # Records of a thread are nearly in order: stable sorts are linear.
    return {name: np.sort(times, kind="stable") for name, times in out.items()}


def _rows(trace: Trace, texts: set[str]) -> Column:
    """Rows of the trace's strings that categories use and that are one of ``texts``."""
    assert trace.ranges is not None
    used = np.unique(trace.ranges.category)
    used = used[used != NO_NAME]
    known = trace.texts(used)
    return used[[text in texts for text in known]] if len(used) else used
