"""Who did it: processes and threads of a torch trace, and the one time zero of its columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.trace import Column

__all__ = ["HOSTED", "Columns", "Identities", "identities", "impossible_to_zero", "time_zero"]

HOSTED = ("operators", "annotations", "modules", "frames", "calls", "overheads", "memory", "flows")
"""Kinds of events that happen on a thread of the host."""
_SECOND = 1_000_000_000

Columns = dict[str, Column]


def time_zero(rows: dict[str, Columns]) -> int:
    """The last whole second before the first sound event: no event has time 0."""
    sound = (columns["start"][columns["end"] >= columns["start"]] for columns in rows.values())
    firsts = [int(start[start > 0].min()) for start in sound if (start > 0).any()]
    return (min(firsts, default=1) - 1) // _SECOND * _SECOND


def impossible_to_zero(columns: Columns, zero: int) -> None:
    """Shift to ``zero``; what has no time (0 or below) keeps the time 0."""
    unknown = columns["start"] <= 0
    for name in ("start", "end"):
        columns[name] = np.where(unknown, 0, columns[name] - zero)


@dataclass(frozen=True, slots=True)
class Identities:
    """Rows of the process and thread tables for the pids and tids of a file."""

    pids: Column
    """Distinct pids, the row order of the process table."""
    process: Column
    """Process row of each thread."""
    tid: Column
    """tid of each thread."""
    tids: Column
    """Distinct tids, sorted."""
    row: Column
    """Thread row of each (process, place among ``tids``), -1 where there is none."""

    def processes(self, pid: Column) -> Column:
        """Process row of each pid; what names an unknown one belongs to the first."""
        order = np.argsort(self.pids)
        at = np.searchsorted(self.pids[order], pid).clip(0, len(order) - 1)
        return np.where(self.pids[order][at] == pid, order[at], 0).astype(np.int32)

    def threads(self, columns: Columns) -> Column:
        """Thread row of each event."""
        place = np.searchsorted(self.tids, columns["tid"])
        return self.row[self.processes(columns["pid"]), place].astype(np.int32)


def identities(rows: dict[str, Columns]) -> Identities:
    """All processes and threads of the events of ``rows``.

    A trace is one process, unless several pids make CUDA calls (several traces in one file).
    The pid with the most calls, operators and annotations comes first.
    """
    calling = rows["calls"]["pid"]
    working = np.concatenate([rows["operators"]["pid"], rows["annotations"]["pid"], calling])
    pids, counts = np.unique(working, return_counts=True)
    pids = pids[np.argsort(-counts, kind="stable")]
    if len(np.unique(calling)) > 1:
        pids = pids[np.isin(pids, calling)]
    pids = pids[: max(len(np.unique(calling)), 1)] if len(pids) else np.zeros(1, np.int64)
    tids = np.unique(np.concatenate([rows[kind]["tid"] for kind in HOSTED]))
    ids = Identities(pids, pids, tids, tids, np.full((len(pids), max(len(tids), 1)), -1, np.int64))
    seen = np.zeros(ids.row.shape, bool)
    for kind in HOSTED:
        place = np.searchsorted(tids, rows[kind]["tid"])
        seen[ids.processes(rows[kind]["pid"]), place] = True
    process, place = np.nonzero(seen)
    ids.row[process, place] = np.arange(len(process))
    return Identities(pids, process, tids[place], tids, ids.row)
