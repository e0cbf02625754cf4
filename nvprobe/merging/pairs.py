"""What a program wrote into two sources under one text: pairs that bound the offset of the clocks.

Ranges of one text on one thread, as often in both, were opened by two calls, one around the other:
the longer of the two contains the shorter, and both of its edges bound the offset. A mark of
`nvprobe launch` lies inside the scope of its text; any other mark was written beside it, before or
after. Where clocks drift, a line through all pairs shows how fast. Most of the pairs decide: some
that belong to other repetitions change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.merging.drift import median_slope
from nvprobe.trace import Column, Ranges, RangeSource, Trace

_CLOCK_MARK = "nvprobe clock "
_BESIDE_NS = 200_000
"""How far from its scope a mark was written: the first scope of torch's takes its time."""
_FITTED = 400
"""Pairs that the line goes through, evenly taken of more."""
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """Bounds of the offset, one pair a row."""

    time: Column
    """When, on the second source's clock (origins already brought together)."""
    low: Column
    high: Column

    def __len__(self) -> int:
        return len(self.time)

    @classmethod
    def of(cls, first: Trace, second: Trace, shift: int) -> Pairs:
        """All pairs of two sources of one process."""
        parts = (_of_ranges(first, second, shift), _of_marks(first, second, shift))
        time, low, high = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return cls(time, low, high)

    def within(self, low: int, high: int) -> Pairs:
        """The pairs that allow some offset between ``low`` and ``high``."""
        kept = (self.low <= self.high) & (self.high >= low) & (self.low <= high)
        return Pairs(self.time[kept], self.low[kept], self.high[kept])

    def drift(self) -> tuple[float, int]:
        """(ns of offset gained per ns, the instant it counts from): a line through all pairs."""
        if len(self) < _ENOUGH:
            return 0.0, 0
        some = np.argsort(self.time, kind="stable")
        some = some[np.linspace(0, len(some) - 1, min(len(some), _FITTED)).astype(int)]
        first = int(self.time.min())
        middle = (self.low[some] + self.high[some]) / 2
        return median_slope((self.time[some] - first).astype(float), middle), first

    def without(self, drift: float, since: int) -> Pairs:
        """The pairs as if the clocks did not drift."""
        gained = np.rint((self.time - since) * drift).astype(np.int64)
        return Pairs(self.time, self.low - gained, self.high - gained)

    def narrowed(self, low: int, high: int) -> tuple[int, int, int]:
        """Bounds known from elsewhere, as narrow as most of the pairs that fit them allow."""
        fitting = self.within(low, high)
        if not len(fitting):
            return low, high, 0
        lower, upper, count = fitting.most()
        return max(low, lower), min(high, upper), count

    def most(self) -> tuple[int, int, int]:
        """The offsets that most pairs allow: (low, high, how many pairs)."""
        when = np.concatenate((self.low, self.high))
        change = np.repeat([1, -1], len(self))
        order = np.lexsort((-change, when))
        allowed = np.cumsum(change[order])
        best = int(np.argmax(allowed))
        return int(when[order[best]]), int(when[order[best + 1]]), int(allowed[best])


def thread_rows(first: Trace, second: Trace) -> Column:
    """int32 row in ``first.threads`` of each thread of ``second``: same pid and tid; else -1."""
    pids = {int(pid): row for row, pid in enumerate(first.processes.pid)}
    known = {
        (int(process), int(tid)): row
        for row, (process, tid) in enumerate(
            zip(first.threads.process, first.threads.tid, strict=True)
        )
    }
    rows = [
        known.get((pids.get(int(second.processes.pid[process]), -1), int(tid)), -1)
        for process, tid in zip(second.threads.process, second.threads.tid, strict=True)
    ]
    return np.array(rows, np.int32)


def named_pairs(first: Trace, second: Trace, threads: Column) -> tuple[Column, Column]:
    """Rows of the ranges that both sources have: one name, one thread, as often; k-th to k-th.

    ``threads`` maps threads of ``second`` to those of ``first``. Only what a program writes itself
    (NVTX ranges, ``record_function``) is paired.
    """
    ours, theirs = first.ranges, second.ranges
    rows = np.flatnonzero((theirs.source == RangeSource.ANNOTATION) & (threads[theirs.thread] >= 0))
    code = {text: row for row, text in _names(first, ours)}
    named = [(code.get(text, -1), row) for row, text in _names(second, theirs.take(rows))]
    to_first = np.full(len(second.strings) + 1, -1, np.int64)
    to_first[[row for _, row in named]] = [ours_row for ours_row, _ in named]
    rows = rows[to_first[theirs.name[rows]] >= 0]
    size = len(first.strings) + 1
    key = threads[theirs.thread[rows]].astype(np.int64) * size + to_first[theirs.name[rows]]
    own_key = ours.thread.astype(np.int64) * size + ours.name
    mine = np.flatnonzero(np.isin(own_key, key))
    order = (
        rows[np.lexsort((theirs.start[rows], key))],
        mine[np.lexsort((ours.start[mine], own_key[mine]))],
    )
    keys, counts = np.unique(key, return_counts=True)
    own_keys, own_counts = np.unique(own_key[mine], return_counts=True)
    same = keys[np.isin(keys, own_keys)][counts[np.isin(keys, own_keys)] == own_counts]
    key_sorted, own_sorted = np.sort(key), np.sort(own_key[mine])
    return order[1][np.isin(own_sorted, same)], order[0][np.isin(key_sorted, same)]


def _names(trace: Trace, ranges: Ranges) -> list[tuple[int, str]]:
    used = np.unique(ranges.name[ranges.name >= 0])
    return list(zip(used.tolist(), map(str, trace.texts(used)), strict=True))


def _of_ranges(first: Trace, second: Trace, shift: int) -> tuple[Column, Column, Column]:
    """(time, low, high) of ranges: where the first source's is the longer, its start is below."""
    mine, other = named_pairs(first, second, thread_rows(first, second))
    starts = first.ranges.start[mine] - second.ranges.start[other] - shift
    ends = first.ranges.end[mine] - second.ranges.end[other] - shift
    outer = ends - starts >= 0
    time = second.ranges.start[other] + shift
    return time, np.where(outer, starts, ends), np.where(outer, ends, starts)


def _of_marks(first: Trace, second: Trace, shift: int) -> tuple[Column, Column, Column]:
    """(time, low, high) of marks and the scopes of their texts, the k-th of both."""
    ours = first.marks.take(np.argsort(first.marks.time, kind="stable"))
    marks = _by_text(first.texts(ours.name), first.processes.pid[ours.process])
    scopes = second.ranges.take(second.ranges.source == RangeSource.ANNOTATION)
    scopes = scopes.take(np.argsort(scopes.start, kind="stable"))
    found = _by_text(second.texts(scopes.name), second.processes.pid[scopes.process])
    pairs = [
        (mark, scope, 0 if text.startswith(_CLOCK_MARK) else _BESIDE_NS)
        for (text, pid), written in marks.items()
        if len(written) == len(twins := found.get((text, pid), []))
        for mark, scope in zip(written, twins, strict=True)
    ]
    mark, scope, beside = np.array(pairs, np.int64).reshape(-1, 3).T
    begin, end = scopes.start[scope] + shift, scopes.end[scope] + shift
    at = ours.time[mark]
    return begin, at - end - beside, at - begin + beside


def _by_text(texts: list[str | None], pids: Column) -> dict[tuple[str, int], list[int]]:
    """Rows by text and process, in order."""
    out: dict[tuple[str, int], list[int]] = {}
    for row, (text, pid) in enumerate(zip(texts, pids.tolist(), strict=True)):
        if text:
            out.setdefault((text, pid), []).append(row)
    return out
