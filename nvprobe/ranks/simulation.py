"""The steps of a whole job with changes: every rank replayed together with the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.critical_time import OnPath, joint_critical_time
from nvprobe.analysis.overlap.combinations import Work
from nvprobe.analysis.replay.build import build
from nvprobe.analysis.replay.contention import contention, kernels
from nvprobe.analysis.replay.gate import too_long
from nvprobe.analysis.replay.joint import Joint
from nvprobe.analysis.replay.joint_costs import joint_variants
from nvprobe.analysis.replay.levels import Edit, Level, all_of, changed
from nvprobe.analysis.replay.model import NOTHING, Model
from nvprobe.analysis.replay.ranks import RankCapture, Ranks, joint_fidelity, sampled, together
from nvprobe.analysis.replay.search import MODEL_ERROR
from nvprobe.analysis.simulation import Asked, edit_of
from nvprobe.errors import UsageError
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.job import SYMMETRIC, Job, job
from nvprobe.ranks.map import CapturedRank, captured_ranks
from nvprobe.ranks.match import matched
from nvprobe.ranks.talk import communicating


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of one rank, without the profiler."""

    rank: int
    step_ns: int
    waits_ns: int
    """In collectives, until the last rank arrives."""
    last: float
    """Share of the collectives at which it arrives last, by more than the error of the clocks."""


@dataclass(frozen=True, slots=True)
class JobSimulation:
    """A step of a job as it is and as it would be, without the profiler."""

    step_ns: int
    calibration: str
    replay_error: float
    """Of the rank whose captured step is met worst."""
    saving: tuple[float, float, float]
    """At least, expected, at most, as shares of the step."""
    step_with_ns: tuple[int, int, int]
    """The step with the changes: at least, expected, at most."""
    missing_ranks: tuple[int, ...]
    ranks: tuple[RankStep, ...]
    ranks_with: tuple[RankStep, ...]
    before: tuple[tuple[int, OnPath], ...]
    """The critical path, each part with its rank."""
    after: tuple[tuple[int, OnPath], ...]


class NotTogether(UsageError):
    """The ranks of a job cannot be replayed together; each by itself may be."""


class JointReplay:
    """A few steps of all ranks of a job that are replayed together.

    Raises NotTogether where they cannot be, or where that is not what was captured.
    """

    def __init__(self, found: Job, captures: Sequence[CapturedRank]) -> None:
        self.job, self.captures = found, captures
        self.ranks = _ranks(found, captures)
        self.fidelity = joint_fidelity(self.ranks)
        for rank, one in zip(found.numbers, self.fidelity, strict=True):
            if not one.passed:
                error = max(one.error, one.usual_error)
                raise NotTogether(
                    f"no joint replay: the replayed step of rank {rank} is {error:.1%} off the "
                    "captured one"
                )
        self.low, self.samples = sampled(self.ranks)
        captured = max(one.captured_ns for one in self.fidelity)
        known = None if self.bare_ns is None else min(self.bare_ns, captured)
        self.bases = joint_variants(self.ranks, self.low, self.samples, known, self._bare())
        """The models of the ranks by every calibration that may hold, the likeliest first."""
        self.joints = [self._joint(models) for models in self.bases]

    @property
    def bare_ns(self) -> int | None:
        """The unprofiled step, where it was measured on every rank: that of the slowest."""
        bare = self._bare()
        return max(bare) if len(bare) == len(self.captures) else None

    def _bare(self) -> list[int]:
        """Unprofiled steps of the ranks where it was measured."""
        known = [one.attribution.trace.profiling for one in self.captures]
        return [one.bare.step_ns for one in known if one is not None and one.bare is not None]

    @property
    def step_ns(self) -> int:
        """The unprofiled step of the job: as it was measured, else as it is replayed."""
        return self.bare_ns or self.joints[0].step_ns()

    def _joint(self, models: Sequence[Model]) -> Joint:
        return self.ranks.joint(models, self.low, self.samples[0].steps)

    def with_edits(self, base: int, edits: Sequence[Edit], level: Level) -> Joint:
        """The ranks by one calibration with a change each."""
        models = self.bases[base]
        return self._joint([changed(m, edit, level) for m, edit in zip(models, edits, strict=True)])

    def like_another(self, row: int, other: int) -> list[int]:
        """ns by which a step is shorter if a rank did what another does, by each calibration."""
        swapped, saved = self.ranks.like(row, other), []
        for models, joint in zip(self.bases, self.joints, strict=True):
            alike = [models[other] if one == row else model for one, model in enumerate(models)]
            step = swapped.joint(alike, self.low, self.samples[0].steps).step_ns()
            saved.append(round(self.step_ns * (1 - step / max(joint.step_ns(), 1))))
        return saved

    def free_transfer(self) -> list[int]:
        """ns by which a step is shorter if collectives take no time once all members are there."""
        codes, saved = self.ranks.codes(self.low, self.samples[0].steps), []
        for models, joint in zip(self.bases, self.joints, strict=True):
            free = [
                dataclasses.replace(
                    model, ops=model.ops.with_columns(dur=np.where(code >= 0, 1, model.ops.dur))
                )
                for model, code in zip(models, codes, strict=True)
            ]
            step = self._joint(free).step_ns()
            saved.append(round(self.step_ns * (1 - step / max(joint.step_ns(), 1))))
        return saved

    def simulate(self, asked: Asked, only: Sequence[int] = ()) -> JobSimulation:
        """The step with changes on all ranks, or on ``only`` some (numbers of ranks)."""
        edits = self._edits(asked, only)
        saved: dict[Level, list[float]] = {level: [] for level in Level}
        for base, joint in enumerate(self.joints):
            for level in Level:
                step = self.with_edits(base, edits, level).step_ns()
                saved[level].append(1 - step / max(joint.step_ns(), 1))
        every = [share for some in saved.values() for share in some]
        saving = (
            min(every) - MODEL_ERROR, float(np.mean(saved[Level.MID])), max(every) + MODEL_ERROR
        )  # fmt: skip
        after = self.with_edits(0, edits, Level.MID)
        syncs = [one.waits.syncs for one in self.captures]
        least, expected, most = (max(round(self.step_ns * (1 - one)), 0) for one in saving[::-1])
        return JobSimulation(
            step_ns=self.step_ns,
            calibration="default" if self.bare_ns is None else "measured",
            replay_error=max(one.error for one in self.fidelity),
            saving=saving,
            step_with_ns=(least, expected, most),
            missing_ranks=self.job.roster.missing,
            ranks=self._steps(self.joints[0]),
            ranks_with=self._steps(after),
            before=self._numbered(joint_critical_time(self.samples, self.joints[0], syncs)),
            after=self._numbered(joint_critical_time(self.samples, after, syncs)),
        )

    def _numbered(self, path: Sequence[tuple[int, OnPath]]) -> tuple[tuple[int, OnPath], ...]:
        return tuple((self.job.numbers[row], part) for row, part in path)

    def _steps(self, joint: Joint) -> tuple[RankStep, ...]:
        """Each rank's step, at the scale of the job's."""
        scale = self.step_ns / max(self.joints[0].step_ns(), 1)
        rank, step, met = joint.meetings()
        steady, size = min(1, joint.steps - 1), len(joint.models)
        meetings, error = met.meetings, self.job.clocks.error_ns or 0
        counted = step[meetings.last] >= steady
        skewed = counted & (meetings.latest - meetings.second > error)
        waits = np.bincount(rank, np.where(step >= steady, met.wait_ns, 0), size)
        last = np.bincount(rank[meetings.last[skewed]], minlength=size)
        return tuple(
            RankStep(
                number,
                round(scale * joint.rank_step_ns(row)),
                round(scale * waits[row] / (joint.steps - steady)),
                float(last[row] / max(np.count_nonzero(counted), 1)),
            )
            for row, number in enumerate(self.job.numbers)
        )

    def _edits(self, asked: Asked, only: Sequence[int]) -> list[Edit]:
        """The changes of each rank. One that no rank has anything of is an error, as of one run."""
        unknown = sorted(set(only) - set(self.job.numbers))
        if unknown:
            raise UsageError(f"--rank {unknown[0]}: the job has ranks {self.job.numbers}")
        parts: list[list[Edit]] = [[] for _ in self.samples]
        for one in asked.each():
            missing = []
            for row, number in enumerate(self.job.numbers):
                if only and number not in only:
                    continue
                try:
                    syncs = self.captures[row].waits.syncs
                    parts[row].append(edit_of(self.samples[row], one, syncs))
                except UsageError as error:
                    missing.append(error)
            if len(missing) == len(set(only) or self.samples):
                raise missing[0]
        return [all_of(some) for some in parts]


def _ranks(found: Job, captures: Sequence[CapturedRank]) -> Ranks:
    if not len(found.members):
        raise NotTogether("no joint replay: no collective was recorded on two ranks")
    models = rank_captures(found, captures)
    for number, one in zip(found.numbers, models or (), strict=False):
        if too_long(one.captured):
            raise NotTogether(f"no joint replay: a step of rank {number} makes too many calls")
    ranks = None if models is None else together(models)
    if ranks is None:
        raise NotTogether("no joint replay: the ranks have no three steps in a row with launches")
    return ranks


def read_job(sources: Sequence[Source]) -> tuple[Job, list[CapturedRank]]:
    """The ranks of a job on one clock, and all that was read of each, in their order."""
    read = [one for source in sources for one in captured_ranks(source)]
    found = job([one.summary() for one in read])
    by_name = {(one.identity.source, one.identity.process): one for one in read}
    order = [one.identity for one in found.roster.ranks]
    return found, [by_name[one.source, one.process] for one in order]


def rank_captures(found: Job, captures: Sequence[CapturedRank]) -> list[RankCapture] | None:
    """The models of the job's ranks, ``None`` where one has no steps to replay.

    ``captures``: in the order of the job's ranks.
    """
    table = found.table
    alike = np.array([text in SYMMETRIC for text in found.texts] + [False], bool)
    code = np.where(alike[table.kind], matched(table), NOTHING)
    built = [build(one.attribution, one.all_steps, one.waits, one.process) for one in captures]
    models = [one for one in built if one is not None]
    if len(models) < len(built):
        return None
    own = list(zip(captures, models, strict=True))
    known: dict[tuple[str | None, ...], int] = {}
    slowed = contention(
        [kernels(one.attribution.trace, known)[model.op] for one, model in own],
        [(one.waits.work == Work.COMMUNICATION)[model.op] for one, model in own],
        [model.op_start for model in models],
        [model.op_end for model in models],
    )
    out = []
    for row, ((one, model), beside) in enumerate(zip(own, slowed, strict=True)):
        trace = one.attribution.trace
        of_op = np.full(len(trace.ops), NOTHING)
        of_op[communicating(one.attribution, one.waits, one.process)] = code[table.rank == row]
        start = model.events.begin[model.model.borders[:-1]] + (trace.origin_ns or 0)
        begin = found.clocks.corrected(np.full(len(start), row), start)
        out.append(RankCapture(one.attribution, model, of_op[model.op], beside, begin))
    return out
