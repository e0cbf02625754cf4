"""What a late rank costs its job: its step if that rank did what the next latest one does.

The captures of both are read again and replayed together, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.replay.search import MODEL_ERROR
from nvprobe.errors import NvprobeError
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.job import SYMMETRIC, Job
from nvprobe.ranks.simulation import JointReplay, read_job
from nvprobe.ranks.store import content_bytes
from nvprobe.ranks.stragglers import WORTH
from nvprobe.ranks.summary import Identity

_MOST = 2
"""Late ranks that are replayed, the latest first."""
_BYTES = 64 << 20
"""Of both captures: more takes longer to read than the comparison of a whole job."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """A step of the job if one rank did what another one does."""

    other: int
    """Number of the other rank."""
    saved_ns: tuple[int, ...]
    """By what it is shorter, unprofiled, by each calibration that may hold."""
    step_ns: int
    """The job's unprofiled step."""

    @property
    def bounds_ns(self) -> tuple[int, int, int]:
        """At least, expected, at most; with the error of the model."""
        error, mean = round(MODEL_ERROR * self.step_ns), sum(self.saved_ns) // len(self.saved_ns)
        return max(min(self.saved_ns) - error, 0), max(mean, 0), max(max(self.saved_ns) + error, 0)

    @property
    def gains(self) -> bool | None:
        """Whether that is worth a name by every calibration; ``None`` where they differ."""
        worth = [saved > WORTH * self.step_ns for saved in self.saved_ns]
        return all(worth) if all(worth) or not any(worth) else None


def likenesses(found: Job, sources: Mapping[Identity, Source]) -> dict[int, Likeness]:
    """Of the latest stragglers, by the number of the rank; none where they cannot be replayed.

    ``sources``: the capture of each rank.
    """
    out = {}
    for late, _ in found.stragglers[:_MOST]:
        other = _next_latest(found, late.rank)
        if other is None:
            continue
        captures = [sources[found.roster.ranks[row].identity] for row in (late.rank, other)]
        one = _replayed(captures, found.numbers[late.rank], found.numbers[other])
        if one is not None:
            out[found.numbers[late.rank]] = one
    return out


def _next_latest(found: Job, row: int) -> int | None:
    """The rank that would be waited for instead: of those that meet it the one that waits least.

    None for a stage of a pipeline: sends and receives are not replayed together.
    """
    members, late = found.members, found.delays
    kinds = np.unique(members.kind[members.rank == row])
    if any(found.texts[kind] not in SYMMETRIC for kind in kinds.tolist()):
        return None
    met = np.isin(found.code, found.code[members.rank == row]) & (members.rank != row)
    if late.by_steps:
        met &= np.isin(members.step, late.steady_steps)
    others, place = np.unique(members.rank[met], return_inverse=True)
    waited = np.bincount(place, late.arrivals.wait_ns[met])
    return int(others[waited.argmin()]) if len(others) else None


def _replayed(captures: Sequence[Source], rank: int, other: int) -> Likeness | None:
    sources = list({one.name: one for one in captures}.values())
    try:
        if sum(content_bytes(one) for one in sources) > _BYTES:
            return None
        both, read = read_job(sources)
        if not {rank, other} <= set(both.numbers):
            return None
        replay = JointReplay(both, read)
    except (NvprobeError, OSError):
        return None
    rows = both.numbers.index(rank), both.numbers.index(other)
    return Likeness(other, tuple(replay.like_another(*rows)), replay.step_ns)
