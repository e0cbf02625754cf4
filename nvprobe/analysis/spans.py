"""Start/end ranges by name and domain."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.model import SpanRows
from nvprobe.trace import OPEN, Trace

__all__ = ["span_rows"]

OWN_WINDOW = "nvprobe.window"
"""The span that nvprobe opens its window with."""


def span_rows(trace: Trace) -> SpanRows:
    """Totals of the start/end ranges, the longest first; open ones last until the capture's end.

    Without nvprobe's own, which opens the capture window where there is no CUDA.
    """
    spans = trace.spans
    own = pc.equal(trace.strings, OWN_WINDOW).to_numpy(zero_copy_only=False)
    spans = spans.take(np.flatnonzero((spans.name < 0) | ~own[spans.name]))
    end = np.where(spans.end == OPEN, np.maximum(trace.end_ns, spans.start), spans.end)
    length = np.maximum(end - spans.start, 0)
    key, group = distinct((spans.domain.astype(np.int64) + 1) << 32 | (spans.name + 1))
    size = len(key)
    longest = np.zeros(size, np.int64)
    np.maximum.at(longest, group, length)
    wall = sums(group, length, size)
    table = SpanRows(
        name=(key & 0xFFFFFFFF) - 1,
        domain=(key >> 32) - 1,
        calls=np.bincount(group, minlength=size),
        wall_ns=wall,
        longest_ns=longest,
        unclosed=sums(group, (spans.end == OPEN).astype(np.int64), size),
    )
    return table.take(np.argsort(-wall, kind="stable"))
