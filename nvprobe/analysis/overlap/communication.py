"""Communication that nothing hides: per path, per collective.

*Exposed* is communication with no compute running beside it on its device; a copy beside it hides
nothing. Definition: docs/attribution.md, "Overlap". Oracle: tests/oracle_overlap.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.coverage import Coverage
from nvprobe.analysis.grouping import counts, distinct, sums
from nvprobe.analysis.overlap.combinations import Intervals, Work, inclusive_unions
from nvprobe.analysis.overlap.messages import Messages, carried_messages
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, Table, Trace, column

__all__ = [
    "COLLECTIVES",
    "Carried",
    "Collectives",
    "collective_names",
    "collectives",
    "exposed_by_path",
    "exposed_coverage",
]

COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("all_reduce", r"(?i)all_?reduce|cross_device_reduce|one_shot|two_shot|multimem_reduce"),
    ("reduce_scatter", r"(?i)reduce_?scatter"),
    ("all_gather", r"(?i)all_?gather"),
    ("all_to_all", r"(?i)all_?to_?all|alltoall"),
    ("send_recv", r"(?i)send_?recv|sendrecv|_send|_recv"),
    ("broadcast", r"(?i)broadcast"),
    ("reduce", r"(?i)reduce"),
)
"""(collective, RE2 pattern) of kernel names, the first hit wins; else ``other``."""


@dataclass(frozen=True, slots=True)
class Collectives(Table):
    """Communication by kernel and owner path, the most exposed first."""

    name: Column = column("i4")
    """Kernel name, row of the trace's strings."""
    path: Column = column("i4")
    count: Column = column("i8")
    gpu_ns: Column = column("i8")
    exposed_ns: Column = column("i8")
    """Of it, the time with no compute beside it."""
    longest_ns: Column = column("i8")
    messages: Column = column("i8")
    """Messages of NCCL that its kernels are known to carry."""
    bytes: Column = column("i8")
    """Their size, -1 where no message is known."""
    told: Column = column("i8")
    """Kernels whose messages are known."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages of NCCL by the row of :class:`Collectives` whose kernels carry them."""

    row: Column
    messages: Messages


def exposed_coverage(stretches: Intervals, devices: int) -> Coverage:
    """Exposed communication per device (row + 1), ready to be asked."""
    lane, _, start, end = stretches
    return Coverage.of(lane, start, end, devices + 1)


def exposed_by_path(attribution: Attribution, work: Column, exposed: Coverage) -> Column:
    """``exposed_comm_ns`` of every path (inclusive): per device, summed over devices."""
    ops, paths = attribution.trace.ops, attribution.paths
    total = np.zeros(len(paths.parent), np.int64)
    talks = attribution.valid & (attribution.owner >= 0) & (work == Work.COMMUNICATION)
    rows = np.flatnonzero(talks)
    devices = len(attribution.trace.devices) + 1
    for lane, _, start, end in inclusive_unions(attribution, ops, work, rows):
        np.add.at(total, lane // devices, exposed.between(lane % devices, start, end))
    return total


def collectives(
    attribution: Attribution, work: Column, exposed: Coverage
) -> tuple[Collectives, Carried | None]:
    """Sum communication by kernel name and owner path; what NCCL says of the messages."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(attribution.valid & (work == Work.COMMUNICATION))
    if not len(rows):
        return Collectives.empty(), None
    path = attribution.owner[rows]
    _, code = distinct(ops.name[rows].astype(np.int64) << 32 | (path.astype(np.int64) + 1))
    size = int(code.max()) + 1
    duration = attribution.duration[rows]
    order = np.lexsort((-duration, code))
    longest = order[runs(code[order])]
    lone = exposed.between(ops.device[rows] + 1, ops.start[rows], ops.end[rows])
    carried = carried_messages(attribution, rows)
    messages = Messages.empty() if carried is None else carried
    of_message = code[np.searchsorted(rows, messages.op)]
    known = counts(of_message, size)
    told = counts(code[np.isin(rows, messages.op)], size)
    table = Collectives(
        name=ops.name[rows[longest]],
        path=path[longest],
        count=counts(code, size),
        gpu_ns=sums(code, duration, size),
        exposed_ns=sums(code, lone, size),
        longest_ns=duration[longest],
        messages=known,
        bytes=np.where(known > 0, sums(of_message, messages.bytes, size), -1),
        told=told,
    )
    order = np.lexsort((-table.gpu_ns, -table.exposed_ns))
    row = np.argsort(order)[of_message]
    return table.take(order), None if carried is None else Carried(row, carried)


def collective_names(trace: Trace, names: Column) -> list[str]:
    """Which collective each kernel name is: ``all_reduce``, ``send_recv`` and so on."""
    texts = pc.fill_null(trace.strings.take(pa.array(names, mask=names < 0)), "")
    found = np.full(len(names), "other", object)
    for label, pattern in reversed(COLLECTIVES):
        hit = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        found[hit.astype(bool)] = label
    return list(found)
