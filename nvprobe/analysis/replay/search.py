"""Which changes to advise, in which order, and what each saves of the step.

Greedy: the best change first, then the best of what the others still save in the changed model. So
savings in that order add up, and what two changes would both save is claimed once.
Definition: docs/replay.md, "Bounds and order".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvprobe.analysis.replay.costs import step_of
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import Model

__all__ = ["NOTABLE", "Proposal", "Saving", "search", "weigh"]

NOTABLE = 0.02
"""A change that is expected to save less of the step is none."""
STRETCHES = (1.0, 0.75, 1.33)
"""Factors of the calibration that the bounds span."""
MODEL_ERROR = 0.075
"""Of the step: how far a replayed saving may be off. Fitted on pairs with measured fixes."""
ROUNDS = 4
"""Changes that are applied one on top of the other; the rest are held against all of them."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change, and how hard it is to make: 1 for a line, less for more."""

    edit: Edit
    effort: float


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
    models: Callable[[float], Model], proposals: Sequence[Proposal]
) -> tuple[list[Saving], int]:
    """(savings worth a change, the best first; the unchanged step). ``models``: by stretch."""
    bases = [models(stretch) for stretch in STRETCHES]
    steps = [step_of(model) for model in bases]
    levels = {number: _levels(bases[0], steps[0], one) for number, one in enumerate(proposals)}
    order = _greedy(bases[0], steps[0], proposals, levels)
    found = []
    for number, after, instead in order:
        low, high = _bounds(bases, steps, proposals[number])
        mid = levels[number][1]
        found.append(Saving(number, min(low, mid), mid, max(high, mid), after, instead))
    return found, steps[0]


def weigh(models: Callable[[float], Model], edit: Edit) -> tuple[Saving, int]:
    """(what one change saves, the unchanged step), however little that is."""
    one = Proposal(edit, 1.0)
    bases = [models(stretch) for stretch in STRETCHES]
    steps = [step_of(model) for model in bases]
    mid = _levels(bases[0], steps[0], one)[1]
    low, high = _bounds(bases, steps, one)
    return Saving(0, min(low, mid), mid, max(high, mid), mid, None), steps[0]


def _levels(base: Model, step: int, one: Proposal) -> tuple[float, float, float]:
    """The shares saved at each level, in order."""
    low, mid, high = sorted(_saved(base, step, one.edit, level) for level in Level)
    return low, mid, high


def _saved(base: Model, step: int, edit: Edit, level: Level) -> float:
    return max(1 - step_of(edit(base, level)) / step, 0.0) if step else 0.0


def _bounds(bases: list[Model], steps: list[int], one: Proposal) -> tuple[float, float]:
    """Least and greatest over levels and calibrations, with the error of the model."""
    all_ = [
        _saved(base, step, one.edit, level)
        for base, step in zip(bases, steps, strict=True)
        for level in Level
    ]
    return max(min(all_) - MODEL_ERROR, 0.0), min(max(all_) + MODEL_ERROR, 1.0)


def _greedy(
    base: Model, step: int, proposals: Sequence[Proposal],
    levels: dict[int, tuple[float, float, float]],
) -> list[tuple[int, float, int | None]]:  # fmt: skip
    """(proposal, what it saves after those before, what it is an alternative to)."""
    order: list[tuple[int, float, int | None]] = []
    left, instead, model = dict(levels), dict[int, int](), base
    alone = {number for number, (_, mid, _) in levels.items() if mid >= NOTABLE}
    while len(order) < ROUNDS:
        able = {number: found for number, found in left.items() if found[1] >= NOTABLE}
        if not able:
            break
        best = max(able, key=lambda number: _score(able[number], proposals[number].effort))
        order.append((best, left.pop(best)[1], None))
        model = proposals[best].edit(model, Level.MID)
        for number in left:
            had = left[number][1]
            left[number] = _after(model, step, proposals[number])
            if number in alone and left[number][1] < NOTABLE <= had:
                instead[number] = best
    rest = [number for number in left if left[number][1] >= NOTABLE]
    rest.sort(key=lambda number: -_score(left[number], proposals[number].effort))
    order += [(number, left[number][1], None) for number in rest]
    gone = [number for number in instead if left.get(number, (0, 1, 0))[1] < NOTABLE]
    return order + [(number, 0.0, instead[number]) for number in gone]


def _score(levels: tuple[float, float, float], effort: float) -> float:
    """Half-way between what is sure and what is expected, by how easy it is."""
    low, mid, _ = levels
    return (low + (mid - low) / 2) * effort


def _after(model: Model, step: int, one: Proposal) -> tuple[float, float, float]:
    """What a change saves of the unchanged step, made on top of others."""
    now = step_of(model)
    low, mid, high = sorted(
        max((now - step_of(one.edit(model, level))) / max(step, 1), 0.0) for level in Level
    )
    return low, mid, high
