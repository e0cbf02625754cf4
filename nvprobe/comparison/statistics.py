"""How sure a difference of two sides is: noise of steps within runs, and of whole runs.

Steps that follow one another resemble one another, so they are resampled in blocks (a circular
block bootstrap), all columns together. A change of one column among many is held against the
greatest deviation of all of them (max-T), so that the error of 5% is that of the whole comparison.
With few blocks a t quantile widens the intervals. Runs differ from one another by more than their
steps show (clocks, placement of memory): that is the noise floor, from several runs where there are
any, else assumed. Tests: tests/unit/comparison/test_statistics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvprobe.analysis.student import t_quantile

Matrix = npt.NDArray[Any]
"""float64 of shape (steps, columns), one run."""

CONFIDENCE = 0.95
ASSUMED_FLOOR = 0.03
"""How much a time of two runs of one program may differ, where nobody measured it."""
_RESAMPLES = 1000
_MOST_ROWS = 512
"""Longer runs are averaged to this many rows first."""
_SEED = 20261130
_NORMAL = 1.959964
_PRIOR_RUNS = 4.0
"""How many degrees of freedom the typical column lends to the variance of each one."""
_FEWEST_FREE = 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """What each column is before and after, per step, and between which bounds it changed."""

    before: Matrix
    after: Matrix
    low: Matrix
    """Of the change, each column by itself."""
    high: Matrix
    surely_low: Matrix
    """Of the change, all tested columns at once."""
    surely_high: Matrix

    @property
    def change(self) -> Matrix:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Floor:
    """How much a column may differ between two sides of one program, as an amount."""

    amount: Matrix
    measured: bool
    runs: int
    """Runs that it was measured on; 0 where it is assumed."""


def estimate(before: Sequence[Matrix], after: Sequence[Matrix], tested: Matrix) -> Estimate:
    """Compare the runs of two sides; ``tested``: bool per column."""
    if _same(before, after):
        same = np.mean([run.mean(axis=0) for run in before], axis=0)
        nothing = np.zeros(len(tested))
        return Estimate(same, same, nothing, nothing, nothing, nothing)
    means = [np.mean([run.mean(axis=0) for run in side], axis=0) for side in (before, after)]
    rng = np.random.default_rng(_SEED)
    drawn, free = np.zeros((_RESAMPLES, len(tested))), 0
    for sign, side in ((-1.0, before), (1.0, after)):
        for run in side:
            rows = _fewer(run)
            length = _block_length(rows)
            free += len(rows) // length - 1
            drawn += sign / len(side) * (_resampled(rows, length, rng) - rows.mean(axis=0))
    error = drawn.std(axis=0)
    if free < 1:
        error = np.full(len(tested), np.inf)  # a single step says nothing of how steps vary
    few = t_quantile(free, 0.5 + CONFIDENCE / 2)
    change = means[1] - means[0]
    alone, sure = few * error, _greatest(drawn, error, tested) * few / _NORMAL * error
    return Estimate(
        means[0], means[1], change - alone, change + alone, change - sure, change + sure
    )


def _same(before: Sequence[Matrix], after: Sequence[Matrix]) -> bool:
    """Whether both sides are the very same captures: then nothing is uncertain."""
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(np.array_equal(*pair) for pair in pairs)


def mean_bounds(runs: Sequence[Matrix]) -> tuple[Matrix, Matrix]:
    """(mean, how far it may be off) of each column by itself, by how steps vary."""
    rng = np.random.default_rng(_SEED)
    drawn, free = np.zeros((_RESAMPLES, runs[0].shape[1])), 0
    for run in runs:
        rows = _fewer(run)
        length = _block_length(rows)
        free += len(rows) // length - 1
        drawn += (_resampled(rows, length, rng) - rows.mean(axis=0)) / len(runs)
    off = np.full(drawn.shape[1], np.inf)
    if free >= 1:
        off = t_quantile(free, 0.5 + CONFIDENCE / 2) * drawn.std(axis=0)
    return np.mean([run.mean(axis=0) for run in runs], axis=0), off


def _fewer(run: Matrix) -> Matrix:
    """At most ``_MOST_ROWS`` rows: means of consecutive steps."""
    if len(run) <= _MOST_ROWS:
        return run
    first = np.linspace(0, len(run), _MOST_ROWS, endpoint=False).astype(int)
    return np.add.reduceat(run, first, axis=0) / np.diff(first, append=len(run))[:, None]


def _block_length(run: Matrix) -> int:
    """Steps a block: the cube root of their number, longer where the steps resemble their last.

    Measured on the first column, the time of the whole step.
    """
    size = len(run)
    if size < 4:
        return 1
    off = run[:, 0] - run[:, 0].mean()
    spread = float(off @ off)
    alike = float(off[1:] @ off[:-1]) / spread if spread > 0 else 0.0
    alike = min(max(alike, 0.0), 0.9)
    wanted = (2 * alike / (1 - alike**2)) ** (2 / 3) * size ** (1 / 3)
    return int(min(max(1, round(wanted)), size // 2))


def _resampled(run: Matrix, length: int, rng: np.random.Generator) -> Matrix:
    """Means of resampled runs, (resamples, columns): blocks from anywhere, around the end."""
    size = len(run)
    blocks = -(-size // length)
    first = rng.integers(0, size, (_RESAMPLES, blocks, 1))
    chosen = ((first + np.arange(length)) % size).reshape(_RESAMPLES, -1)[:, :size]
    flat = (np.arange(_RESAMPLES)[:, None] * size + chosen).ravel()
    weight = np.bincount(flat, minlength=_RESAMPLES * size).reshape(_RESAMPLES, size)
    return weight @ run / size


def _greatest(drawn: Matrix, error: Matrix, tested: Matrix) -> float:
    """How many standard errors the worst of the tested columns is off, in 95% of resamples."""
    some = tested & (error > 0) & np.isfinite(error)
    if not some.any():
        return _NORMAL
    worst = np.abs(drawn[:, some] / error[some]).max(axis=1)
    return max(float(np.quantile(worst, CONFIDENCE)), _NORMAL)


def noise_floor(before: Sequence[Matrix], after: Sequence[Matrix], tested: Matrix) -> Floor:
    """How much each column may differ between the sides though nothing changed.

    With three degrees of freedom or more: the spread of runs within each side, its variance drawn
    towards that of the typical column, times the t quantile for all tested columns at once.
    """
    sides = [np.array([run.mean(axis=0) for run in side]) for side in (before, after)]
    size = np.maximum(np.abs(sides[0].mean(axis=0)), np.abs(sides[1].mean(axis=0)))
    free = sum(len(side) - 1 for side in sides)
    if free < _FEWEST_FREE:
        return Floor(ASSUMED_FLOOR * size, measured=False, runs=0)
    squares = np.array([((side - side.mean(axis=0)) ** 2).sum(axis=0) for side in sides])
    variance = squares.sum(axis=0) / free
    share = variance / np.maximum(size, 1) ** 2
    typical = float(np.median(share[tested])) if tested.any() else 0.0
    usual = (ASSUMED_FLOOR / 2 / np.sqrt(2)) ** 2  # a restless path must not excuse a steady one
    lent = np.minimum(typical, np.maximum(share, usual)) * size**2
    variance = (free * variance + _PRIOR_RUNS * lent) / (free + _PRIOR_RUNS)
    tests = max(int(tested.sum()), 1)
    times = t_quantile(free + _PRIOR_RUNS, 1 - (1 - CONFIDENCE) / 2 / tests)
    spread = np.sqrt(variance * sum(1 / len(side) for side in sides))
    return Floor(times * spread, measured=True, runs=sum(len(side) for side in sides))
