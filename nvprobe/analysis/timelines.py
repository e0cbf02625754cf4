"""Ops in order: by device and start, by stream, and by the thread or process that called for them.

Ops in the order in which threads (or processes) called for them.

A range instance owns the ops whose call starts inside it on its thread, and, on an initiating
thread, those that autograd threads of the process called for meanwhile (rules 1 and 2 of
docs/attribution.md). Sorted by call time these are one slice of the thread's ops, whatever the
nesting: every quantity of an instance is a reduction of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.intervals import (
    Coverage,
    Instants,
    merged,
    running_max,
    runs,
    sorted_by,
)
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, OpKind


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams by (process, device, stream id): stream 7 of two processes is two streams."""

    process: Column
    device: Column
    """Row of the device, -1 where the source names none."""
    stream: Column
    """Stream id as recorded."""
    of_op: Column
    """int64 row of these columns per op of the trace."""

    def find(self, process: Column, device: Column, stream: Column) -> Column:
        """Row of each given stream, -1 where it ran nothing."""
        code = _codes(
            np.concatenate((self.process, process)),
            np.concatenate((self.device, device)),
            np.concatenate((self.stream, stream)),
        )
        row = code[len(self.stream) :]  # our rows are distinct and come first: they number 0, 1, …
        return np.where(row < len(self.stream), row, NO_ROW)


def streams(attribution: Attribution) -> Streams:
    """Number the streams of a trace, in order of their first op."""
    ops = attribution.trace.ops
    code = _codes(ops.process, ops.device, ops.stream)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    return Streams(ops.process[first], ops.device[first], ops.stream[first], of_op=code)


def _codes(process: Column, device: Column, stream: Column) -> Column:
    """Dense int64 codes of (process, device, stream), in order of appearance."""
    _, number = distinct(stream)
    _, place = distinct(process.astype(np.int64) << 32 | device.astype(np.int64) + 1)
    _, code = distinct(place.astype(np.int64) << 32 | number)
    return code.astype(np.int64)


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The ops with possible times, by device and start."""

    row: Column
    """Row of ``trace.ops``."""
    device: Column
    """Row of the device, -1 where the source names none."""
    start: Column
    end: Column
    reach: Column
    """The latest end among the device's ops up to this one."""

    @property
    def alone(self) -> Column:
        """Bool: the op overlaps no other op of its device."""
        return _free_of(self.device, self.start, self.reach)


def device_order(attribution: Attribution) -> DeviceOrder:
    """Sort the ops of a trace."""
    ops = attribution.trace.ops
    row = np.flatnonzero(attribution.valid)
    row = row[sorted_by(ops.device[row] + 1, ops.start[row])]
    device, end = ops.device[row], ops.end[row]
    return DeviceOrder(row, device, ops.start[row], end, running_max(device, end))


def device_busy(order: DeviceOrder, devices: int) -> Coverage:
    """When each device works; group ``row + 1``, group 0 for ops whose device is unknown."""
    device, start, reach = order.device, order.start, order.reach
    if not len(device):
        return Coverage.of(device, start, start, devices + 1)
    opens = np.append(True, (device[1:] != device[:-1]) | (start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(device)) - 1
    return Coverage.of_disjoint(device[first] + 1, start[first], reach[last], devices + 1)


def left_out(attribution: Attribution) -> tuple[Column, Column, Column]:
    """(row of the device + 1, start, end): when ops ran that a selection leaves out, merged.

    A device that works for them is not idle, whatever else of the selection waits.
    """
    whole = attribution.whole
    if attribution.unfiltered is None:
        return (np.empty(0, np.int64),) * 3
    ops = whole.trace.ops.take(~attribution.unfiltered.ops & whole.valid)
    return merged(ops.device + 1, ops.start, ops.end)


def alone(device: Column, start: Column, end: Column) -> Column:
    """Bool per op, sorted by device and start: it overlaps no other op of its device."""
    return _free_of(device, start, running_max(device, end))


def _free_of(device: Column, start: Column, reach: Column) -> Column:
    if not len(device):
        return np.empty(0, bool)
    free = np.zeros(len(device) + 1, bool)  # nothing crosses the border before op i
    free[runs(device)] = True
    free[-1] = True
    free[1:-1] |= start[1:] >= reach[:-1]
    return free[:-1] & free[1:]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Ops by lane (a thread or a process), then by the start of their call."""

    op: Column
    """int64 row of ``trace.ops``."""
    time: Column
    """int64 start of the op's call."""
    first: Column
    """int64 of shape (lanes + 1,): ops of lane L are ``first[L] … first[L + 1]``."""

    def slices(self, lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
        """[low, high) of the ops that lane L called for in [start, end), interval by interval."""
        low, high = np.zeros(len(lane), np.int64), np.zeros(len(lane), np.int64)
        for here, first, last in self._lanes(lane):
            time = self.time[first:last]
            low[here] = first + np.searchsorted(time, start[here], "left")
            high[here] = first + np.searchsorted(time, end[here], "left")
        return low, np.maximum(low, high)

    def _lanes(self, lane: Column) -> list[tuple[Column, int, int]]:
        """(intervals, first op, end of ops) of each lane that has both."""
        order = np.argsort(lane, kind="stable")
        bounds = np.searchsorted(lane[order], np.arange(len(self.first)))
        out = []
        for number in np.flatnonzero((self.first[1:] > self.first[:-1]) & (np.diff(bounds) > 0)):
            here = order[bounds[number] : bounds[number + 1]]
            out.append((here, int(self.first[number]), int(self.first[number + 1])))
        return out


def thread_timeline(attribution: Attribution) -> Timeline:
    """Each thread's ops; the initiating thread's with those of its autograd threads."""
    trace = attribution.trace
    op, thread, time = _called(attribution)
    initiating = attribution.initiating[trace.threads.process[thread]]
    lent = np.flatnonzero(attribution.autograd[thread] & (initiating != NO_ROW))
    return _timeline(
        np.concatenate((op, op[lent])),
        np.concatenate((thread, initiating[lent])),
        np.concatenate((time, time[lent])),
        len(trace.threads),
    )


def process_timeline(attribution: Attribution) -> Timeline:
    """Each process's ops, whatever thread called for them."""
    op, thread, time = _called(attribution)
    trace = attribution.trace
    return _timeline(op, trace.threads.process[thread], time, len(trace.processes))


def _called(attribution: Attribution) -> tuple[Column, Column, Column]:
    """(op, thread, time) of the ops that have a call."""
    calls = attribution.trace.calls
    op = np.flatnonzero(attribution.call != NO_ROW)
    call = attribution.call[op]
    return op, calls.thread[call], calls.start[call]


def _timeline(op: Column, lane: Column, time: Column, lanes: int) -> Timeline:
    order = sorted_by(lane, time)
    first = np.searchsorted(lane[order], np.arange(lanes + 1))
    return Timeline(op=op[order], time=time[order], first=first)


def launches_kernels(attribution: Attribution, some: Column) -> Column:
    """Bool for each of some rows of ranges: a kernel was launched inside it, on its own thread."""
    trace, ranges = attribution.trace, attribution.trace.ranges
    if not len(some):
        return np.zeros(0, bool)
    rows = np.flatnonzero((trace.ops.kind == OpKind.KERNEL) & (attribution.call != NO_ROW))
    call = attribution.call[rows]
    calls = Instants.of(trace.calls.thread[call], trace.calls.start[call], len(trace.threads))
    thread, start = ranges.thread[some], ranges.start[some]
    before = calls.count_before(thread, start)
    return calls.count_before(thread, np.maximum(attribution.tree.end[some], start)) > before
