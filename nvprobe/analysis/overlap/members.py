"""Which communicating ops of several ranks, or processes, are members of one collective.

They are paired by group, step and position in the step, never by time: a clock may be off by a
whole step. Where the ranks of a group recorded different numbers of collectives in a step (a
capture that begins in the middle of it) only those that agree with the most are paired, and a pair
whose kinds or sizes differ is none.
"""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.intervals import runs
from nvprobe.trace import NO_ROW, Column


def matched_members(
    rank: Column, group: Column, step: Column, start: Column, alike: tuple[Column, ...]
) -> Column:
    """int64 code of the collective that each row is a member of, -1 where no other rank has it.

    ``alike``: what all members of a collective have in common, as its kind.
    """
    if not len(rank):
        return np.empty(0, np.int64)
    _, unit = distinct(group.astype(np.int64) << 32 | (step + 1))
    _, share = distinct(unit.astype(np.int64) << 32 | rank)
    order = np.lexsort((start, share))
    first = runs(share[order])
    position = np.empty(len(share), np.int64)
    size = np.diff(np.append(first, len(order)))
    position[order] = np.arange(len(order)) - np.repeat(first, size)
    usual = _usual(unit[order[first]], size)
    kept = usual[share]
    _, code = distinct(unit.astype(np.int64) << 32 | position)
    kept &= _alike(code, alike, kept)
    members = np.bincount(code[kept], minlength=int(code.max()) + 1)
    return np.where(kept & (members[code] > 1), code, NO_ROW)


def _usual(unit: Column, size: Column) -> Column:
    """Bool per share (of one rank in one unit): it is as long as most shares of the unit."""
    _, code = distinct(unit.astype(np.int64) << 32 | size)
    votes = np.bincount(code)[code]
    order = np.lexsort((size, votes, unit))
    last = np.append(runs(unit[order])[1:], len(order)) - 1
    best = np.zeros(int(unit.max()) + 1, np.int64)
    best[unit[order][last]] = size[order][last]
    return size == best[unit]


def _alike(code: Column, columns: tuple[Column, ...], kept: Column) -> Column:
    """Bool per row: all members of its collective that are kept have the same values."""
    alike = np.ones(int(code.max()) + 1, bool)
    for values in columns:
        low = np.full(len(alike), np.iinfo(np.int64).max)
        high = np.full(len(alike), np.iinfo(np.int64).min)
        np.minimum.at(low, code[kept], values[kept])
        np.maximum.at(high, code[kept], values[kept])
        alike &= low >= high
    return alike[code]
