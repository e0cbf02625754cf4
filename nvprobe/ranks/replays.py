"""What the job's unprofiled step gains without what arrivals show: late ranks, exposed transfer.

The captures concerned are read again and replayed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nvprobe.analysis.replay.search import MODEL_ERROR
from nvprobe.errors import NvprobeError
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.job import SYMMETRIC, Job
from nvprobe.ranks.late import NOTABLE
from nvprobe.ranks.late_findings import REPLAYED_NS
from nvprobe.ranks.simulation import JointReplay, read_job
from nvprobe.ranks.store import content_bytes
from nvprobe.ranks.stragglers import WORTH
from nvprobe.ranks.summary import Identity
from nvprobe.trace import Column

_MOST_LATE, _MOST_RANKS = 2, 8
"""Late ranks that are replayed, the latest first; ranks of a job that is replayed as a whole."""
_BYTES = 64 << 20
"""Of all captures in a replay: more takes longer to read than the comparison of a whole job."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """By how much a step of the job is shorter with a change."""

    saved_ns: tuple[int, ...]
    """Unprofiled, by each calibration that may hold."""
    step_ns: int
    """The job's unprofiled step."""
    other: int | None = None
    """Of a late rank, the number of the rank whose work it does instead of its own."""

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

    @property
    def evidence(self) -> dict[str, int]:
        """The bounds as a finding has them."""
        return dict(zip(REPLAYED_NS, self.bounds_ns, strict=True))


@dataclass(frozen=True, slots=True)
class Replays:
    """What was replayed of a job."""

    late: Mapping[int, Replayed] = field(default_factory=dict)
    """The latest stragglers, by the number of the rank: if each did what the next one does."""
    transfer: Replayed | None = None
    """If collectives took no time beyond waiting for their last member."""


def replays(found: Job, sources: Mapping[Identity, Source]) -> Replays:
    """What findings of a job need, where it can be replayed. ``sources``: each rank's capture."""
    late, kept = {}, dict[tuple[int, ...], JointReplay | None]()

    def replay(rows: Sequence[int]) -> JointReplay | None:
        """Of some ranks, read once."""
        key = tuple(sorted(rows))
        if key not in kept:
            captures = [sources[found.roster.ranks[row].identity] for row in key]
            kept[key] = _read(captures, {found.numbers[row] for row in key})
        return kept[key]

    for one, _ in found.stragglers[:_MOST_LATE]:
        other = _next_latest(found, one.rank)
        pair = None if other is None else replay((one.rank, other))
        if pair is None or other is None:
            continue
        numbers = found.numbers[one.rank], found.numbers[other]
        saved = pair.like_another(*(pair.job.numbers.index(number) for number in numbers))
        late[numbers[0]] = Replayed(tuple(saved), pair.step_ns, numbers[1])
    return Replays(late, _transfer(found, replay))


def _transfer(found: Job, replay: Callable[[Sequence[int]], JointReplay | None]) -> Replayed | None:
    exposed = found.exposed_transfer_ns or 0
    if exposed < NOTABLE * (found.step_ns or 0) or found.roster.missing:
        return None
    if not exposed or len(found.numbers) > _MOST_RANKS or not _symmetric(found, found.members.kind):
        return None
    whole = replay(range(len(found.numbers)))
    return None if whole is None else Replayed(tuple(whole.free_transfer()), whole.step_ns)


def _next_latest(found: Job, row: int) -> int | None:
    """The rank that would be waited for instead: of those that meet it the one that waits least.

    None for a stage of a pipeline: sends and receives are not replayed together.
    """
    members, late = found.members, found.delays
    if not _symmetric(found, members.kind[members.rank == row]):
        return None
    met = np.isin(found.code, found.code[members.rank == row]) & (members.rank != row)
    if late.by_steps:
        met &= np.isin(members.step, late.steady_steps)
    others, place = np.unique(members.rank[met], return_inverse=True)
    waited = np.bincount(place, late.arrivals.wait_ns[met])
    return int(others[waited.argmin()]) if len(others) else None


def _symmetric(found: Job, kinds: Column) -> bool:
    return all(found.texts[kind] in SYMMETRIC for kind in np.unique(kinds).tolist())


def _read(captures: Sequence[Source], numbers: set[int]) -> JointReplay | None:
    """The replay of these ranks, ``None`` where they cannot be replayed together."""
    sources = list({one.name: one for one in captures}.values())
    try:
        if sum(content_bytes(one) for one in sources) > _BYTES:
            return None
        some, read = read_job(sources)
        return JointReplay(some, read) if numbers <= set(some.numbers) else None
    except (NvprobeError, OSError):
        return None
