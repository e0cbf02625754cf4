"""Collectives of several processes in one capture: who waits in them, and for whom.

Ranks whose captures are files of their own are ``nvprobe ranks``'; here all of them are in one,
on one clock. Sends and receives are left out: not every process takes part in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import counts, distinct, sums
from nvprobe.analysis.model import Steps
from nvprobe.analysis.overlap.arrivals import Arrivals, arrivals
from nvprobe.analysis.overlap.combinations import Work
from nvprobe.analysis.overlap.communication import Carried, collective_names
from nvprobe.analysis.overlap.members import matched_members
from nvprobe.analysis.steps import step_at
from nvprobe.attribution.intervals import Coverage
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_PAYLOAD, NO_ROW, Column, Table, column

_BESIDE = "send_recv"


@dataclass(frozen=True, slots=True)
class ProcessCollectives(Table):
    """Collectives by process, device and owner path; in the order of these."""

    process: Column = column("i4")
    device: Column = column("i4")
    path: Column = column("i4")
    name: Column = column("i4")
    """Kernel of the first, row of the trace's strings."""
    count: Column = column("i8")
    gpu_ns: Column = column("i8")
    wait_ns: Column = column("i8")
    """For the process that arrives last."""
    transfer_ns: Column = column("i8")
    last: Column = column("i8")
    """Collectives at which this process arrives last."""
    awaited_ns: Column = column("i8")
    """What all others wait in these."""


@dataclass(frozen=True, slots=True)
class Met:
    """The ops that are members of collectives of several processes."""

    op: Column
    """int64 rows of the ops."""
    arrivals: Arrivals
    exposed_wait_ns: Column
    """Of each member's waiting, what no compute hides at most."""

    def by_process(self, attribution: Attribution) -> ProcessCollectives:
        """Sums by process, device and path."""
        ops, met = attribution.trace.ops, self.arrivals
        key = np.zeros(len(self.op), np.int64)
        for values in (ops.process, ops.device, attribution.owner):
            _, code = distinct(values[self.op].astype(np.int64))
            _, key = distinct(key.astype(np.int64) << 32 | code)
        size = int(key.max()) + 1
        first = np.full(size, len(key))
        np.minimum.at(first, key, np.arange(len(key)))
        awaited = sums(met.meeting, met.wait_ns, len(met.meetings))
        last = key[met.meetings.last]
        rows = self.op[first]
        table = ProcessCollectives(
            process=ops.process[rows],
            device=ops.device[rows],
            path=attribution.owner[rows],
            name=ops.name[rows],
            count=counts(key, size),
            gpu_ns=sums(key, attribution.duration[self.op], size),
            wait_ns=sums(key, met.wait_ns, size),
            transfer_ns=sums(key, met.transfer_ns, size),
            last=counts(last[awaited > 0], size),
            awaited_ns=sums(last, awaited, size),
        )
        return table.take(np.lexsort((table.path, table.device, table.process)))


def met_by_processes(
    attribution: Attribution, work: Column, carried: Carried | None, exposed: Coverage, steps: Steps
) -> Met | None:
    """The collectives in which several processes of the capture meet; ``None`` without any."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(attribution.valid & (work == Work.COMMUNICATION))
    if len(np.unique(ops.process[rows])) < 2:
        return None
    kind = _kinds(attribution, rows)
    rows, kind = rows[kind >= 0], kind[kind >= 0]
    rows, kind = (column[np.argsort(ops.start[rows], kind="stable")] for column in (rows, kind))
    process, start, end = ops.process[rows], ops.start[rows], ops.end[rows]
    group, size = _groups(attribution, rows, carried)
    step = _steps(attribution, rows, steps)
    code = matched_members(process, group, step, start, (kind, size))
    kept = code >= 0
    if not kept.any():
        return None
    met = arrivals(code[kept], start[kept], end[kept])
    lone = exposed.between(ops.device[rows] + 1, start, end)[kept]
    return Met(rows[kept], met, np.minimum(met.wait_ns, lone))


def _kinds(attribution: Attribution, rows: Column) -> Column:
    """A code of what each op is, by its collective or else its name; -1 for sends and receives."""
    trace = attribution.trace
    used, place = np.unique(trace.ops.name[rows], return_inverse=True)
    labels = collective_names(trace, used)
    texts = trace.texts(used)
    known = [text if label == "other" else label for label, text in zip(labels, texts, strict=True)]
    coded = pa.array(known, pa.string()).dictionary_encode()
    code = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    beside = np.array([label == _BESIDE for label in labels], bool)
    return np.asarray(np.where(beside, NO_ROW, code)[place], np.int64)


def _groups(
    attribution: Attribution, rows: Column, carried: Carried | None
) -> tuple[Column, Column]:
    """(code of each op's group, bytes or -1): by its communicator, else by its stream.

    Streams are numbered by when a process first communicates on them, as all processes do alike.
    """
    ops = attribution.trace.ops
    lane = ops.process[rows].astype(np.int64) << 32 | (ops.stream[rows] & 0xFFFFFFFF)
    lanes, of = distinct(lane)
    number = np.zeros(len(lanes), np.int64)
    seen: dict[int, int] = {}
    for row, owner in enumerate((lanes >> 32).tolist()):
        number[row] = seen.get(owner, 0)
        seen[owner] = seen.get(owner, 0) + 1
    named, size = np.full(len(rows), NO_PAYLOAD), np.full(len(rows), -1)
    if carried is not None and len(carried.messages):
        place = np.full(len(ops), NO_ROW)
        place[rows] = np.arange(len(rows))
        said = carried.messages.take(place[carried.messages.op] >= 0)
        at = place[said.op]
        size = np.where(counts(at, len(rows)) > 0, sums(at, said.bytes, len(rows)), -1)
        group = np.where(said.group < 0, NO_PAYLOAD, said.group)
        named[at] = np.where(said.communicator == NO_PAYLOAD, group, said.communicator)
    _, known = distinct(named)
    return np.where(named == NO_PAYLOAD, number[of], len(lanes) + known), size


def _steps(attribution: Attribution, rows: Column, steps: Steps) -> Column:
    """The number of the step that each op was called in, -1 outside of all."""
    calls, call = attribution.trace.calls, attribution.call[rows]
    out = np.full(len(rows), NO_ROW, np.int64)
    known = np.flatnonzero(call >= 0)
    process = attribution.trace.ops.process[rows[known]]
    found = step_at(steps, process, calls.start[call[known]])
    out[known] = np.append(steps.index, NO_ROW)[found]
    return out
