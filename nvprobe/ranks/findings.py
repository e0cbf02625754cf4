"""What the ranks show together: the verdict and findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvprobe.analysis.verdict import duration, short_path
from nvprobe.ranks.cautions import called, listed, together
from nvprobe.ranks.document import Collective, Difference, Finding, Group, Straggler
from nvprobe.ranks.late import NOTABLE
from nvprobe.ranks.late_findings import (
    behind_findings,
    late_findings,
    late_title,
    once_findings,
    once_title,
    without_reason,
)

if TYPE_CHECKING:
    from nvprobe.ranks.job import Job
    from nvprobe.ranks.replays import Replays


_SLOW = 0.5
"""Of the bandwidth that other groups of the same kind and size reach."""
_GROUPS = 3
_UNEVEN = 0.1
_NAMED = 8


@dataclass(frozen=True)
class Facts:
    """What findings are made from."""

    job: Job
    groups: list[Group]
    collectives: list[Collective]
    stragglers: list[Straggler]
    differences: list[Difference]
    replays: Replays | None = None

    @property
    def unit(self) -> str:
        """What delays are counted by."""
        by_steps = self.job.delays.by_steps or not len(self.job.members)
        return "step" if by_steps else "collective"


def verdict(facts: Facts) -> str:
    """The report's first line."""
    if facts.stragglers:
        return late_title(facts, facts.stragglers[0]) + (
            f"; {len(facts.stragglers) - 1} more {_ranks(len(facts.stragglers) - 1)} late"
            if len(facts.stragglers) > 1
            else ""
        )
    if len(facts.job.numbers) < 2:
        return "A single rank: nothing to compare it with"
    if facts.job.behind:
        return f"No straggler: {without_reason(facts, facts.job.behind[0])}"
    if (slow := next(_slow_groups(facts), None)) is not None:
        return f"No straggler, but a slow network: {slow.title}"
    if not facts.groups:
        return "No straggler shows by host time alone, and no collective was recorded on two ranks"
    waited, moved = (sum(getattr(g, name) for g in facts.groups) for name in _SPLIT)
    error = facts.job.clocks.error_ns or 0
    if len(together(facts)) == len(facts.groups):
        return (
            f"No straggler: arrivals agree within the error of the clocks ({duration(error)}); "
            f"communication is transfer"
        )
    part = f"{_share(waited, waited + moved)} of communication is waiting"
    if facts.job.once is not None and facts.unit == "step":
        return f"No straggler: {once_title(facts, facts.job.once)}; {part}"
    if facts.job.delays.steady.shape[1] < 2:
        return f"One {facts.unit} cannot show which rank is late in each; {part}"
    return f"No straggler: no rank is late {facts.unit} after {facts.unit}; {part}"


_SPLIT = ("wait_ns", "transfer_ns")


def _ranks(number: int) -> str:
    return "rank is" if number == 1 else "ranks are"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "nothing"


def findings(facts: Facts) -> list[Finding]:
    """All findings, stragglers first."""
    rules = (
        late_findings,
        behind_findings,
        once_findings,
        _slow_groups,
        _exposed,
        _bubbles,
        _uneven,
        _different,
    )
    return [finding for rule in rules for finding in rule(facts)]


def _slow_groups(facts: Facts) -> Iterator[Finding]:
    """Groups whose members arrive together and get far less through than other groups do."""
    alike: dict[tuple[str, int | None], list[Collective]] = {}
    for one in facts.collectives:
        if one.bus_bytes_s is not None:
            alike.setdefault((one.kind, one.bytes), []).append(one)
    usual = {
        key: float(np.median([one.bus_bytes_s or 0.0 for one in some]))
        for key, some in alike.items()
        if len({one.group for one in some}) >= _GROUPS
    }
    members = {group.group: group for group in facts.groups}
    said = set()
    for one in sorted(facts.collectives, key=lambda one: -one.transfer_ns * one.count):
        reached, normal = one.bus_bytes_s or np.inf, usual.get((one.kind, one.bytes), 0.0)
        apart = one.skew_ns >= one.transfer_ns
        if one.group in said or apart or reached >= _SLOW * normal:
            continue
        said.add(one.group)
        yield _slow_group(members[one.group], one, normal)


def _slow_group(group: Group, one: Collective, usual: float) -> Finding:
    reached = one.bus_bytes_s or 0.0
    return Finding(
        id="slow_network",
        title=f"{one.kind} of {called(group)} reaches {reached / 1e9:.1f} GB/s on the bus, other "
        f"groups {usual / 1e9:.1f} GB/s; its ranks arrive together",
        severity="high",
        ranks=group.ranks[:_NAMED],
        evidence={
            "bytes": one.bytes,
            "bus_bytes_s": reached,
            "usual_bus_bytes_s": usual,
            "skew_ns": one.skew_ns,
            "transfer_ns": one.transfer_ns,
            "collectives": one.count,
        },
        saves_ns=None,
        try_=[
            "look at the links of these ranks: NVLink or the network adapters of their nodes, "
            "NCCL_DEBUG=INFO says which it uses",
        ],
    )


def _exposed(facts: Facts) -> Iterator[Finding]:
    """Communication that no compute hides, without what is waiting for a rank.

    Replayed it is what the unprofiled job gains if transfer takes no time.
    """
    job, replayed = facts.job, None if facts.replays is None else facts.replays.transfer
    per_step = job.exposed_transfer_ns
    if not job.step_ns or per_step is None or per_step < NOTABLE * job.step_ns:
        return
    most = per_step
    if replayed is not None:
        most = max(replayed.saved_ns)
        if replayed.bounds_ns[1] < NOTABLE * replayed.step_ns:
            return
    steps = np.array([max(len(one.steps), 1) for one in job.roster.ranks])
    yield Finding(
        id="exposed_transfer",
        title=f"Up to {duration(most)} of a step is transfer with no compute beside it",
        severity="medium",
        ranks=[],
        evidence={
            "exposed_transfer_ns": per_step,
            "exposed_ns": int(np.median(job.by_rank(job.members.exposed_ns) / steps)),
            "step_ns": job.step_ns,
            **({} if replayed is None else replayed.evidence),
        },
        saves_ns=None if job.roster.missing else most,  # it may be waiting for a missing one
        try_=[
            "start collectives earlier, or wait for the result later, with compute between",
            "bucket sizes (bucket_cap_mb of DDP), prefetching of FSDP, compression of gradients",
        ],
    )


def _bubbles(facts: Facts) -> Iterator[Finding]:
    """Stages of a pipeline that wait for each other in sends and receives."""
    job = facts.job
    kinds: dict[str, set[str]] = {}
    for one in facts.collectives:
        kinds.setdefault(one.group, set()).add(one.kind)
    pipes = {
        group.group
        for group in facts.groups
        if group.role == "pipeline" or kinds.get(group.group) == {"send_recv"}
    }
    piped = [row for row, key in enumerate(job.groups.keys) if key in pipes]
    here = np.isin(job.members.group, piped)
    if not here.any() or not job.step_ns:
        return
    waited = np.bincount(
        job.members.rank[here], job.delays.arrivals.wait_ns[here], len(job.numbers)
    )
    stages = np.unique(job.members.rank[here])
    per_step = (waited / np.array([max(len(one.steps), 1) for one in job.roster.ranks]))[stages]
    if np.median(per_step) <= NOTABLE * job.step_ns:
        return
    ranks = tuple(job.numbers[stage] for stage in stages.tolist())
    yield Finding(
        id="pipeline_bubble",
        title=f"Stages of the pipeline (ranks {listed(ranks)}) wait "
        f"{duration(int(np.median(per_step)))} per step for each other",
        severity="medium",
        ranks=list(ranks[:_NAMED]),
        evidence={
            "wait_ns": int(np.median(per_step)),
            "longest_wait_ns": int(per_step.max()),
            "longest_wait_rank": ranks[int(per_step.argmax())],
            "step_ns": job.step_ns,
        },
        saves_ns=None,
        try_=["more micro-batches, an interleaved schedule, stages of equal length"],
    )


def _uneven(facts: Facts) -> Iterator[Finding]:
    """Ranks that compute much more than the others while nobody waits for them.

    Not those that wait most themselves: kernels beside a collective that waits are slower for it.
    """
    job, late = facts.job, {one.rank for one in facts.stragglers}
    met, size = job.delays.arrivals, len(job.numbers)
    waited = np.bincount(job.members.rank, met.wait_ns, size)
    steps = max(1, *(len(one.steps) for one in job.roster.ranks))
    waits = waited > np.median(waited) + NOTABLE * (job.step_ns or 0) * steps
    gpu = np.array([kind == "gpu" for kind in job.work.kind], bool)
    compute = job.work.ns[:, gpu].sum(axis=1)
    if len(compute) < 2 or not job.step_ns or not compute.any():
        return
    for row in np.argsort(-compute, kind="stable")[:_NAMED].tolist():
        usual = float(np.median(np.delete(compute, row)))
        more = float(compute[row]) - usual
        if job.numbers[row] in late or waits[row]:
            continue
        if more < _UNEVEN * usual or more < NOTABLE * job.step_ns:
            continue
        most = int(np.argmax((job.work.ns[row] - np.median(job.work.ns, axis=0)) * gpu))
        yield Finding(
            id="imbalance",
            title=f"Rank {job.numbers[row]} has {duration(int(more))} more GPU work per step than "
            f"the others ({short_path(job.work.path[most] or 'no path', 40)}); nobody waits for it",
            severity="info",
            ranks=[job.numbers[row]],
            evidence={"gpu_ns": int(compute[row]), "usual_ns": int(usual)},
            saves_ns=None,
            try_=["balance the work of the ranks before it becomes the longest"],
        )


def _different(facts: Facts) -> Iterator[Finding]:
    again = [one for one in facts.differences if one.name.startswith("recompilation")]
    if again:
        yield Finding(
            id="recompiled_on_some_ranks",
            title=f"{len(again)} {'function was' if len(again) == 1 else 'functions were'} "
            "compiled again on some ranks only",
            severity="medium",
            ranks=sorted({rank for one in again for rank in one.ranks})[:_NAMED],
            evidence={"first": again[0].name},
            saves_ns=None,
            try_=["the same shapes on every rank, or dynamic shapes; see the reason of each"],
        )
