"""Which thread of a process initiates, and which threads run autograd."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nvprobe.attribution.intervals import union_length
from nvprobe.attribution.kinds import autograd_names
from nvprobe.trace import NO_ROW, Column, Ranges, Trace

__all__ = ["autograd_threads", "initiating_threads"]


def initiating_threads(trace: Trace, ranges: Ranges, end: Column) -> Column:
    """The initiating thread of each process: int32 thread row, -1 for a process without ranges.

    It is the main thread (tid = pid) if that has ranges, else the
    thread with the largest union of ranges (ties: lowest tid).
    """
    threads, processes = trace.threads, trace.processes
    out = np.full(len(processes), NO_ROW, np.int32)
    has_ranges = np.zeros(len(threads), bool)
    has_ranges[ranges.thread] = True
    candidates = np.flatnonzero(has_ranges)
    if not len(candidates):
        return out
    length = union_length(ranges.thread, ranges.start, end, len(threads))
    is_main = threads.tid == processes.pid[threads.process]
    order = np.lexsort(
        (
            -threads.tid[candidates],
            length[candidates],
            is_main[candidates],
        )
    )
    best_last = candidates[order]  # the last assignment to a process stays
    out[threads.process[best_last]] = best_last
    return out


def autograd_threads(
    trace: Trace, ranges: Ranges, code: Column, names: pa.StringArray, initiating: Column
) -> Column:
    """Bool per thread: named ``pt_autograd_*`` or running ranges only autograd runs."""
    out = np.zeros(len(trace.threads), bool)
    for row, text in enumerate(trace.texts(trace.threads.name)):
        out[row] = text is not None and text.startswith("pt_autograd_")
    out[ranges.thread[autograd_names(names)[code]]] = True
    out[initiating[initiating >= 0]] = False
    return out
