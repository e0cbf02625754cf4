"""Ops in the order in which each device ran them, and which of them ran alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.coverage import Coverage
from nvprobe.attribution.intervals import merged, running_max, runs, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["DeviceOrder", "alone", "device_busy", "device_order", "left_out"]


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
