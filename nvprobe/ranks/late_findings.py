"""Ranks that are late: how it is said, and what a job would save.

Waiting for a peer is nobody's saving: what a rank waits is charged to the rank that it waits for,
and a saving is promised for the job alone, at most what no other rank would be late by as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvprobe.analysis.verdict import duration, short_path
from nvprobe.ranks.document import Finding, Straggler
from nvprobe.ranks.late import NOTABLE, Once, alone_late, typical
from nvprobe.ranks.own_work import Behind
from nvprobe.trace import Column

if TYPE_CHECKING:
    from nvprobe.ranks.findings import Facts
    from nvprobe.ranks.replays import Replayed

_TRY = {
    "compute": (
        "look at what this rank computes and the others do not: uneven batches, padding, experts, "
        "work that only one rank does",
        "if its kernels are the same and slower, look at its GPU: clocks, power, temperature",
    ),
    "input": ("look at how this rank reads its data: its files, its workers, its shard",),
    "sync": ("look for a synchronization that only this rank makes: logging, checkpoints",),
    "host": (
        "look at what its host does and the others' do not: logging, checkpoints, a busy or slower "
        "CPU, pinning",
        "nvprobe analyze of this rank says where its host time goes",
    ),
    "other": ("nvprobe analyze of this rank says what it waits for",),
}
REPLAYED_NS = ("replayed_least_ns", "replayed_saves_ns", "replayed_most_ns")
"""Evidence of findings that were replayed: at least, expected, at most."""
_NO_SHORTER = "by replay a step of the job is not shorter without that"


def without_reason(facts: Facts, one: Behind) -> str:
    """``rank 0 arrives last, but its host takes no longer: it entered the capture … later``."""
    number, entered = facts.job.numbers[one.rank], one.entered_ns or 0
    if one.stall is not None and one.stall.ns > entered:
        return (
            f"rank {number} arrives last, for its host took {duration(one.stall.ns)} longer once, "
            f"in step {one.stall.step}; in the others it takes no longer"
        )
    said = f"rank {number} arrives last, but its host takes no longer"
    if entered > NOTABLE * one.host_ns:
        said += f": it entered the capture {duration(entered)} later"
    return said


def _own_work(facts: Facts, one: Straggler) -> str:
    """``Rank 1 has 1.52 ms more GPU work per step than the others, in step; …``."""
    said = (
        f"Rank {one.rank} has {duration(one.late_ns)} more GPU work per step than the others"
        f"{f', in {short_path(one.path, 40)}' if one.path else ''}"
    )
    like = _like(facts, one)
    if like is not None and like.gains:
        return f"{said}; by replay it costs the job {duration(like.bounds_ns[1])} per step"
    if like is not None and like.gains is False:
        return f"{said}; {_NO_SHORTER}"
    if facts.job.behind:
        return f"{said}; nobody waits for it here: {without_reason(facts, facts.job.behind[0])}"
    if any(other.seen_in != one.seen_in for other in facts.stragglers):
        return f"{said}; another rank is later"
    return f"{said}; arrivals vary too much to show what it costs"


def late_title(facts: Facts, one: Straggler) -> str:
    """``Rank 1 is late: the others wait 1.56 ms per step (10% of it) for its GPU work in step``."""
    if one.seen_in == "GPU work":
        return _own_work(facts, one)
    of_step = ""
    if facts.unit == "step" and facts.job.step_ns:
        of_step = f" ({one.late_ns / facts.job.step_ns:.0%} of it)"
    like = _like(facts, one)
    return (
        f"Rank {one.rank} is late: the others wait {duration(one.late_ns)} per {facts.unit}"
        f"{of_step} for {_cause(one)}"
        f"{f'; {_NO_SHORTER}' if like is not None and like.gains is False else ''}"
    )


def _cause(one: Straggler) -> str:
    words = {
        None: "a reason that is not recorded",
        "compute": "its GPU work",
        "input": "its input",
        "sync": "its synchronizations",
        "host": "its host",
        "other": "its GPU, which idles",
    }[one.cause]
    return f"{words} in {short_path(one.path, 50)}" if one.path else words


def late_findings(facts: Facts) -> Iterator[Finding]:
    """Ranks that add a delay step after step."""
    step, alone = facts.job.step_ns, alone_late(facts.job.delays.steady)
    for one in facts.stragglers:
        yield Finding(
            id="straggler",
            title=late_title(facts, one),
            severity="high" if step and one.late_ns > 0.05 * step else "medium",
            ranks=[one.rank],
            evidence={
                "late_ns": one.late_ns,
                "share_of_steps": round(one.share, 3),
                "cause": one.cause,
                "path": one.path,
                "kernel": one.kernel,
                "own_ns": one.own_ns,
                "usual_ns": one.usual_ns,
                "clock_error_ns": facts.job.clocks.error_ns,
                "waiting_ranks": len(facts.job.numbers) - 1,
                **_replayed(facts, one),
            },
            saves_ns=_saving(facts, one, alone),
            try_=_try(facts, one),
        )


def _try(facts: Facts, one: Straggler) -> list[str]:
    """What to do; of a kernel that only this rank runs, how to see the step without it."""
    advice = list(_TRY[one.cause or "other"])
    own = any(
        other.kind == "kernel" and other.name == one.kernel and other.ranks == [one.rank]
        for other in facts.differences
    )
    if one.kernel is None or not own:
        return advice
    options = f"--rank {one.rank} --drop {shlex.quote(one.kernel)}"
    return [advice[0], f"nvprobe simulate of the job with {options} predicts the step without it"]


def _replayed(facts: Facts, one: Straggler) -> dict[str, int | None]:
    """What replay says of the rank, where it was replayed and calibrations agree."""
    like = _like(facts, one)
    if like is None or like.gains is None:
        return {}
    return {"replayed_like_rank": like.other, **like.evidence}


def _like(facts: Facts, one: Straggler) -> Replayed | None:
    """The step if the rank did what another one does."""
    return None if facts.replays is None else facts.replays.late.get(one.rank)


def _saving(facts: Facts, one: Straggler, alone: Column) -> int | None:
    """At most what this rank is later than the next one, per typical step, or what replay gives.

    Nothing where by replay the job may gain nothing.
    """
    job, like = facts.job, _like(facts, one)
    if facts.unit != "step" or (like is not None and not like.gains):
        return None
    expected = 0 if like is None else like.bounds_ns[1]
    if one.seen_in == "GPU work":
        return None if like is None else max(one.late_ns, expected)
    if one.seen_in == "host time" or not alone.size:
        return one.late_ns
    row = job.numbers.index(one.rank)
    return max(min(int(typical(alone[row][None, :])[0]), one.late_ns), expected, 0)


def behind_findings(facts: Facts) -> Iterator[Finding]:
    """Ranks that arrive last though they do nothing longer: no saving is promised for them."""
    for one in facts.job.behind:
        yield Finding(
            id="behind",
            title=without_reason(facts, one).capitalize(),
            severity="info",
            ranks=[facts.job.numbers[one.rank]],
            evidence={
                "late_ns": one.late_ns,
                "entered_later_ns": one.entered_ns,
                "host_ns": one.host_ns,
                "usual_host_ns": one.usual_host_ns,
                "stalled_ns": None if one.stall is None else one.stall.ns,
                "stalled_in_step": None if one.stall is None else one.stall.step,
            },
            saves_ns=None,
            try_=[
                "nvprobe analyze of this rank: its GPU waits for its host, as the others' would if "
                "their hosts were not ahead",
                "capture later steps, after all ranks have waited for one another",
            ],
        )


def once_findings(facts: Facts) -> Iterator[Finding]:
    """A rank that was late in one step alone."""
    job, one = facts.job, facts.job.once
    if one is None or facts.unit != "step":
        return
    yield Finding(
        id="late_once",
        title=once_title(facts, one).capitalize(),
        severity="info",
        ranks=[job.numbers[one.rank]],
        evidence={"late_ns": one.ns, "step": one.step, "clock_error_ns": job.clocks.error_ns},
        saves_ns=None,
        try_=["look at what this rank did in that step: a checkpoint, logging, a slow batch"],
    )


def once_title(facts: Facts, one: Once) -> str:
    """``rank 1 was late once: by 40 ms in step 12``."""
    number = facts.job.numbers[one.rank]
    return f"rank {number} was late once: by {duration(one.ns)} in step {one.step}"


def by_replay(one: Finding) -> str:
    """``if it did what rank 0 does, a step is by replay 20.6 ms shorter, between …``, or nothing.

    Where the job gains nothing, the title says it.
    """
    known = [value for key in REPLAYED_NS if isinstance(value := one.evidence.get(key), int)]
    if len(known) < len(REPLAYED_NS) or one.saves_ns is None:
        return ""
    least, expected, most = (duration(ns) for ns in known)
    other = one.evidence.get("replayed_like_rank")
    change = "without it" if other is None else f"if it did what rank {other} does"
    return f"{change}, a step is by replay {expected} shorter, between {least} and {most}"
