"""Prefill or decode, by how much each step computes: for steps whose names do not say.

A decode step computes one token of each request, step after step with the same kernels on grids of
the same size. A prefill computes a whole prompt: its grids are larger, often its kernels are
others. So the steps that most steps are like decode, and those before them with at least twice
their work prefill. A loop without any larger step says nothing, and has no phases.
"""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.grouping import sums
from nvprobe.attribution.engines import StepPhase
from nvprobe.attribution.intervals import expand
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

_LARGER = 2
"""A prefill launches at least so many times the blocks of a decode step."""
_MOST = 0.6
"""Share of the steps that have to be alike for a decode loop."""


def phases_of(attribution: Attribution, op: Column, low: Column, high: Column) -> Column:
    """int8 :class:`StepPhase` of steps; step *i* called for the ops ``op[low[i]:high[i]]``."""
    size = len(low)
    unknown = np.full(size, StepPhase.UNKNOWN, np.int8)
    work = _work(attribution, op, low, high)
    if not work.any():
        return unknown
    usual = np.median(work)
    alike = np.abs(work - usual) <= 0.25 * usual
    larger = work >= _LARGER * usual
    if alike.mean() < _MOST or not larger.any() or not _begins(larger):
        return unknown
    return np.where(larger, StepPhase.PREFILL, StepPhase.DECODE).astype(np.int8)


def _begins(larger: Column) -> bool:
    """Whether larger steps are few and the first step is one: a prompt comes before its tokens."""
    return bool(larger[0]) and float(np.mean(larger)) < 1 - _MOST


def _work(attribution: Attribution, op: Column, low: Column, high: Column) -> Column:
    """What each step computes: blocks launched; without geometry, GPU time."""
    geometry = attribution.trace.geometry
    blocks = np.zeros(len(attribution.trace.ops), np.int64)
    if len(geometry):
        size = np.maximum(geometry.grid_x, 1).astype(np.int64)
        blocks[geometry.op] = size * np.maximum(geometry.grid_y, 1) * np.maximum(geometry.grid_z, 1)
    step, place = expand(low, high)
    per_step = sums(step, blocks[op[place]], len(low))
    if per_step.any():
        return per_step
    return sums(step, attribution.duration[op[place]], len(low))
