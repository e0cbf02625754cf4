"""Gaps cut into pieces wherever something begins or ends that a charge depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.waiting.gaps import Gaps
from nvprobe.attribution.intervals import sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting
from nvprobe.trace import NO_ROW, Column

__all__ = ["Pieces", "borders", "borders_of_ranges", "cut", "ends"]

Cut = tuple[Column, Column]
"""(row of the gaps, time) of instants at which to cut; those outside their gap cut nothing."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Gaps cut where charges change: one thread, path, step and side of the call in each."""

    gap: Column
    """Row of the gaps."""
    start: Column
    end: Column

    @property
    def length(self) -> Column:
        """ns of each piece."""
        return self.end - self.start

    def rows(self, low: int, high: int) -> Pieces:
        """Pieces ``low … high - 1``."""
        return Pieces(self.gap[low:high], self.start[low:high], self.end[low:high])


def cut(gaps: Gaps, cuts: Iterable[Cut]) -> Pieces:
    """Cut every gap at the given instants."""
    gap, time = (np.concatenate(column) for column in zip(*cuts, strict=True))
    inside = (time > gaps.start[gap]) & (time < gaps.end[gap])
    gap, time = gap[inside], time[inside]
    # Gaps of one device are disjoint and sorted: by device and time is by gap and time.
    order = sorted_by(gaps.device[gap] + 1, time)
    return _inserted(gaps, gap[order], time[order])


def _inserted(gaps: Gaps, gap: Column, time: Column) -> Pieces:
    """Cut gaps at sorted instants inside them: gap starts and cuts, merged by counting."""
    count = np.bincount(gap, minlength=len(gaps))
    first = np.arange(len(gaps)) + np.cumsum(count) - count
    place = np.arange(len(gap)) + gap + 1
    start = np.empty(len(gaps) + len(gap), np.int64)
    start[first], start[place] = gaps.start, time
    of = np.repeat(np.arange(len(gaps)), count + 1)
    end = np.append(start[1:], 0)
    end[first + count] = gaps.end
    filled = end > start
    return Pieces(of[filled], start[filled], end[filled])


def borders_of_ranges(attribution: Attribution, gaps: Gaps) -> Iterator[Cut]:
    """(gap, time) of every begin and end of a range on the gap's thread (rules 1 and 2)."""
    head = np.full(len(gaps), NO_ROW, np.int32)
    inherits = (gaps.thread != NO_ROW) & attribution.autograd[gaps.thread]
    head[inherits] = attribution.open.initiator(gaps.thread[inherits])
    return borders(gaps, (gaps.thread, head), *ends(attribution.open.nesting))


def ends(nesting: Nesting) -> tuple[Column, Column]:
    """(thread, time) of the begin and end of everything that nests."""
    lane = np.repeat(np.arange(len(nesting.first) - 1, dtype=np.int32), np.diff(nesting.first))
    return np.tile(lane, 2), np.concatenate((nesting.start, nesting.end))


def borders(gaps: Gaps, wanted: tuple[Column, ...], lane: Column, time: Column) -> Iterator[Cut]:
    """(gap, time) of the instants of any lane that a gap wants, inside that gap."""
    for gap, border in gaps.containing(time):
        of = lane[border]
        ours = np.zeros(len(gap), bool)
        for lanes in wanted:
            ours |= lanes[gap] == of
        yield gap[ours], time[border[ours]]
