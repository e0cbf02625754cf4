"""Runs of the autograd engine, and what their threads did in them, in order.

The instrumentation names the backward nodes of few runs and marks where every run begins and ends
(`nvprobe.instrumentation.autograd`). Two runs *repeat* each other where all of this is equal: the
run's signature, the modules and compiled graphs that its thread called since the run before, and
on each thread the sequence of calls that launch, copy, set or wait, each with what it launched
(kernel, grid, block, stream, bytes), and of the ranges that are written in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.intervals import by_group, running_max, runs, slices, sorted_by
from nvprobe.attribution.kinds import OWN_DOMAIN
from nvprobe.attribution.labels import labels
from nvprobe.attribution.owners import calls_of_ops
from nvprobe.trace import NO_NAME, NO_ROW, Column, Trace
from nvprobe.trace.cuda_calls import LAUNCH_CALLS, SYNCS, CallRole, calls_with

_BEGIN = r"^nvprobe engine run (?P<signature>\d+)(?P<named> named)?$"
_END = "nvprobe engine run ends"
_COMPARED = (*LAUNCH_CALLS, *SYNCS, CallRole.WAIT_EVENT)
"""Calls that the program asks for; allocations and queries depend on what was cached."""


@dataclass(frozen=True, slots=True)
class EngineRuns:
    """One row a run, by process and begin; runs of several threads at once are left out."""

    process: Column
    thread: Column
    """The thread that ran the engine."""
    start: Column
    end: Column
    signature: Column
    named: Column
    """bool: its nodes have ranges."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Column) -> EngineRuns:
        """Some of the runs."""
        columns = self.process, self.thread, self.start, self.end, self.signature, self.named
        return EngineRuns(*(column[rows] for column in columns))

    def around(self, process: Column, time: Column) -> Column:
        """Row of the run that is under way in a process at an instant, -1."""
        out = np.full(len(time), NO_ROW, np.int64)
        for one, rows in by_group(process):
            low, high = np.searchsorted(self.process, [one, one + 1])
            at = low + np.searchsorted(self.start[low:high], time[rows], side="right") - 1
            inside = at >= low
            inside[inside] = time[rows][inside] < self.end[at[inside]]
            out[rows] = np.where(inside, at, NO_ROW)
        return out


def engine_runs(trace: Trace) -> EngineRuns:
    """The runs that are marked, from their begin to their end."""
    marks = trace.marks
    texts = trace.strings.take(pa.array(marks.name, mask=marks.name < 0))
    begins = pc.extract_regex(texts, _BEGIN)
    is_begin = begins.is_valid().to_numpy(zero_copy_only=False)
    is_end = pc.fill_null(pc.equal(texts, _END), fill_value=False).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(is_begin | is_end)
    rows = rows[sorted_by(marks.thread[rows], marks.time[rows])]
    same = marks.thread[rows[1:]] == marks.thread[rows[:-1]]
    pair = np.flatnonzero(same & is_begin[rows[:-1]] & is_end[rows[1:]])
    begin, end = rows[pair], rows[pair + 1]
    found = begins.take(pa.array(begin))
    named = pc.not_equal(pc.struct_field(found, "named"), "").to_numpy(zero_copy_only=False)
    signature = pc.cast(pc.struct_field(found, "signature"), pa.int64())
    whole = EngineRuns(
        process=marks.process[begin],
        thread=marks.thread[begin],
        start=marks.time[begin],
        end=marks.time[end],
        signature=signature.to_numpy(zero_copy_only=False),
        named=named.astype(bool),
    )
    whole = whole.take(sorted_by(whole.process, whole.start))
    return whole.take(_alone(whole))


def _alone(whole: EngineRuns) -> Column:
    """Bool per run: no other run of its process overlaps it."""
    reach = running_max(whole.process, whole.end)
    meets = (whole.process[1:] == whole.process[:-1]) & (whole.start[1:] < reach[:-1])
    alone = np.ones(len(whole), bool)
    alone[1:] &= ~meets
    alone[:-1] &= ~meets
    return alone


@dataclass(frozen=True, slots=True)
class Nodes:
    """The ranges that torch wrote of backward nodes, by run, thread, start, longer first."""

    row: Column
    """Row of ``trace.ranges``."""
    run: Column
    thread: Column
    name: Column
    """The name without torch's numbers, as a code."""


def nodes_of_runs(trace: Trace, whole: EngineRuns) -> Nodes:
    """The ranges of backward nodes in the runs: in the default domain, with torch's numbers."""
    ranges = trace.ranges
    row = np.flatnonzero(ranges.domain == NO_NAME)
    run = whole.around(ranges.process[row], ranges.start[row])
    inside = run >= 0
    inside[inside] = ranges.end[row[inside]] <= whole.end[run[inside]]
    row, run = row[inside], run[inside]
    texts = trace.strings.take(pa.array(ranges.name[row], mask=ranges.name[row] < 0))
    parts = labels(pc.fill_null(texts, "").cast(pa.string()))
    name = parts.names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    torch = np.flatnonzero(parts.operator_id >= 0)
    row, run, name = row[torch], run[torch], name[torch]
    order = np.lexsort((-ranges.end[row], ranges.start[row], ranges.thread[row], run))
    return Nodes(row[order], run[order], ranges.thread[row[order]], name[order])


@dataclass(frozen=True, slots=True)
class Sequences:
    """What happened in each run on each thread, in order: *events* of equal codes are equal."""

    run: Column
    """Run of each sequence; sorted by run, then thread."""
    thread: Column
    first: Column
    """int64 of one row more: events of sequence s are ``first[s] … first[s + 1]``."""
    time: Column
    """int64 ns of each event, ascending in a sequence."""
    code: Column
    """int64 of each event."""

    def bounds(self, at: int) -> slice:
        """The events of a sequence."""
        return slice(int(self.first[at]), int(self.first[at + 1]))


def sequences(trace: Trace, whole: EngineRuns, nodes: Nodes) -> Sequences:
    """The sequence of every run on each of autograd's threads that calls anything in it."""
    names = trace.texts(trace.threads.name)
    works = np.array([(name or "").startswith("pt_autograd_") for name in names], bool)
    works[nodes.thread] = True
    calls, ranges = trace.calls, trace.ranges
    call = np.flatnonzero(works[calls.thread] & calls_with(trace, _COMPARED))
    call_run = whole.around(calls.process[call], calls.start[call])
    call, call_run = call[call_run >= 0], call_run[call_run >= 0]
    row = np.flatnonzero(works[ranges.thread])
    row = row[~np.isin(row, nodes.row)]
    run = whole.around(ranges.process[row], ranges.start[row])
    row, run = row[run >= 0], run[run >= 0]
    closed = ranges.end[row] <= whole.end[run]
    what = _coded(calls.name[call], *_launched(trace, call))
    text = _coded(ranges.name[row], ranges.domain[row])
    parts = (  # of events at one instant these stand first that begin
        (run, ranges.thread[row], ranges.start[row], 4 * text),
        (call_run, calls.thread[call], calls.start[call], 4 * what + 1),
        (call_run, calls.thread[call], calls.end[call], 4 * what + 2),
        (run[closed], ranges.thread[row[closed]], ranges.end[row[closed]], 4 * text[closed] + 3),
    )
    of, thread, time, code = (np.concatenate(one) for one in zip(*parts, strict=True))
    order = np.lexsort((time, thread, of))
    of, thread, time, code = of[order], thread[order], time[order], code[order]
    key = of * len(works) + thread
    first = runs(key)
    launches = np.add.reduceat(code % 4 == 1, first) > 0 if len(first) else np.empty(0, bool)
    keep = np.repeat(launches, np.diff(np.append(first, len(key))))
    of, thread, time, code, key = of[keep], thread[keep], time[keep], code[keep], key[keep]
    first = runs(key)
    return Sequences(of[first], thread[first], np.append(first, len(key)), time, code)


def _launched(trace: Trace, call: Column) -> list[Column]:
    """What each call started, as columns: its ops, and the first one's name, place and geometry."""
    ops, geometry = trace.ops, trace.geometry
    of_op = calls_of_ops(trace.calls, ops)
    started = np.flatnonzero(of_op >= 0)
    started = started[np.argsort(ops.start[started], kind="stable")[::-1]]
    count = np.bincount(of_op[started], minlength=len(trace.calls))[call]
    first = np.full(len(trace.calls), NO_ROW, np.int64)
    first[of_op[started]] = started  # the earliest is written last
    op = first[call]
    place = np.full(len(ops) + 1, NO_ROW, np.int64)
    place[geometry.op] = np.arange(len(geometry))
    columns = (ops.kind, ops.name, ops.device, ops.context, ops.stream, ops.bytes, ops.copy_kind)
    shape = (geometry.grid_x, geometry.grid_y, geometry.grid_z, geometry.block_x, geometry.block_y,
             geometry.block_z, geometry.dynamic_shared)  # fmt: skip
    return [count, *(_at(one, op) for one in columns), *(_at(one, place[op]) for one in shape)]


def _at(column: Column, row: Column) -> Column:
    """Values of some rows; the smallest int64 for row -1."""
    padded = np.append(column.astype(np.int64), np.iinfo(np.int64).min)
    return padded[row]


def _coded(*columns: Column) -> Column:
    """A code per row: equal where all columns are."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        dense = pa.array(column).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        pair = code << 32 | dense
        code = pa.array(pair).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        code = code.astype(np.int64)
    return code


def called_before(trace: Trace, whole: EngineRuns) -> list[bytes]:
    """Per run: the modules and compiled graphs that its thread called since its last run."""
    ranges = trace.ranges
    row = np.flatnonzero(_named_by(trace, ranges.domain, (OWN_DOMAIN,)))
    row = row[_named_by(trace, ranges.category[row], ("module", "graph"))]
    row = row[sorted_by(ranges.thread[row], ranges.start[row])]
    out = [b""] * len(whole)
    order = sorted_by(whole.thread, whole.start)
    for head, tail in slices(whole.thread[order]):
        mine = order[head:tail]
        one = int(whole.thread[mine[0]])
        low, high = np.searchsorted(ranges.thread[row], [one, one + 1])
        begins = ranges.start[row[low:high]]
        until = np.searchsorted(begins, whole.start[mine])
        since = np.append(0, np.searchsorted(begins, whole.end[mine[:-1]]))
        names = ranges.name[row[low:high]]
        for run, first, last in zip(mine.tolist(), since.tolist(), until.tolist(), strict=True):
            out[run] = names[first:last].tobytes()
    return out


def _named_by(trace: Trace, column: Column, texts: tuple[str, ...]) -> Column:
    """Bool per row: its string is one of some."""
    used = np.unique(column[column >= 0])
    rows = [row for row, one in zip(used, trace.texts(used), strict=True) if one in texts]
    return np.isin(column, rows)
