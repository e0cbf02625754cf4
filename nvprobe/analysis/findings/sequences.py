"""Kernels in the order of their stream, as text: patterns of kernels are regular expressions.

One letter a kernel:

``G`` GEMM or GEMV, ``S`` softmax, ``E`` elementwise, ``N`` norm, ``R`` reduction, ``L`` layout,
``.`` anything else. A line break stands between streams and between steps; no pattern crosses one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.kernels.classes import Family
from nvprobe.attribution.intervals import runs, sorted_by
from nvprobe.trace import Column, Ops

__all__ = ["KernelText", "kernel_text"]

_LETTERS = {
    Family.GEMM: "G", Family.GEMV: "G", Family.SOFTMAX: "S", Family.ELEMENTWISE: "E",
    Family.NORM: "N", Family.REDUCTION: "R", Family.LAYOUT: "L",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelText:
    """Kernels of every stream, one letter each."""

    text: bytes
    op: Column
    """int64 op row per letter, -1 at a break."""

    def spans(self, pattern: str) -> tuple[Column, Column]:
        """(first letter, last letter + 1) of every match, left to right, none in two."""
        found = [match.span() for match in re.finditer(pattern.encode(), self.text)]
        low, high = np.array(found, np.int64).reshape(len(found), 2).T
        return low, high

    def ops_in(self, low: Column, high: Column) -> Column:
        """The op rows of disjoint spans, one after the other."""
        edges = np.zeros(len(self.op) + 1, np.int8)
        edges[low] += 1
        edges[high] -= 1
        return self.op[np.cumsum(edges[:-1]) > 0]


def kernel_text(
    ops: Ops, kernels: Column, stream: Column, step: Column, family: Column
) -> KernelText:
    """Order ``kernels`` (op rows) by stream, then time; the other columns have a row per op.

    Copies and sets between kernels are left out: they do not break a chain.
    """
    rows = kernels[sorted_by(stream[kernels], ops.start[kernels])]
    place = stream[rows] * (int(step.max(initial=-1)) + 2) + step[rows] + 1
    letters = np.full(len(Family), ord("."), np.uint8)
    for one, letter in _LETTERS.items():
        letters[one] = ord(letter)
    breaks = runs(place)[1:]
    text = np.insert(letters[family[rows]], breaks, ord("\n"))
    return KernelText(text.tobytes(), np.insert(rows, breaks, -1))
