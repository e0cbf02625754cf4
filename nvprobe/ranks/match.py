"""The collectives of all ranks in one table, and which of them are one and the same collective.

How members are paired: :mod:`nvprobe.analysis.overlap.members`. The rest is counted as unmatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.overlap.members import matched_members
from nvprobe.ranks.summary import Summary
from nvprobe.trace import NO_ROW, Column, Table, column


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
    holds_ns: Column = column("i8", "while the GPU's next work was queued", unit="ns")
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
    return matched_members(
        table.rank, table.group, table.step, table.start, (table.kind, table.bytes)
    )
