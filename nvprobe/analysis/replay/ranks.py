"""Captures of the ranks of a job, made ready to be replayed together.

The gate is that of one process, for each rank: replayed with the others and unchanged, it must give
its captured steps. Only steps that every rank has count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nvprobe.analysis.replay.build import LEAST_STEPS, Captured
from nvprobe.analysis.replay.contention import Contention
from nvprobe.analysis.replay.gate import Fidelity, pieces, usual
from nvprobe.analysis.replay.joint import Joint, joined
from nvprobe.analysis.replay.model import NOTHING, Model
from nvprobe.analysis.replay.run import step_times
from nvprobe.analysis.replay.sample import Sample, sample_of, usual_steps
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

ROUNDS, SETTLED_NS = 5, 1_000
"""So often durations follow from what is beside them, or until none changes by more than this."""


@dataclass(frozen=True)
class RankCapture:
    """The capture of one rank."""

    attribution: Attribution
    captured: Captured
    code: Column
    """Per op of the model: the collective that it is a member of, ``NOTHING``; of all ranks."""
    contention: Contention
    begin: Column
    """When each step begins, on the clock of all ranks."""


@dataclass(frozen=True)
class Ranks:
    """The captures of all ranks, and the steps that all of them have."""

    captures: Sequence[RankCapture]
    first: Sequence[int]
    """Per rank: its first step of these."""
    steps: int

    def like(self, row: int, other: int) -> Ranks:
        """The ranks if one did what another does, when that one does it."""
        captures, first = list(self.captures), list(self.first)
        captures[row], first[row] = captures[other], first[other]
        return dataclasses.replace(self, captures=captures, first=first)

    @cached_property
    def transfer(self) -> Column:
        """Per collective: as long as its shortest member, which nobody made wait."""
        codes = np.concatenate([one.code for one in self.captures])
        length = np.concatenate(
            [one.captured.op_end - one.captured.op_start for one in self.captures]
        )
        out = np.full(int(codes.max(initial=NOTHING)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(out, codes[codes >= 0], length[codes >= 0])
        return out

    def _ops(self, low: int, count: int) -> list[slice]:
        """Of each rank the ops of some steps."""
        out = []
        for one, first in zip(self.captures, self.first, strict=True):
            border = one.captured.model.borders[[first + low, first + low + count]]
            out.append(slice(*one.captured.model.events.first_op[border].tolist()))
        return out

    def codes(self, low: int, count: int) -> list[Column]:
        """Per rank and op of some steps: its collective, ``NOTHING`` if a member is elsewhere."""
        own = zip(self.captures, self._ops(low, count), strict=True)
        some = [one.code[ops] for one, ops in own]
        size = len(self.transfer)
        whole, here = (
            np.bincount(codes[codes >= 0], minlength=size)
            for codes in (np.concatenate([one.code for one in self.captures]), np.concatenate(some))
        )
        kept = np.append(whole == here, False)
        return [np.where(kept[codes], codes, NOTHING) for codes in some]

    def begins(self, low: int) -> list[int]:
        """When each rank begins a step, after the first of them that does."""
        begin = [
            int(one.begin[first + low])
            for one, first in zip(self.captures, self.first, strict=True)
        ]
        return [one - min(begin) for one in begin]

    def joint(self, models: Sequence[Model], low: int, count: int) -> Joint:
        """Models of some steps as one; members of collectives last as long as in ``models``.

        Ops take as long as communication is then beside them.
        """
        codes, begins = self.codes(low, count), self.begins(low)
        own = zip(self.captures, self._ops(low, count), strict=True)
        slowed = [
            Contention(*(values[ops] for values in one.contention.columns().values()))
            for one, ops in own
        ]
        found = joined(models, codes, begins)
        for _ in range(ROUNDS):
            lasts = [
                one.durations(model.ops.dur, found.overlap(rank, one.talks))
                for rank, (model, one) in enumerate(zip(models, slowed, strict=True))
            ]
            now = zip(lasts, found.models, strict=True)
            if all(np.abs(dur - one.ops.dur).max(initial=0) <= SETTLED_NS for dur, one in now):
                break
            found = found.lasting(lasts)
        return found

    def without_waiting(self, models: Sequence[Model], low: int, count: int) -> list[Model]:
        """Models of some steps in which collectives are transfer alone."""
        out = []
        for model, codes in zip(models, self.codes(low, count), strict=True):
            dur = np.where(codes >= 0, np.append(self.transfer, 0)[codes], model.ops.dur)
            out.append(_lasting(model, dur))
        return out

    def sections(self, models: Sequence[Model], low: int, count: int) -> list[Model]:
        """Some steps of models of whole captures."""
        return self.without_waiting(
            [
                model.section(first + low, first + low + count, one.captured.events.begin)
                for model, first, one in zip(models, self.first, self.captures, strict=True)
            ],
            low, count,
        )  # fmt: skip


def _lasting(model: Model, dur: Column) -> Model:
    return dataclasses.replace(model, ops=model.ops.with_columns(dur=dur))


def together(captures: Sequence[RankCapture]) -> Ranks | None:
    """The ranks with the steps that all recorded one after the other; ``None`` for too few."""
    index = [one.captured.step_index for one in captures]
    common = index[0]
    for other in index[1:]:
        common = common[np.isin(common, other)]
    if len(common) < LEAST_STEPS:
        return None
    place = np.stack([np.argsort(own)[np.searchsorted(np.sort(own), common)] for own in index])
    head = runs(np.cumsum(np.append(0, (np.diff(place) != 1).any(axis=0))))
    length = np.diff(np.append(head, len(common)))
    longest = int(length.argmax())
    if length[longest] < LEAST_STEPS:
        return None
    return Ranks(captures, place[:, head[longest]].tolist(), int(length[longest]))


def joint_fidelity(ranks: Ranks) -> list[Fidelity]:
    """How well each rank's captured step is met when all are replayed together."""
    captures = [one.captured for one in ranks.captures]
    models = [one.uncut for one in captures], [usual(one) for one in captures]
    lengths: list[tuple[list[Column], ...]] = [([], [], []) for _ in captures]
    for low, high in pieces(max(len(one.uncut.events) for one in captures), ranks.steps):
        for which, some in enumerate(models):
            joint = ranks.joint(ranks.sections(some, low, high - low), low, high - low)
            for rank, model in enumerate(joint.models):
                lengths[rank][which + 1].append(step_times(model, joint.times(rank))[1:])
        for rank, one in enumerate(captures):
            first = ranks.first[rank]
            lengths[rank][0].append(np.diff(one.completion())[first + low + 1 : first + high])
    out = []
    for own, capture in zip(lengths, captures, strict=True):
        recorded, replayed, plain = (int(np.median(np.concatenate(one))) for one in own)
        out.append(Fidelity(recorded, replayed, plain, capture.edges.late_ns, capture.lost_ops))
    return out


def sampled(ranks: Ranks) -> tuple[int, list[Sample]]:
    """(first step, a few neighboring steps of each rank from there on)."""
    far = np.zeros(ranks.steps)
    for one, first in zip(ranks.captures, ranks.first, strict=True):
        lengths = np.diff(one.captured.completion())[first : first + ranks.steps]
        far += np.abs(lengths - np.median(lengths[1:]))
    low, count = usual_steps(far, [one.captured.model for one in ranks.captures])
    return low, [
        sample_of(one.attribution, one.captured, first + low, count)
        for one, first in zip(ranks.captures, ranks.first, strict=True)
    ]
