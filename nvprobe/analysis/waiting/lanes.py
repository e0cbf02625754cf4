"""Instants sorted by lane (a thread, a process) and the ones that fall into given stretches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.coverage import by_group
from nvprobe.attribution.intervals import sorted_by
from nvprobe.trace import Column

__all__ = ["Lanes", "expand", "firsts"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Instants by lane and time."""

    first: Column
    """int64 of shape (lanes + 1,): instants of lane L are ``first[L] … first[L + 1]``."""
    time: Column

    @classmethod
    def of(cls, lane: Column, time: Column, lanes: int) -> Lanes:
        """Sort instants into ``lanes`` lanes; those of lane -1 are left out."""
        known = lane >= 0
        lane, time = lane[known], time[known]
        order = sorted_by(lane, time)
        return cls(np.searchsorted(lane[order], np.arange(lanes + 1)), time[order])

    def count_before(self, lane: Column, time: Column, side: str = "left") -> Column:
        """Position behind the lane's instants before ``time`` (``right``: up to ``time``)."""
        out = np.zeros(len(lane), np.int64)
        for code, rows in by_group(lane):
            low, high = self.first[code], self.first[code + 1]
            out[rows] = low + np.searchsorted(self.time[low:high], time[rows], side)  # type: ignore[call-overload]
        return out


def expand(low: Column, high: Column) -> tuple[Column, Column]:
    """(row, position) of every position in ``low … high - 1`` of each row."""
    count = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(count)), count)
    begin = np.cumsum(count) - count
    return row, np.arange(len(row)) - begin[row] + low[row]


def firsts(lane: Column, other: Column) -> Column:
    """Where each lane's rows begin in a column sorted by lane, for all lanes of both columns."""
    lanes = int(max(lane.max(initial=0), other.max(initial=0))) + 1
    return np.searchsorted(lane, np.arange(lanes + 1))
