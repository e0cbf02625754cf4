"""The line of the user's code behind every GPU op, from the Python frames of a torch trace.

An op belongs to the frame open where it was called. An op of the backward pass belongs to the line
whose forward operator made its node (autograd's sequence number); without a number, to what the
initiating thread was running, which is the line that called ``backward``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.analysis.waiting.lines import NO_LINE, CodeLines, code_lines
from nvprobe.attribution.backward import backward_nodes
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["OpLines", "op_lines"]


@dataclass(frozen=True, slots=True)
class OpLines:
    """Lines of ops: ``line`` is a row of ``labels`` per op, ``NO_LINE`` where none is known."""

    line: Column
    labels: pa.StringArray

    def text(self, row: int) -> str | None:
        """One line's text."""
        return None if row == NO_LINE else str(self.labels[row].as_py())


def op_lines(attribution: Attribution) -> OpLines:
    """The user's line behind each op; none anywhere where the trace has no frames."""
    line = np.full(len(attribution.call), NO_LINE, np.int32)
    lines = code_lines(attribution.trace)
    calls = attribution.trace.calls
    if lines is None:
        return OpLines(line, pa.array([], pa.string()))
    op = np.flatnonzero(attribution.call >= 0)
    call = attribution.call[op]
    line[op] = lines.at(calls.thread[call], calls.start[call])
    _from_forward(attribution, lines, line)
    left = op[line[op] == NO_LINE]
    left = left[attribution.autograd[calls.thread[attribution.call[left]]]]
    call = attribution.call[left]
    main = attribution.open.initiator(calls.thread[call])
    line[left] = lines.at(main, calls.start[call])
    return OpLines(line, lines.labels)


def _from_forward(attribution: Attribution, lines: CodeLines, line: Column) -> None:
    """Backward ops take the line of the forward operator with their node's number, in place."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    nodes = backward_nodes(attribution)
    if not len(nodes.op):
        return
    forward = np.flatnonzero((tree.sequence >= 0) & ~attribution.autograd[ranges.thread])
    forward = forward[np.lexsort((ranges.start[forward], tree.sequence[forward]))]
    numbers = tree.sequence[forward]
    at = np.searchsorted(numbers, nodes.sequence, side="right") - 1
    known = at >= 0
    known[known] = numbers[at[known]] == nodes.sequence[known]
    made = forward[at[known]]  # the last operator that carries the number
    found = lines.at(ranges.thread[made], ranges.start[made])
    op = nodes.op[known]
    line[op] = np.where(found != NO_LINE, found, line[op])
