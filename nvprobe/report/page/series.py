"""Counters over time as the page draws them: no more points than it has use for."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.report.series import series
from nvprobe.trace import Column

_MOST_POINTS = 10_000
"""Points of one series; more are thinned to the mean of so many neighbors."""


def counter_series(
    analysis: Analysis, first: int
) -> tuple[dict[str, Column], list[dict[str, Any]]]:
    """Columns ``t0``, ``v0``, ``t1``, … and what they are; times are distances, from ``first``.

    A counter that stayed at zero is left out.
    """
    columns: dict[str, Column] = {}
    about = []
    lively = (one for one in series(analysis) if one[-1].any())
    for number, (title, device, unit, time, value) in enumerate(lively):
        time, value, each = _thinned(time, value)
        columns[f"t{number}"] = np.diff(time - first, prepend=0)
        columns[f"v{number}"] = value
        about.append({"title": title, "device": device, "unit": unit, "mean_of": each})
    return columns, about


def _thinned(time: Column, value: Column) -> tuple[Column, Column, int]:
    """Means of so many neighbors that `_MOST_POINTS` are not passed, and how many that are."""
    each = -(-len(time) // _MOST_POINTS)
    if each < 2:
        return time, value, 1
    heads = np.arange(0, len(time), each)
    size = np.diff(np.append(heads, len(time)))
    return time[heads], np.add.reduceat(value.astype(float), heads) / size, each
