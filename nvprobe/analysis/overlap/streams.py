"""The streams that ran something: one row each, and the row of every op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column

__all__ = ["Streams", "streams"]


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams by (process, device, stream id): stream 7 of two processes is two streams."""

    process: Column
    device: Column
    """Row of the device, -1 where the source names none."""
    stream: Column
    """Stream id as recorded."""
    of_op: Column
    """int64 row of these columns per op of the trace."""

    def find(self, process: Column, device: Column, stream: Column) -> Column:
        """Row of each given stream, -1 where it ran nothing."""
        code = _codes(
            np.concatenate((self.process, process)),
            np.concatenate((self.device, device)),
            np.concatenate((self.stream, stream)),
        )
        row = code[len(self.stream) :]  # our rows are distinct and come first: they number 0, 1, …
        return np.where(row < len(self.stream), row, NO_ROW)


def streams(attribution: Attribution) -> Streams:
    """Number the streams of a trace, in order of their first op."""
    ops = attribution.trace.ops
    code = _codes(ops.process, ops.device, ops.stream)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    return Streams(ops.process[first], ops.device[first], ops.stream[first], of_op=code)


def _codes(process: Column, device: Column, stream: Column) -> Column:
    """Dense int64 codes of (process, device, stream), in order of appearance."""
    _, number = distinct(stream)
    _, place = distinct(process.astype(np.int64) << 32 | device.astype(np.int64) + 1)
    _, code = distinct(place.astype(np.int64) << 32 | number)
    return code.astype(np.int64)
