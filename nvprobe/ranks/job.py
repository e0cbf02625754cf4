"""Reduce: the summaries of a job's ranks to one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nvprobe.ranks import cautions, communication, document, findings
from nvprobe.ranks.clock import RankClocks, align
from nvprobe.ranks.differences import differences, spread
from nvprobe.ranks.late import NOTABLE, Delays, Once, delays, in_one_step, typical
from nvprobe.ranks.map import GPU, HOST, INPUT
from nvprobe.ranks.match import AllCollectives, GroupNames, collected, matched
from nvprobe.ranks.own_work import Behind, by_own_host, by_own_kernels
from nvprobe.ranks.roster import Roster, roster
from nvprobe.ranks.stragglers import (
    WORTH,
    Excess,
    Straggler,
    Work,
    by_own_time,
    excess,
    stragglers,
    work,
)
from nvprobe.ranks.summary import Summary
from nvprobe.trace import Column
from nvprobe.version import __version__

if TYPE_CHECKING:
    from nvprobe.ranks.replays import Replays

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no member can leave before all have arrived."""


@dataclass(frozen=True)
class Job:
    """All ranks on one clock; columns of ``members`` and ``delays`` are aligned."""

    roster: Roster
    groups: GroupNames
    texts: tuple[str, ...]
    table: AllCollectives
    """Every collective, by its rank's own clock."""
    members: AllCollectives
    """Those with a partner, on one clock."""
    code: Column
    clocks: RankClocks
    one_capture: bool
    delays: Delays
    work: Work
    step_ns: int | None
    """A typical step of a typical rank."""
    stragglers: tuple[tuple[Straggler, Excess | None], ...]
    behind: tuple[Behind, ...]
    """Ranks that are late only because they entered the capture late, or stalled once."""
    once: Once | None
    """The longest delay of a rank in one step alone."""

    @cached_property
    def numbers(self) -> list[int]:
        """Rank of each row of the ranks."""
        return [int(one.identity.rank or 0) for one in self.roster.ranks]

    @cached_property
    def exposed_transfer(self) -> Column:
        """int64 ns per member: transfer without compute beside it that holds work up, at most."""
        exposed = np.minimum(self.members.exposed_ns, self.members.holds_ns)
        return np.minimum(self.delays.arrivals.transfer_ns, exposed)

    @cached_property
    def exposed_transfer_ns(self) -> int | None:
        """The same per step: of each collective what the rank that arrived last has of it.

        The others may have done their compute while they waited.
        """
        if not len(self.members) or not all(one.gpu for one in self.roster.ranks):
            return None
        met = self.delays.arrivals
        last = self.exposed_transfer[met.meetings.last][met.meeting]
        steps = np.array([max(len(one.steps), 1) for one in self.roster.ranks])
        return int(np.median(self.by_rank(last) / steps))

    def by_rank(self, values: Column) -> Column:
        """int64 sums of a value per member by rank."""
        return np.bincount(self.members.rank, values, len(self.numbers)).astype(np.int64)


def job(found: Sequence[Summary]) -> Job:
    """Lay the ranks on one clock, and find who is late. InputError where they are not one job."""
    ranks = roster(found)
    table, groups, texts = collected(ranks.ranks)
    code = matched(table)
    pairs = np.flatnonzero(code >= 0)
    own, code = table.take(pairs), code[pairs]
    one_capture = len({one.identity.source for one in ranks.ranks}) == 1
    clocks = _clocks(own, code, texts, len(ranks.ranks), one_capture)
    members = own.with_columns(
        start=clocks.corrected(own.rank, own.start), end=clocks.corrected(own.rank, own.end)
    )
    late = delays(
        members.rank, members.group, members.step, code, members.start, members.end,
        members.exposed_ns, len(ranks.ranks),
    )  # fmt: skip
    spent, step_ns = work(ranks.ranks), _step_ns(ranks.ranks)
    named, entered = _named(ranks, clocks, late, members, code, spent, step_ns)
    least = max(NOTABLE * (step_ns or 0), clocks.error_ns or 0)
    once = None if named or entered else in_one_step(late.steady, late.steady_steps, least)
    return Job(
        ranks, groups, texts, table, members, code, clocks, one_capture, late, spent, step_ns,
        tuple(named), tuple(entered), once,
    )  # fmt: skip


def _named(
    ranks: Roster,
    clocks: RankClocks,
    late: Delays,
    members: AllCollectives,
    code: Column,
    spent: Work,
    step_ns: int | None,
) -> tuple[list[tuple[Straggler, Excess | None]], list[Behind]]:
    """(stragglers with their causes, ranks that arrive last though they do nothing longer)."""
    if not len(members):
        return list(by_own_time(spent, step_ns)), []
    error, unit_ns = clocks.error_ns or 0, step_ns if late.by_steps else _between(members, code)
    named: list[tuple[Straggler, Excess | None]] = []
    without: list[Behind] = []
    for one in stragglers(late, error, unit_ns):
        cause = excess(spent, one.rank, one.late_ns)
        judged = by_own_host(ranks.ranks, clocks, one, cause)
        if isinstance(judged, Behind):
            without.append(judged)
        elif judged[1] is not None or one.sure:
            named.append(judged)
    known = {one.rank for one, _ in named} | {one.rank for one in without}
    named += by_own_kernels(ranks.ranks, known, max(error, WORTH * (step_ns or 0)))
    return named, without


def _clocks(
    own: AllCollectives, code: Column, texts: Sequence[str], ranks: int, one_capture: bool
) -> RankClocks:
    """One clock for all; processes of one capture have one already."""
    if one_capture:
        zero = np.zeros(ranks, np.int64)
        return RankClocks(zero, zero.astype(np.float64), 0, np.ones(ranks, bool), 0)
    kinds = np.array([text in SYMMETRIC for text in texts], bool)
    together = kinds[own.kind] if len(texts) else np.empty(0, bool)
    with_some = np.unique(own.group[together])
    fit = together | ~np.isin(own.group, with_some)
    _, dense = np.unique(code[fit], return_inverse=True)
    return align(own.rank[fit], own.group[fit], dense, own.end[fit], ranks)


def _step_ns(ranks: Sequence[Summary]) -> int | None:
    """Median over ranks of their median step."""
    medians = [_median(one.steps.end - one.steps.start) for one in ranks if len(one.steps)]
    return _median(np.array(medians)) if medians else None


def _between(members: AllCollectives, code: Column) -> int | None:
    """Without steps: the typical time from one collective of a rank to its next."""
    if not len(members):
        return None
    order = np.lexsort((members.start, members.rank))
    same = members.rank[order][1:] == members.rank[order][:-1]
    apart = np.diff(members.start[order])[same]
    return _median(apart) if len(apart) else None


def _median(values: Column) -> int:
    """The upper one of an even number."""
    return int(np.sort(values)[len(values) // 2])


def reduced(found: Sequence[Summary], failed: Sequence[document.Failed] = ()) -> document.Document:
    """The document of a job."""
    return of_job(job(found), failed)


def of_job(
    found: Job,
    failed: Sequence[document.Failed] = (),
    replays: Replays | None = None,
) -> document.Document:
    """The document of a job that is reduced already."""
    groups, collectives = communication.tables(found)
    late = _stragglers(found)
    differs = differences(found.roster.ranks)
    facts = findings.Facts(found, groups, collectives, late, differs, replays)
    return document.Document(
        schema=document.SCHEMA,
        nvprobe=__version__,
        verdict=findings.verdict(facts),
        world_size=found.roster.world_size,
        ranks=_ranks(found),
        missing_ranks=list(found.roster.missing),
        failed=list(failed),
        clock=_clock(found),
        steps=_steps(found),
        paths=spread(found.work, found.numbers),
        groups=groups,
        collectives=collectives,
        stragglers=late,
        differences=differs,
        findings=findings.findings(facts),
        warnings=cautions.warnings(facts),
    )


def _clock(found: Job) -> document.Clock:
    matched_ones = len(found.delays.arrivals.meetings)
    kind = "one" if found.one_capture else "aligned" if matched_ones else "unknown"
    return document.Clock(
        kind=kind,
        error_ns=found.clocks.error_ns if matched_ones or found.one_capture else None,
        matched=matched_ones,
        unmatched=len(found.table) - len(found.members),
    )


def _ranks(found: Job) -> list[document.Rank]:
    size, members, met = len(found.numbers), found.members, found.delays.arrivals
    total = np.bincount(members.rank, members.end - members.start, size).astype(np.int64)
    waited = np.bincount(members.rank, met.wait_ns, size).astype(np.int64)
    exposed = np.bincount(members.rank, members.exposed_ns, size).astype(np.int64)
    moved = found.by_rank(found.exposed_transfer)
    skewed = met.meetings.latest - met.meetings.first > (found.clocks.error_ns or 0)
    last = np.bincount(members.rank[met.meetings.last[skewed]], minlength=size)
    recorded = np.bincount(found.table.rank, minlength=size)
    late = typical(found.delays.steady) if found.delays.steady.size else np.full(size, -1)
    kind = np.array([one in (GPU, HOST, INPUT) for one in found.work.kind], bool)
    compute = found.work.ns[:, kind].sum(axis=1)
    out = []
    for row, one in enumerate(found.roster.ranks):
        steps, partner = one.steps, bool(len(met.meetings))
        out.append(
            document.Rank(
                rank=found.numbers[row],
                source=one.identity.source,
                process=one.identity.process,
                said_by=one.identity.said_by,
                backend=one.identity.backend,
                steps=len(steps),
                step_ns=_median(steps.end - steps.start) if len(steps) else None,
                busy_ns=_median(steps.busy_ns) if len(steps) and one.gpu else None,
                idle_ns=_median(steps.idle_ns) if len(steps) and one.gpu else None,
                compute_ns=int(compute[row]),
                collectives=int(recorded[row]),
                communication_ns=int(total[row]),
                wait_ns=int(waited[row]) if partner else None,
                transfer_ns=int(total[row] - waited[row]) if partner else None,
                exposed_ns=int(exposed[row]),
                exposed_transfer_ns=int(moved[row]) if partner else None,
                last=int(last[row]),
                late_ns=int(late[row]) if late[row] >= 0 else None,
                clock_offset_ns=int(found.clocks.offset[row]) if found.clocks.known[row] else None,
            )
        )
    return out


def _steps(found: Job) -> list[document.Step]:
    """Steps by index; a table of ranks by steps for each of length, waiting and delay."""
    ranks = found.roster.ranks
    indices: Column = np.unique(np.concatenate([one.steps.index for one in ranks]))
    wall = np.full((len(ranks), len(indices)), -1, np.int64)
    for row, one in enumerate(ranks):
        wall[row, np.searchsorted(indices, one.steps.index)] = one.steps.end - one.steps.start
    shape, members = wall.shape, found.members
    waited, late = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    inside = np.isin(members.step, indices) & (members.step >= 0)
    at = (members.rank[inside], np.searchsorted(indices, members.step[inside]))
    waited[at] = 0
    np.add.at(waited, at, found.delays.arrivals.wait_ns[inside])
    if found.delays.by_steps:
        column = np.searchsorted(indices, found.delays.steps)
        late[:, column] = found.delays.by_step
    shared = np.flatnonzero((wall >= 0).sum(axis=0) > 1)
    return [
        document.Step(int(indices[one]), *(_nulls(table[:, one]) for table in (wall, waited, late)))
        for one in shared.tolist()
    ]


def _nulls(values: Column) -> list[int | None]:
    return [None if value < 0 else value for value in values.tolist()]


def _stragglers(found: Job) -> list[document.Straggler]:
    out = []
    for one, cause in found.stragglers:
        kernel = _kernel(found, one.rank, cause) if cause and cause.category == "compute" else None
        out.append(
            document.Straggler(
                rank=found.numbers[one.rank],
                late_ns=one.late_ns,
                share=one.share,
                cause=None if cause is None else cause.category,
                path=None if cause is None else cause.path,
                kernel=kernel,
                own_ns=None if cause is None else cause.ns,
                usual_ns=None if cause is None else cause.usual_ns,
                seen_in=one.seen_in,
            )
        )
    return out


def _kernel(found: Job, row: int, cause: Excess) -> str | None:
    """The kernel that takes most time in the path where the rank takes longer."""
    rank = found.roster.ranks[row]
    path = -1 if cause.path is None else rank.texts.index(cause.path)
    here = np.flatnonzero(rank.kernels.path == path)
    if not len(here):
        return None
    return rank.texts[rank.kernels.name[here[np.argmax(rank.kernels.gpu_ns[here])]]]
