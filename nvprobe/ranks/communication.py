"""Collectives of a job by group and by kind: skew against transfer, bandwidth."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.intervals import slices
from nvprobe.ranks import document
from nvprobe.trace import Column

if TYPE_CHECKING:
    from nvprobe.ranks.job import Job


_ROLES = (
    ("shards", r"fsdp|shard"),
    ("tensor", r"(?:^|[^a-z])(?:tp|tensor)"),
    ("pipeline", r"(?:^|[^a-z])(?:pp|pipe)"),
    ("expert", r"(?:^|[^a-z])(?:ep|expert|moe)"),
    ("data", r"(?:^|[^a-z])(?:dp|ddp|data|replicate)"),
)
"""(role, pattern of the group's name)."""


def tables(found: Job) -> tuple[list[document.Group], list[document.Collective]]:
    """Both tables, most time first."""
    meetings, members = found.delays.arrivals.meetings, found.members
    skew = meetings.latest - meetings.first
    of_group = members.group[meetings.last]
    groups = [_group(found, one, skew[of_group == one]) for one in np.unique(of_group).tolist()]
    return (
        sorted(groups, key=lambda one: -(one.wait_ns + one.transfer_ns)),
        _collectives(found, skew),
    )


def _group(found: Job, group: int, skew: Column) -> document.Group:
    own = found.members.group == group
    met = found.delays.arrivals
    ranks = np.unique(found.members.rank[own])
    return document.Group(
        group=found.groups.keys[group],
        name=found.groups.names[group],
        role=_role(found.groups.names[group]),
        ranks=[found.numbers[row] for row in ranks.tolist()],
        size=_size(found, group, len(ranks)),
        collectives=len(skew),
        skew_ns=_median(skew),
        wait_ns=int(met.wait_ns[own].sum()),
        transfer_ns=int(met.transfer_ns[own].sum()),
        exposed_ns=int(found.members.exposed_ns[own].sum()),
    )


def _role(name: str | None) -> str | None:
    """What the group's name says that it is for."""
    if name is None:
        return None
    return next((role for role, words in _ROLES if re.search(words, name.lower())), None)


def _size(found: Job, group: int, members: int) -> int | None:
    """Members: by their own account; else those that were recorded, if no rank is missing."""
    if found.groups.sizes[group] > 0:
        return found.groups.sizes[group]
    return None if found.roster.missing else members


def _collectives(found: Job, skew: Column) -> list[document.Collective]:
    """One row per group, kind, path (of the lowest rank) and size."""
    met, members = found.delays.arrivals, found.members
    first = np.full(len(met.meetings), len(members))
    np.minimum.at(first, met.meeting, np.arange(len(members)))  # members are by rank
    key = np.zeros(len(first), np.int64)
    for values in (members.group, members.kind, members.path, members.bytes):
        _, value = distinct(values[first].astype(np.int64))
        _, key = distinct(key.astype(np.int64) << 32 | value)
    order = np.argsort(key, kind="stable")
    meeting_row = np.argsort(met.meeting, kind="stable")
    bounds = np.searchsorted(met.meeting[meeting_row], np.arange(len(first) + 1))
    out = []
    for low, high in slices(key[order]):
        some = order[low:high]
        rows = np.concatenate([meeting_row[bounds[one] : bounds[one + 1]] for one in some])
        out.append(_collective(found, some, rows, int(first[some[0]]), skew[some]))
    return sorted(out, key=lambda one: (-one.wait_ns - one.transfer_ns * one.count, one.group))


def _collective(
    found: Job, meetings: Column, rows: Column, one: int, skew: Column
) -> document.Collective:
    met, members = found.delays.arrivals, found.members
    transfer = _medians_of(met.transfer_ns[rows], met.meeting[rows])
    group = int(members.group[one])
    kind = found.texts[int(members.kind[one])]
    size = int(members.bytes[one])
    total = _median(transfer)
    ranks = _size(found, group, len(np.unique(members.rank[rows])))
    nsys = any(rank.identity.backend == "nsys" for rank in found.roster.ranks)
    algorithm, bus = bandwidths(kind, size, total, ranks, exact=not nsys)
    last = members.rank[met.meetings.last[meetings[skew > (found.clocks.error_ns or 0)]]]
    most = np.bincount(last).argmax() if len(last) else None
    path = int(members.path[one])
    return document.Collective(
        group=found.groups.keys[group],
        kind=kind,
        path=found.texts[path] if path >= 0 else None,
        bytes=size if size >= 0 else None,
        count=len(meetings),
        skew_ns=_median(skew),
        wait_ns=int(met.wait_ns[rows].sum()),
        transfer_ns=total,
        exposed_ns=int(members.exposed_ns[rows].sum()),
        algorithm_bytes_s=algorithm,
        bus_bytes_s=bus,
        last_rank=None if most is None else found.numbers[int(most)],
        last_share=0.0 if most is None else float((last == most).sum() / len(meetings)),
    )


def bandwidths(
    kind: str, size: int, transfer_ns: int, ranks: int | None, *, exact: bool = True
) -> tuple[float | None, float | None]:
    """(algorithm, bus) bandwidth in bytes/s as nccl-tests define them.

    ``size`` is what a rank puts in, of a reduce-scatter what it gets out. ``exact``: whether that
    holds for exchanges too, of which NCCL counts sends and receives.
    """
    exchange = kind in ("all_to_all", "send_recv")
    if size <= 0 or transfer_ns <= 0 or ranks is None or (exchange and not exact):
        return None, None
    whole = size * ranks if kind in ("all_gather", "reduce_scatter") else size
    algorithm = whole / transfer_ns * 1e9
    factor = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": (ranks - 1) / ranks,
        "reduce_scatter": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks,
    }.get(kind, 1.0)
    return algorithm, algorithm * factor


def _medians_of(values: Column, code: Column) -> Column:
    """Lower median of the values of each code."""
    order = np.lexsort((values, code))
    return np.array([values[order][(low + high - 1) // 2] for low, high in slices(code[order])])


def _median(values: Column) -> int:
    return int(np.sort(values)[len(values) // 2]) if len(values) else 0
