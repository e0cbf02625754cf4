"""The collectives of all ranks in one table, and which of them are one and the same collective.

Members of a collective are paired by group, step and position in the step, never by time: a clock
may be off by a whole step. Where the ranks of a group recorded different numbers of collectives in
a step (a capture that begins in the middle of it) only those that agree with the most are paired,
and a pair whose kinds or sizes differ is none. The rest is counted as unmatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.intervals import runs
from nvprobe.ranks.summary import Summary
from nvprobe.trace import NO_ROW, Column, Table, column

__all__ = ["AllCollectives", "GroupNames", "collected", "matched"]


@dataclass(frozen=True, slots=True)
class AllCollectives(Table):
    """Collectives of all ranks, by rank and time."""

    rank: Column = column("i4", "row of the ranks")
    step: Column = column("i8", "index of the step, -1 outside of all")
    group: Column = column("i4", "row of the groups of the job")
    kind: Column = column("i4", "row of the job's texts")
    path: Column = column("i4", "row of the job's texts")
    start: Column = column("i8", "arrival", unit="ns")
    end: Column = column("i8", "end", unit="ns")
    exposed_ns: Column = column("i8", "without compute beside it", unit="ns")
    bytes: Column = column("i8", "size that the rank gave", missing=-1)


@dataclass(frozen=True, slots=True)
class GroupNames:
    """Groups of the job: what all members call each, its name, its size by their own account."""

    keys: tuple[str, ...]
    names: tuple[str | None, ...]
    sizes: tuple[int, ...]
    """-1 where no member recorded it."""


def collected(
    ranks: Sequence[Summary],
) -> tuple[AllCollectives, GroupNames, tuple[str, ...]]:
    """All collectives of the ranks, the groups, and the texts of ``kind`` and ``path``."""
    texts: dict[str, int] = {}
    groups: dict[str, tuple[str | None, int]] = {}
    parts = []
    for row, rank in enumerate(ranks):
        own = rank.collectives
        place = np.array([texts.setdefault(text, len(texts)) for text in rank.texts] + [-1])
        parts.append(
            {
                **own.columns(),
                "rank": np.full(len(own), row),
                "step": np.append(rank.steps.index, NO_ROW)[own.step],
                "group": _groups(rank, groups)[own.group],
                "kind": place[own.kind],
                "path": place[own.path],
            }
        )
    names = GroupNames(
        tuple(groups), tuple(n for n, _ in groups.values()), tuple(s for _, s in groups.values())
    )
    return AllCollectives.joined(parts), names, tuple(texts)


def _groups(rank: Summary, known: dict[str, tuple[str | None, int]]) -> Column:
    """Job's row of each group of a rank."""
    own = rank.groups
    for key, name, size in zip(own.key, own.name, own.size, strict=True):
        text = rank.texts[key]
        before, members = known.get(text, (None, -1))
        called = rank.texts[name] if name >= 0 else None
        known[text] = (before or called, max(members, int(size)))
    place = {key: row for row, key in enumerate(known)}
    return np.array([place[rank.texts[key]] for key in own.key], np.int32)


def matched(table: AllCollectives) -> Column:
    """int64 code of the collective that each row is a member of, -1 where no other rank has it."""
    if not len(table):
        return np.empty(0, np.int64)
    _, unit = distinct(table.group.astype(np.int64) << 32 | (table.step + 1))
    _, share = distinct(unit.astype(np.int64) << 32 | table.rank)
    order = np.lexsort((table.start, share))
    first = runs(share[order])
    position = np.empty(len(share), np.int64)
    size = np.diff(np.append(first, len(order)))
    position[order] = np.arange(len(order)) - np.repeat(first, size)
    usual = _usual(unit[order[first]], size)
    kept = usual[share]
    _, code = distinct(unit.astype(np.int64) << 32 | position)
    kept &= _alike(code, table, kept)
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


def _alike(code: Column, table: AllCollectives, kept: Column) -> Column:
    """Bool per row: all members of its collective that are kept have one kind and size."""
    alike = np.ones(int(code.max()) + 1, bool)
    for values in (table.kind, table.bytes):
        low = np.full(len(alike), np.iinfo(np.int64).max)
        high = np.full(len(alike), np.iinfo(np.int64).min)
        np.minimum.at(low, code[kept], values[kept])
        np.maximum.at(high, code[kept], values[kept])
        alike &= low >= high
    return alike[code]
