"""Which of the summaries are ranks of one job, which are missing, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvprobe.errors import InputError
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.summary import Summary

_NAMED = 6
"""So many captures are named in a message."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The ranks of one job in order."""

    ranks: tuple[Summary, ...]
    """Every identity has a rank."""
    world_size: int | None
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def one_job(sources: Sequence[Source]) -> None:
    """Raise InputError where launched jobs of several ranks lie side by side: nothing is read."""
    jobs: dict[str, list[Source]] = {}
    for source in sources:
        if source.job is not None and source.job.startswith("job "):
            jobs.setdefault(source.job, []).append(source)
    several = [job for job in jobs.values() if len(job) > 1]
    if len(several) > 1:
        raise InputError(
            f"{_listed(one[0].name.partition('/')[0] for one in several)}: {len(several)} jobs of "
            "several ranks; give the folder of one"
        )


def roster(found: Sequence[Summary]) -> Roster:
    """Put the ranks of the one job in order; InputError where two say the same, or none says."""
    job, notes = _largest(_jobs(found))
    job, assumed = _numbered(job)
    by_rank: dict[int, list[Summary]] = {}
    for one in job:
        if one.identity.rank is not None:
            by_rank.setdefault(one.identity.rank, []).append(one)
    _refuse_unclear(job, by_rank)
    ranks = tuple(by_rank[rank][0] for rank in sorted(by_rank))
    sizes = [one.identity.world_size for one in ranks if one.identity.world_size]
    size = max(sizes, default=None)
    last = max(size or 0, max(by_rank) + 1)
    missing = tuple(rank for rank in range(last) if rank not in by_rank)
    return Roster(ranks, size, missing, (*notes, *assumed))


def _refuse_unclear(job: Sequence[Summary], by_rank: dict[int, list[Summary]]) -> None:
    faults = [
        f"{_listed(map(_name, same))} {'both' if len(same) == 2 else 'all'} say rank {rank}"
        for rank, same in sorted(by_rank.items())
        if len(same) > 1
    ]
    unnamed = [_name(one) for one in job if one.identity.rank is None]
    if unnamed:
        faults.append(f"{_listed(unnamed)} {'says' if len(unnamed) == 1 else 'say'} no rank")
    if faults:
        raise InputError(
            f"{'; '.join(faults)}: which rank is which cannot be known; name each file after its "
            "rank (rank_0.json, rank_1.json, …), or give the files of one run alone"
        )


def _jobs(found: Sequence[Summary]) -> list[list[Summary]]:
    """Summaries by job: the launched job's mark; else the folder, or folders that go together."""
    marked: dict[str, list[Summary]] = {}
    for one in found:
        marked.setdefault(one.identity.job or "", []).append(one)
    jobs: list[list[Summary]] = []
    for key, members in marked.items():
        home = next((job for job in jobs if _belong(job, members, key)), None)
        if home is None:
            jobs.append(list(members))
        else:
            home += members
    return jobs


def _belong(job: Sequence[Summary], other: Sequence[Summary], key: str) -> bool:
    """Whether unmarked captures of two folders are ranks of one job: other ranks, at one time."""
    if key.startswith("job ") or (job[0].identity.job or "").startswith("job "):
        return False
    first, second = ({one.identity.rank for one in some} for some in (job, other))
    if None in first | second or first & second:
        return False
    sizes = {one.identity.world_size for one in (*job, *other)} - {None}
    return len(sizes) < 2 and _overlap(_window(job), _window(other))


def _window(job: Sequence[Summary]) -> tuple[int, int]:
    tables = [table for one in job for table in (one.steps, one.collectives) if len(table)]
    starts = [int(table.start.min()) for table in tables]
    return min(starts, default=0), max((int(table.end.max()) for table in tables), default=0)


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]


def _largest(jobs: list[list[Summary]]) -> tuple[list[Summary], list[str]]:
    """The only job of several ranks, and what is said of the captures beside it."""
    several = [job for job in jobs if len(job) > 1]
    if len(several) > 1:
        named = "; ".join(_listed(_name(one) for one in job) for job in several)
        raise InputError(f"{len(several)} jobs of several ranks ({named}); give those of one")
    if not several and len(jobs) > 1:
        raise InputError(
            f"{_listed(_name(job[0]) for job in jobs)}: runs by themselves, no ranks of one job; "
            "nvprobe analyze reads each"
        )
    job = several[0] if several else jobs[0]
    others = [_name(one) for other in jobs if other is not job for one in other]
    return job, [f"left out, of another run: {_listed(others)}"] if others else []


def _numbered(job: list[Summary]) -> tuple[list[Summary], list[str]]:
    """Processes of one capture that says no rank are numbered in their order, and that is said."""
    sources = {one.identity.source for one in job}
    if len(sources) > 1 or any(one.identity.rank is not None for one in job):
        return job, []
    numbered = [
        dataclasses.replace(
            one,
            identity=dataclasses.replace(
                one.identity, rank=row, said_by="the order of the processes"
            ),
        )
        for row, one in enumerate(job)
    ]
    if len(job) == 1:
        return numbered, []
    note = f"{next(iter(sources))} says no ranks: its processes are numbered in their order"
    return numbered, [note]


def _name(one: Summary) -> str:
    process = one.identity.process
    return one.identity.source if process is None else f"{one.identity.source} ({process})"


def _listed(names: Iterable[str]) -> str:
    """``a, b and c``; a long list is cut."""
    found = list(names)
    shown = found[:_NAMED]
    if len(found) > _NAMED:
        return f"{', '.join(shown)} and {len(found) - _NAMED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
