"""What to distrust of a job's comparison, and how groups and ranks are named in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvprobe.analysis.verdict import duration
from nvprobe.ranks.document import Group

if TYPE_CHECKING:
    from nvprobe.ranks.findings import Facts

_NAMED = 8


def warnings(facts: Facts) -> list[str]:
    """What to distrust."""
    job, out = facts.job, list(facts.job.roster.notes)
    missing = job.roster.missing
    if missing:
        size = job.roster.world_size or len(job.numbers) + len(missing)
        out.append(
            f"{len(job.numbers)} of {size} ranks were given; missing: {listed(missing)}. A "
            "collective may have waited for one of them, and then that time counts as transfer"
        )
    if len(job.numbers) > 1 and not len(job.members):
        out.append(
            "no collective was recorded on two ranks: the clocks cannot be aligned, and a "
            "straggler shows by host time alone (launch --backend torch records those of gloo)"
        )
    if below := together(facts):
        named = ", ".join(called(group) for group in below[:_NAMED])
        out.append(
            f"arrivals of {named}{', …' if len(below) > _NAMED else ''} differ by less than the "
            f"clocks can show ({duration(job.clocks.error_ns or 0)}): no verdict on them"
        )
    unmatched = len(job.table) - len(job.members)
    if unmatched and len(job.numbers) > 1:
        out.append(
            f"{unmatched:,} of {len(job.table):,} records of collectives have no partner on "
            "another rank and are left out"
        )
    return out


def together(facts: Facts) -> list[Group]:
    """Groups whose members wait less, at the usual collective, than the clocks can show."""
    error = facts.job.clocks.error_ns or 0
    return [
        one for one in facts.groups if 0 < one.wait_ns <= error * one.collectives * len(one.ranks)
    ]


def called(group: Group) -> str:
    """A group by its name in the program, else by its ranks."""
    return group.name or f"ranks {listed(tuple(group.ranks))}"


def listed(ranks: tuple[int, ...]) -> str:
    """``2, 5-7``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [f"{p[0]}" if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    return ", ".join(texts[:_NAMED]) + (", …" if len(texts) > _NAMED else "")
