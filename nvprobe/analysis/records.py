"""Records that a capture should have and has not: launches that left nothing on the GPU."""

from __future__ import annotations

import numpy as np

from nvprobe.attribution.model import Attribution
from nvprobe.trace import Calls, Column, Ops
from nvprobe.trace.cuda_calls import LAUNCHES, CallRole, call_roles, calls_with

__all__ = ["lost_launches"]


def lost_launches(attribution: Attribution) -> Column:
    """Rows of ``trace.calls`` that launched a kernel or graph of which there is no GPU record.

    What is launched while a stream of the process is being captured runs later, as a graph: such
    calls have no record of their own and are not lost.
    """
    trace = attribution.trace
    calls, ops = trace.calls, trace.ops
    without = np.ones(len(calls), bool)
    without[attribution.call[attribution.call >= 0]] = False
    rows = np.flatnonzero(calls_with(trace, LAUNCHES) & without)
    if not len(rows):
        return rows
    rows = rows[~_same_id_has_op(calls, ops, rows)]
    return rows[~_captured(attribution, rows)]


def _same_id_has_op(calls: Calls, ops: Ops, rows: Column) -> Column:
    """Bool per row: another record of the same call is the one its ops were given to."""
    processes = int(max(calls.process.max(), ops.process.max(initial=0))) + 1
    asked = calls.correlation[rows] * processes + calls.process[rows]
    return np.isin(asked, ops.correlation * processes + ops.process)


def _captured(attribution: Attribution, rows: Column) -> Column:
    """Bool per row: the call happened between begin and end of a capture in its process."""
    calls = attribution.trace.calls
    roles = call_roles(attribution.trace)
    begins = np.flatnonzero(roles == CallRole.CAPTURE_BEGIN)
    ends = np.flatnonzero(roles == CallRole.CAPTURE_END)
    out = np.zeros(len(rows), bool)
    for process in np.unique(calls.process[np.concatenate((begins, ends))]):
        mine = np.flatnonzero(calls.process[rows] == process)
        begun = np.sort(calls.start[begins[calls.process[begins] == process]])
        ended = np.sort(calls.start[ends[calls.process[ends] == process]])
        # A capture begun before the window shows only its end.
        before = max(len(ended) - len(begun), 0)
        time = calls.start[rows[mine]]
        open_now = before + np.searchsorted(begun, time) - np.searchsorted(ended, time)
        out[mine] = open_now > 0
    return out
