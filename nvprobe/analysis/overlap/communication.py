"""Exposed communication, per path and per collective, and the messages that NCCL records.

Communication that nothing hides: per path, per collective.

*Exposed* is communication with no compute running beside it on its device; a copy beside it hides
nothing. Definition: docs/attribution.md, "Overlap". Oracle: tests/oracle_overlap.py.

Which message each kernel carries, by what torch says of the kernel itself, else by what NCCL
attached to its own ranges.

NCCL attaches size, communicator, reduction and peer to the range of every call. A kernel that is
launched inside such a range carries that message. In a group (``ncclGroupStart`` to
``ncclGroupEnd``) the calls only queue; the kernels are launched when the group ends, and carry
together what was queued in it. So a group's messages belong to its kernel where it launched one;
where it launched several it is unknown which carries what, and none is given to any.

The oracle is in tests/unit/analysis/test_messages.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import counts, distinct, sums
from nvprobe.analysis.overlap.combinations import Intervals, Work, inclusive_unions
from nvprobe.attribution.intervals import Coverage, runs
from nvprobe.attribution.model import Attribution
from nvprobe.trace import (
    NO_NAME,
    NO_PAYLOAD,
    NO_ROW,
    Column,
    Payloads,
    Ranges,
    Table,
    Trace,
    column,
)

COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("all_reduce", r"(?i)all_?reduce|cross_device_reduce|one_shot|two_shot|multimem_reduce"),
    ("reduce_scatter", r"(?i)reduce_?scatter"),
    ("all_gather", r"(?i)all_?gather"),
    (
        "all_to_all",
        r"(?i)all_?(?:to|2)_?all|a2a(?:[^a-z]|dispatch|combine)|\bep(?:dispatch|combine)"
        r"|deep_ep|hybrid_ep|(?:inter|intra)node(?:_ll)?(?:::|_dispatch|_combine)",
    ),
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
    known: Column = column("i8")
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
    carrying = counts(code[np.isin(rows, messages.op)], size)
    of_size = counts(of_message, size)
    table = Collectives(
        name=ops.name[rows[longest]],
        path=path[longest],
        count=counts(code, size),
        gpu_ns=sums(code, duration, size),
        exposed_ns=sums(code, lone, size),
        longest_ns=duration[longest],
        messages=of_size,
        bytes=np.where(of_size > 0, sums(of_message, messages.bytes, size), -1),
        known=carrying,
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


SIZE, COMMUNICATOR = "Message size [bytes]", "NCCL communicator ID"
REDUCTION, PEER = "Reduction operation", "Peer rank"
_GROUP = ("ncclGroupStart", "ncclGroupEnd")


@dataclass(frozen=True, slots=True)
class Messages(Table):
    """Messages of NCCL and the GPU operation that carries each."""

    op: Column = column("i8")
    bytes: Column = column("i8")
    communicator: Column = column("i8")
    """64 bits that name the communicator, ``NO_PAYLOAD`` where it was not attached."""
    group: Column = column("i4")
    """Torch's name of the process group: row of the trace's strings, ``NO_NAME`` for none."""
    reduction: Column = column("i4")
    """``Sum`` and so on: row of the trace's strings, ``NO_NAME`` for none."""
    peer: Column = column("i8")
    """Rank that a send or receive is exchanged with, -1 for none."""


def carried_messages(attribution: Attribution, talks: Column) -> Messages | None:
    """Every message whose operation is known; ``talks`` are the rows of communicating ops.

    ``None`` where the capture has neither torch's messages nor payloads of NCCL.
    """
    trace = attribution.trace
    if trace.messages.recorded:
        return _said_of_kernels(trace, talks)
    ranges, messages = _messages(trace, trace.payloads)
    if not len(messages):
        return None
    called = talks[attribution.call[talks] != NO_ROW]
    call = attribution.call[called]
    launch = (trace.calls.thread[call].astype(np.int64), trace.calls.start[call])
    sent = (trace.ranges.thread[ranges].astype(np.int64), trace.ranges.start[ranges])
    end = attribution.tree.end[ranges]
    op = np.full(len(messages), NO_ROW, np.int64)
    own = _latest(*sent, *launch)
    inside = own >= 0
    inside[inside] = end[own[inside]] > launch[1][inside]
    op[own[inside]] = called[inside]
    groups = _Groups.of(trace, trace.ranges, attribution.tree.end)
    _grouped(groups, op, sent, launch, called, inside)
    linked = Messages(**{**messages.columns(), "op": op})
    return linked.take(op != NO_ROW)


def _said_of_kernels(trace: Trace, talks: Column) -> Messages:
    """Messages of torch, each recorded with its kernel."""
    said = trace.messages.take(np.isin(trace.messages.op, talks))
    return Messages(
        op=said.op,
        bytes=said.bytes,
        communicator=np.full(len(said), NO_PAYLOAD),
        group=said.group,
        reduction=np.full(len(said), NO_NAME),
        peer=said.peer,
    )


def _messages(trace: Trace, payloads: Payloads) -> tuple[Column, Messages]:
    """(range, message) of every range that carries the size of a message."""
    used = np.unique(payloads.field)
    names = dict(zip(trace.texts(used), used.tolist(), strict=True))

    def rows(field: str) -> Column:
        """Payload values of one field that belong to a range."""
        found = (payloads.field == names.get(field, NO_NAME)) & (payloads.range != NO_ROW)
        return np.flatnonzero(found & (payloads.field != NO_NAME))

    sized = rows(SIZE)
    ranges = payloads.range[sized]

    def beside(field: str, values: Column, otherwise: int) -> Column:
        """Another value of the same range."""
        there = rows(field)
        there = there[np.argsort(payloads.range[there], kind="stable")]
        known = payloads.range[there]
        place = np.minimum(np.searchsorted(known, ranges), max(len(known) - 1, 0))
        if not len(known):
            return np.full(len(ranges), otherwise)
        return np.where(known[place] == ranges, values[there][place], otherwise)

    table = Messages(
        op=np.full(len(sized), NO_ROW),
        bytes=payloads.integer[sized],
        communicator=beside(COMMUNICATOR, payloads.integer, NO_PAYLOAD),
        group=np.full(len(sized), NO_NAME),
        reduction=beside(REDUCTION, payloads.text, NO_NAME),
        peer=beside(PEER, payloads.integer, -1),
    )
    known = table.bytes >= 0
    return ranges[known], table.take(known)


def _latest(thread: Column, time: Column, of_thread: Column, at: Column) -> Column:
    """For each asked instant the last of the given ones on its thread at or before it, -1."""
    given = len(thread)
    threads, times = np.concatenate((thread, of_thread)), np.concatenate((time, at))
    asked = np.arange(len(threads)) >= given
    order = np.lexsort((asked, times, threads))
    place = np.where(asked[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(place) if len(place) else place
    row = np.where(last >= 0, order[last], -1)
    row = np.where((row >= 0) & (threads[row] == threads[order]), row, -1)
    out = np.empty(len(threads), np.int64)
    out[order] = row
    return out[given:]


@dataclass(frozen=True, slots=True)
class _Groups(Table):
    """Outermost groups: from the start of ``ncclGroupStart`` to the end of ``ncclGroupEnd``."""

    thread: Column = column("i8")
    start: Column = column("i8")
    end: Column = column("i8")

    @classmethod
    def of(cls, trace: Trace, ranges: Ranges, end: Column) -> _Groups:
        """Every group that begins and ends in the capture; one inside another is part of it."""
        starts, ends = (_named(trace, ranges, name) for name in _GROUP)
        thread = np.concatenate((ranges.thread[starts], ranges.thread[ends])).astype(np.int64)
        time = np.concatenate((ranges.start[starts], end[ends]))
        change = np.repeat([1, -1], [len(starts), len(ends)])
        order = np.lexsort((-change, time, thread))
        parts = [_outermost(time[mine], change[mine]) for mine in _by_thread(thread, order)]
        nothing = [np.empty(0, np.int64)]
        on = np.unique(thread)
        threads = [np.full(len(part[0]), t) for part, t in zip(parts, on, strict=True)]
        return cls(
            thread=np.concatenate(nothing + threads),
            start=np.concatenate(nothing + [part[0] for part in parts]),
            end=np.concatenate(nothing + [part[1] for part in parts]),
        )


def _by_thread(thread: Column, order: Column) -> list[Column]:
    """``order`` cut where the thread changes."""
    return np.split(order, np.flatnonzero(np.diff(thread[order])) + 1) if len(order) else []


def _outermost(time: Column, change: Column) -> tuple[Column, Column]:
    """(start, end) of where the depth of one thread's groups is above zero.

    An end whose start lies before the capture closes nothing.
    """
    depth = np.cumsum(change)
    depth = depth - np.minimum(np.minimum.accumulate(depth), 0)
    before = np.concatenate(([0], depth[:-1]))
    opened = np.flatnonzero((before == 0) & (depth == 1))
    closed = np.flatnonzero((before == 1) & (depth == 0))
    return time[opened[: len(closed)]], time[closed]


def _named(trace: Trace, ranges: Ranges, name: str) -> Column:
    rows = np.flatnonzero(pc.equal(trace.strings, pa.scalar(name)).to_numpy(zero_copy_only=False))
    return np.flatnonzero(np.isin(ranges.name, rows)) if len(rows) else np.empty(0, np.int64)


def _grouped(
    groups: _Groups,
    op: Column,
    sent: tuple[Column, Column],
    launch: tuple[Column, Column],
    called: Column,
    inside: Column,
) -> None:
    """Give the messages of every group to its kernel, where it launched one. In place."""
    if not len(groups):
        return
    of_launch = _open_group(groups, *launch)
    of_launch[inside] = -1
    launches = np.bincount(of_launch[of_launch >= 0], minlength=len(groups))
    carrier = np.full(len(groups), NO_ROW, np.int64)
    carrier[of_launch[of_launch >= 0]] = called[of_launch >= 0]
    carrier[launches != 1] = NO_ROW
    of_message = _open_group(groups, *sent)
    of_message[op != NO_ROW] = -1
    queued = of_message >= 0
    op[queued] = carrier[of_message[queued]]


def _open_group(groups: _Groups, thread: Column, time: Column) -> Column:
    """The group that is open on each thread at each instant, -1 for none."""
    row = _latest(groups.thread, groups.start, thread, time)
    known = row >= 0
    row[known] = np.where(groups.end[row[known]] > time[known], row[known], -1)
    return row
