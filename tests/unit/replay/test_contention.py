"""How much longer kernels take beside communication, from launches with more and less of it."""

from __future__ import annotations

import numpy as np
import pytest

from nvprobe.analysis.replay.contention import Contention, contention, overlap


def launches(*besides: int, slope: float = 0.5, length: int = 100) -> tuple[np.ndarray, ...]:
    """Kernels one after the other, each with communication beside its begin: columns of ops."""
    rows, now = [], 0
    for beside in besides:
        rows.append((0, False, now, now + length + round(slope * beside)))
        rows.append((1, True, now, now + beside))
        now += 1000
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def contended(*ranks: tuple[np.ndarray, ...]) -> list[Contention]:
    return contention(*zip(*ranks, strict=True))


def test_overlap_is_the_time_of_communication_beside_an_op() -> None:
    _, talks, start, end = launches(0, 40, 90)
    assert overlap(talks, start, end)[~talks].tolist() == [0, 40, 90]
    assert not overlap(talks, start, end)[talks].any()


def test_the_line_of_a_kernel_is_that_of_all_ranks() -> None:
    first, other = launches(0, 20, 0, 20), launches(80, 90)
    found = contended(first, other)
    kernels = [~ops[1] for ops in (first, other)]
    assert all(
        one.slowed[rows] == pytest.approx(0.5) for one, rows in zip(found, kernels, strict=True)
    )
    dur = (other[3] - other[2])[kernels[1]]
    now = Contention(*(values[kernels[1]] for values in found[1].columns().values()))
    assert now.durations(dur, np.array([0, 90])).tolist() == [100, 145]
    assert now.durations(dur, np.array([200, 200])).tolist() == dur.tolist()
    assert now.durations(dur // 2, np.array([40, 0])).tolist() == [70, 50]


def test_launches_off_any_line_are_not_slowed() -> None:
    code, talks, start, end = launches(0, 50, 0, 50, slope=0.0)
    end = end + np.where(talks, 0, np.array([3, 0, 0, 0, 1, 0, 4, 0]))
    assert not contended((code, talks, start, end))[0].slowed.any()
    assert not contended(launches(50, 50, 50))[0].slowed.any()  # all alike: nothing is known
