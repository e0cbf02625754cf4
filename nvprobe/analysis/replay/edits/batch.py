"""A step with several times as many examples: kernels and uploads grow, the host's work stays."""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.trace import Column

__all__ = ["larger_batch"]


def larger_batch(sample: Sample, times: float, growing: Column, waves: Column) -> Edit:
    """``growing``: bool per op, those whose work is that of the examples.

    ``waves``: per op, how often its blocks fill the GPU, NaN where that is not known. Low: all of
    them take so many times as long. Mid: a kernel that does not fill the GPU takes as long as the
    waves it then has. High: also those that end in a part of a wave. Waiting for data grows, too.
    """
    grown = np.where(growing, times, 1.0)
    more = np.ceil(times * waves) / np.ceil(waves)
    unfilled = growing & (waves < 1)
    known = growing & (waves > 0)
    factor = {
        Level.LOW: grown,
        Level.MID: np.where(unfilled & known, np.minimum(more, times), grown),
        Level.HIGH: np.where(known, np.minimum(more, times), grown),
    }

    def edit(model: Model, level: Level) -> None:
        model.ops.dur[:] = np.rint(model.ops.dur * factor[level]).astype(np.int64)
        waited = sample.waited_in(model)
        model.events.gap[:] += np.rint(waited * (times - 1)).astype(np.int64)

    return edit
