"""The statistics of comparisons against what is known exactly."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from nvprobe.analysis.student import t_quantile
from nvprobe.comparison.statistics import (
    ASSUMED_FLOOR,
    estimate,
    mean_bounds,
    noise_floor,
)

ONE = np.array([True])


def autoregressive(rng: np.random.Generator, size: int, alike: float) -> np.ndarray:
    """Steps of which each resembles the one before; variance 1."""
    out = np.empty(size)
    out[0] = rng.normal()
    fresh = rng.normal(0, np.sqrt(1 - alike**2), size)
    for step in range(1, size):
        out[step] = alike * out[step - 1] + fresh[step]
    return out


@pytest.mark.parametrize(
    ("free", "share", "value"),
    [
        (1, 0.975, 12.706), (2, 0.975, 4.303), (5, 0.975, 2.571), (10, 0.995, 3.169),
        (30, 0.95, 1.697), (3, 0.9975, 7.453), (8, 0.9975, 3.833), (1000, 0.975, 1.962),
    ],
)  # fmt: skip
def test_student_against_the_printed_table(free: float, share: float, value: float) -> None:
    assert t_quantile(free, share) == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_the_error_of_a_mean_is_that_of_theory(alike: float) -> None:
    """Of an autoregressive series: variance (1 + alike) / (1 - alike) / size."""
    rng, size = np.random.default_rng(1), 400
    true = np.sqrt((1 + alike) / (1 - alike) / size)
    found = []
    for _ in range(20):
        _, off = mean_bounds([100 + autoregressive(rng, size, alike)[:, None]])
        found.append(off[0] / 1.98)
    assert np.mean(found) == pytest.approx(true, rel=0.2)


def test_bounds_agree_with_a_permutation_test() -> None:
    """Five steps a side, every one of 252 ways to deal them out."""
    rng, agreed = np.random.default_rng(2), 0
    for trial in range(60):
        before = rng.normal(100, 1, 5)
        after = rng.normal(100 + (trial % 3) * 1.5, 1, 5)
        both, change = np.concatenate((before, after)), after.mean() - before.mean()
        dealt = [
            abs(2 * both[list(rows)].mean() - 2 * both.mean())
            for rows in combinations(range(10), 5)
        ]
        unlikely = np.mean([one >= abs(change) - 1e-9 for one in dealt]) < 0.05
        found = estimate([before[:, None]], [after[:, None]], ONE)
        outside = found.low[0] > 0 or found.high[0] < 0
        agreed += unlikely == outside
    assert agreed >= 48


def test_the_same_capture_is_certainly_the_same() -> None:
    run = np.random.default_rng(3).normal(100, 10, (6, 4))
    found = estimate([run], [run.copy()], np.ones(4, bool))
    assert (found.change == 0).all()
    assert (found.surely_low == 0).all()
    assert (found.surely_high == 0).all()


def test_a_single_step_cannot_tell() -> None:
    found = estimate([np.array([[100.0]])], [np.array([[150.0]])], ONE)
    assert found.low[0] == -np.inf
    assert found.surely_high[0] == np.inf


def test_bounds_of_all_columns_at_once_are_wider() -> None:
    rng = np.random.default_rng(4)
    sides = [rng.normal(100, 1, (30, 40)) for _ in range(2)]
    found = estimate([sides[0]], [sides[1]], np.ones(40, bool))
    assert (found.surely_high - found.surely_low > 1.3 * (found.high - found.low)).all()


def test_the_noise_floor_is_assumed_of_one_run_and_measured_of_several() -> None:
    rng = np.random.default_rng(5)
    runs = [np.full((4, 3), 1000.0) + rng.normal(0, 10, (1, 3)) for _ in range(6)]
    assumed = noise_floor(runs[:1], runs[1:2], np.ones(3, bool))
    assert not assumed.measured
    assert assumed.amount == pytest.approx(ASSUMED_FLOOR * 1000, rel=0.05)
    measured = noise_floor(runs[:5], runs[5:], np.ones(3, bool))
    assert measured.measured
    assert measured.runs == 6
    # t quantile of about 3.2 for three columns, two sides of 5 and 1 runs, spread 10
    assert (measured.amount > 20).all()
    assert (measured.amount < 60).all()


def test_long_runs_are_averaged_first() -> None:
    rng = np.random.default_rng(6)
    mean, off = mean_bounds([rng.normal(100, 5, (20_000, 1))])
    assert mean[0] == pytest.approx(100, abs=0.2)
    assert off[0] == pytest.approx(1.96 * 5 / np.sqrt(20_000), rel=0.3)


def test_a_restless_path_does_not_excuse_a_steady_one() -> None:
    rng, spread = np.random.default_rng(7), np.array([10, 500, 500, 500, 500])
    runs = [(1000 + rng.normal(0, spread))[None, :] for _ in range(4)]
    floor = noise_floor(runs[:3], runs[3:], np.ones(5, bool)).amount
    assert floor[0] < 150
    assert np.median(floor) > 500
