"""Kernels beside a collective take longer: it holds multiprocessors, and its transfer bandwidth.

A rank that waits for another one computes more slowly for it, so a straggler costs more than the
waiting that no compute hides. How much longer is a line through all recorded launches of the kernel
with that grid, of all ranks: their length by the time that communication was beside them.
Kernels whose launches are not near such a line are taken not to be slowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.intervals import Coverage
from nvprobe.trace import Column, Table, Trace, column

MOST = 0.9
"""Of the time that communication is beside a kernel, what it may add at most."""
FITS = 0.5
"""Of the variance of a kernel's lengths, what the line has to explain."""


@dataclass(frozen=True, slots=True)
class Contention(Table):
    """Per op of a model, what communication on its device has to do with it."""

    talks: Column = column("?")
    """It is communication."""
    beside: Column = column("f8")
    """Share of its recorded time in which communication ran."""
    slowed: Column = column("f8")
    """How much of that time it takes longer for it."""

    def durations(self, dur: Column, overlap: Column) -> Column:
        """Ops that lasted ``dur`` when communication is beside them for ``overlap`` ns now.

        Never longer: what a kernel loses to more communication than it had was not recorded.
        """
        gone = np.maximum(self.beside * dur - overlap, 0)
        return dur - np.rint(self.slowed * gone).astype(np.int64)


def overlap(talks: Column, start: Column, end: Column) -> Column:
    """Per op the time in which one that ``talks`` (bool) runs beside it, 0 for these themselves."""
    rows = np.flatnonzero(talks)
    zero = np.zeros(len(start), np.int64)
    covered = Coverage.of(zero[rows], start[rows], end[rows], 1)
    return np.where(talks, 0, covered.between(zero, start, end))


def kernels(trace: Trace, known: dict[tuple[str | None, ...], int]) -> Column:
    """Per op a code for its name and grid that is the same in all traces: row of ``known``."""
    ops, size = trace.ops, trace.geometry
    grid = np.full((3, len(ops)), -1, np.int64)
    grid[:, size.op] = size.grid_x, size.grid_y, size.grid_z
    _, code = distinct(ops.name.astype(np.int64))
    for values in grid:
        _, code = distinct(code.astype(np.int64) << 32 | (values + 1))
    first = np.unique(code, return_index=True)[1]
    sizes = (map(str, values[first].tolist()) for values in grid)
    texts = zip(trace.texts(ops.name[first]), *sizes, strict=True)
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)[code]


def contention(
    kernel: Sequence[Column],
    talks: Sequence[Column],
    start: Sequence[Column],
    end: Sequence[Column],
) -> list[Contention]:
    """Of each rank's ops: code of the kernel, whether it is communication, begin and end."""
    besides = [overlap(*one) for one in zip(talks, start, end, strict=True)]
    lengths = [last - first for first, last in zip(start, end, strict=True)]
    code, x, y = (np.concatenate(parts) for parts in (kernel, besides, lengths))
    slope = np.append(_slopes(code, x.astype(np.float64), y.astype(np.float64)), 0.0)
    return [
        Contention(talk, beside / np.maximum(length, 1), np.where(talk, 0.0, slope[own]))
        for talk, beside, length, own in zip(talks, besides, lengths, kernel, strict=True)
    ]


def _slopes(code: Column, x: Column, y: Column) -> Column:
    """Of the line through the points of each code, 0 where it is none."""
    size = int(code.max(initial=-1)) + 1
    count = np.maximum(np.bincount(code, minlength=size), 1)
    x, y = (v - (np.bincount(code, v, size) / count)[code] for v in (x, y))
    xx, xy, yy = (np.bincount(code, v, size) for v in (x * x, x * y, y * y))
    fits = xy * xy > FITS * xx * yy
    return np.where(fits, np.clip(xy / np.where(xx > 0, xx, 1.0), 0.0, MOST), 0.0)
