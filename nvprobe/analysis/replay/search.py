"""Which changes to advise, in which order, and what each saves of the step.

Greedy: the best change first, then the best of what the others still save in the changed model. So
savings in that order add up, and what two changes would both save is claimed once.
Definition: docs/replay.md, "Bounds and order".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from nvprobe.analysis.replay.costs import step_of
from nvprobe.analysis.replay.levels import Edit, Level, changed
from nvprobe.analysis.replay.model import Model

NOTABLE = 0.02
"""A change that is expected to save less of the step is none."""
MODEL_ERROR = 0.075
"""Of the step: how far a replayed saving may be off. Fitted on pairs with measured fixes."""
ROUNDS = 4
"""Changes that are applied one on top of the other; the rest are held against all of them."""
SPECIFIC = 0.25
"""A cause that saves this share of what a general change saves goes before it. Chosen on pairs."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change, and how hard it is to make: 1 for a line, less for more."""

    edit: Edit
    effort: float
    general: Literal["no", "host", "all"] = "no"
    """Whether it is a remedy for whatever the host does, or for that and all kernels, such as
    compiling the program: causes that explain a good part of the same time go before it."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What a change saves, as shares of the unprofiled step."""

    proposal: int
    """Position among the proposals."""
    low: float
    mid: float
    high: float
    after_previous: float
    """What it still saves when those before it are made."""
    instead_of: int | None
    """Position of the proposal that saves the same, where nothing remains after it."""


def search(
    bases: Sequence[Model], proposals: Sequence[Proposal], deciding: int | None = None
) -> list[Saving]:
    """Savings worth a change, the best first.

    ``bases``: the model by every calibration that may hold, the likeliest first; the first
    ``deciding`` of them say what is expected and the order, the others count for the bounds alone.
    """
    steps = [step_of(model) for model in bases]
    first, now = bases[:deciding], steps[:deciding]
    levels = [_after(first, now, now, one) for one in proposals]
    found = []
    for number, after, instead in _greedy(first, now, proposals, levels):
        low, high = _bounds(bases, steps, proposals[number])
        mid = levels[number].mid
        found.append(Saving(number, min(low, mid), mid, max(high, mid), after, instead))
    return found


def weigh(bases: Sequence[Model], edit: Edit) -> Saving:
    """What one change saves, however little that is."""
    one = Proposal(edit, 1.0)
    steps = [step_of(model) for model in bases]
    mid = _after(bases, steps, steps, one).mid
    low, high = _bounds(bases, steps, one)
    return Saving(0, min(low, mid), mid, max(high, mid), mid, None)


def expected(base: Model, edit: Edit) -> float:
    """What one change is expected to save, by one model."""
    return _saved(base, step_of(base), edit, Level.MID)


class _Saved(NamedTuple):
    """What a change saves: at its worst level, and on average over the calibrations."""

    low: float
    mid: float

    def score(self, effort: float) -> float:
        """Half-way between what is sure and what is expected, by how easy it is."""
        low = min(self.low, self.mid)
        return (low + (self.mid - low) / 2) * effort


def _saved(base: Model, step: int, edit: Edit, level: Level) -> float:
    return max(1 - step_of(changed(base, edit, level)) / step, 0.0) if step else 0.0


def _bounds(bases: Sequence[Model], steps: list[int], one: Proposal) -> tuple[float, float]:
    """Least and greatest over levels and calibrations, with the error of the model."""
    all_ = [
        _saved(base, step, one.edit, level)
        for base, step in zip(bases, steps, strict=True)
        for level in Level
    ]
    return max(min(all_) - MODEL_ERROR, 0.0), min(max(all_) + MODEL_ERROR, 1.0)


def _greedy(
    bases: Sequence[Model], steps: list[int], proposals: Sequence[Proposal], alone: list[_Saved]
) -> list[tuple[int, float, int | None]]:
    """(proposal, what it saves after those before, what it is an alternative to)."""
    order: list[tuple[int, float, int | None]] = []
    left, instead, models = dict(enumerate(alone)), dict[int, int](), list(bases)
    while len(order) < ROUNDS:
        able = {number: found for number, found in left.items() if found.mid >= NOTABLE}
        if not able:
            break
        best = _best(models[0], able, proposals)
        order.append((best, left.pop(best).mid, None))
        models = [changed(model, proposals[best].edit, Level.MID) for model in models]
        now = [step_of(model) for model in models]
        before = left
        left = {number: _after(models, now, steps, proposals[number]) for number in before}
        for number, had in before.items():
            if min(alone[number].mid, had.mid) >= NOTABLE > left[number].mid:
                instead[number] = best
    rest = [number for number in left if left[number].mid >= NOTABLE]
    rest.sort(key=lambda number: -left[number].score(proposals[number].effort))
    order += [(number, left[number].mid, None) for number in rest]
    gone = [number for number in instead if number in left and left[number].mid < NOTABLE]
    return order + [(number, 0.0, instead[number]) for number in gone]


def _best(model: Model, able: dict[int, _Saved], proposals: Sequence[Proposal]) -> int:
    """The best change; one that is general only where no specific one saves nearly as much.

    Of several general ones, that which is expected to save most says best what the matter is.
    """

    def score(number: int) -> float:
        return able[number].score(proposals[number].effort)

    best = max(able, key=score)
    if proposals[best].general == "no":
        return best
    best = max((n for n in able if proposals[n].general != "no"), key=lambda n: able[n].mid)
    general = proposals[best].general
    least = SPECIFIC * able[best].mid
    specific = [n for n in able if proposals[n].general == "no" and able[n].mid >= least]
    if general == "host":
        specific = [n for n in specific if _spares_host(model, proposals[n].edit)]
    return max(specific, key=score, default=best)


def _spares_host(model: Model, edit: Edit) -> bool:
    """Whether a change is one of what the host does, and not of kernels alone."""
    had, has = model.events, changed(model, edit, Level.MID).events
    columns = (had.gap, has.gap), (had.dur, has.dur), (had.awaits, has.awaits)
    return not all(np.array_equal(one, other) for one, other in columns)


def _after(models: Sequence[Model], now: list[int], steps: list[int], one: Proposal) -> _Saved:
    """What a change saves of the unchanged ``steps`` in models that now take ``now``."""

    def saved(number: int, level: Level) -> float:
        shorter = now[number] - step_of(changed(models[number], one.edit, level))
        return max(shorter / max(steps[number], 1), 0.0)

    # A level may turn out the other way round: with less GPU work a step may end differently.
    low, mid, _ = sorted(saved(0, level) for level in Level)
    others = [saved(number, Level.MID) for number in range(1, len(models))]
    return _Saved(low, (mid + sum(others)) / len(models))
