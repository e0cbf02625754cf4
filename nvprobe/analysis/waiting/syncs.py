"""Calls that made the host wait, by call, path, operator and line.

Which operator of PyTorch made a call: ``item``, ``nonzero``, ``copy_`` and so on.

Two sources that agree in their words: the operator ranges of torch (cpu_op of a torch trace, NVTX
of emit_nvtx) and the native call stack of a call. Of several operators inside one another the
outermost is what the user wrote. Both give names without ``aten::``.

Synchronizing calls by call site: where in the program the host waits, how long, for what.

A site is a call name, owner path, source line and operator. The source line comes from marks
``sync <file>:<line>`` that nvprobe (and others) write after an implicit synchronization, from call
stacks, or from Python frames or samples; the operator from native call stacks, from operator
ranges, or from Python frames.

Definition: docs/attribution.md, "Synchronizing call".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import counts, distinct, sums
from nvprobe.analysis.waiting.blocking import SyncCalls
from nvprobe.analysis.waiting.code_lines import CodeLines, LineSamples, call_lines
from nvprobe.analysis.waiting.host_causes import Cause, HostCauses
from nvprobe.attribution.intervals import by_group, runs, sorted_by
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import NO_ROW, Column, Table, Trace, column

_BINDING = r"^torch::autograd::THPVariable_(?P<name>\w+)\("
"""The Python binding of a tensor method or function: what the user called."""
_DISPATCHED = r"^at::_ops::(?P<name>\w+)::(?:call|redispatch)\("


@dataclass(frozen=True, slots=True)
class PathOperators:
    """The operator that each path ends in."""

    row: Column
    """int32 row of ``names`` per path, -1 where it ends in none."""
    names: pa.StringArray

    def rows(self, paths: Column) -> Column:
        """int32 row of ``names`` of some path rows; -1 for path -1 and where there is none."""
        known = paths >= 0
        rows = np.full(len(paths), -1, np.int32)
        rows[known] = self.row[paths[known]]
        return rows

    def of(self, paths: Column) -> list[str | None]:
        """The operators of some path rows; None for -1 and where there is none."""
        rows = self.rows(paths)
        return list(self.names.take(pa.array(rows, mask=rows < 0)).to_pylist())


def path_operators(attribution: Attribution) -> PathOperators:
    """The outermost ``aten::`` operator of the operators at the end of each path.

    Where there is none of ``aten::``, the outermost of any; library ranges inside an operator do
    not hide it.
    """
    paths = attribution.paths
    is_aten = pc.starts_with(paths.names, "aten::").to_numpy(zero_copy_only=False)
    outer = np.full(len(paths.parent), -1, np.int32)
    aten = outer.copy()
    for rows in paths.levels():
        kind, name = paths.kind[rows], paths.name[rows]
        parent = np.where(paths.parent[rows] >= 0, paths.parent[rows], len(outer) - 1)
        inside = paths.parent[rows] >= 0
        above = np.where(inside, outer[parent], -1), np.where(inside, aten[parent], -1)
        operator = kind == Kind.OPERATOR
        kept = operator | (kind == Kind.LIBRARY)
        outer[rows] = np.where(above[0] >= 0, above[0], np.where(operator, name, -1))
        aten[rows] = np.where(above[1] >= 0, above[1], np.where(is_aten[name], name, -1))
        outer[rows[~kept]], aten[rows[~kept]] = -1, -1
    found = np.where(aten >= 0, aten, outer).astype(np.int32)
    return PathOperators(found, pc.replace_substring_regex(paths.names, "^aten::", ""))


def chain_operators(trace: Trace, chains: Column) -> tuple[Column, pa.StringArray]:
    """(int32 row of the names, -1, per given call chain; names): the operator in its stack.

    The outermost binding of a tensor method, else the outermost operator dispatched.
    """
    names = pa.array([], pa.string())
    out = np.full(len(chains), -1, np.int32)
    table = trace.callchains
    if not len(table) or not len(chains):
        return out, names
    symbols, code = np.unique(table.symbol, return_inverse=True)
    texts = trace.strings.take(pa.array(symbols, mask=symbols < 0))
    for pattern in (_DISPATCHED, _BINDING):
        found = pc.struct_field(pc.extract_regex(texts, pattern), "name")
        known = np.asarray(found.is_valid(), bool)[code]
        chain, symbol = table.chain[known], code[known]
        # Rows are by chain and depth: what stands last of a chain is outermost.
        last = np.searchsorted(chain, chains, "right") - 1
        hit = np.flatnonzero(last >= 0)
        hit = hit[chain[last[hit]] == chains[hit]]
        out[hit] = symbol[last[hit]] + len(names)
        names = pa.concat_arrays([names, found])
    return out, names


_MARK = r"^sync (?P<where>.+:\d+)$"


@dataclass(frozen=True, slots=True)
class SyncSites(Table):
    """One row per call site, the costliest first: by bubble, then wait."""

    call: Column = column("i4")
    """Name of the call, row of the trace's strings."""
    path: Column = column("i4")
    source: Column = column("i4")
    """Row of ``Syncs.labels``, -1 where unknown."""
    operator: Column = column("i4")
    """Row of ``Syncs.labels``, -1 where unknown."""
    count: Column = column("i8")
    wait_ns: Column = column("i8")
    busy_ns: Column = column("i8")
    bubble_ns: Column = column("i8")
    device: Column = column("i4")
    """Of what it waited for longest: row of the device, -1 unknown."""
    stream: Column = column("i8")
    """Likewise: stream id, -1 for a whole device or where unknown."""
    op: Column = column("i4")
    """Likewise: name of the awaited op, row of the trace's strings, -1."""


@dataclass(frozen=True, slots=True)
class Syncs:
    """Synchronizing calls one by one and by site."""

    calls: SyncCalls
    bubble_ns: Column
    """Per call: the ``sync`` idle it is assigned with."""
    site: Column
    """Per call: row of ``sites``."""
    sites: SyncSites
    labels: pa.StringArray
    """Source lines and operators."""


@dataclass(frozen=True, slots=True)
class _Labels:
    """Collects label columns; each distinct text becomes one row."""

    parts: list[tuple[Column, pa.StringArray]]

    def coded(self) -> tuple[list[Column], pa.StringArray]:
        """Every column with rows of the one array."""
        texts = pa.concat_arrays([names for _, names in self.parts])
        encoded = pc.dictionary_encode(texts)
        row = np.asarray(pc.fill_null(encoded.indices, -1), np.int32)
        out, first = [], 0
        for code, names in self.parts:
            own = np.append(row[first : first + len(names)], np.int32(-1))
            out.append(own[np.where(code >= 0, code, len(names))])
            first += len(names)
        return out, encoded.dictionary


def sync_sites(
    attribution: Attribution,
    waits: SyncCalls,
    bubble_ns: Column,
    work: HostCauses,
    lines: CodeLines | None = None,
    samples: LineSamples | None = None,
) -> Syncs:
    """Sum the synchronizing calls by call site."""
    trace, calls = attribution.trace, attribution.trace.calls
    if not len(waits):
        nothing = np.empty(0, np.int64)
        return Syncs(waits, nothing, nothing, SyncSites.empty(), pa.array([], pa.string()))
    path = attribution.open.at(waits.thread, calls.start[waits.call])
    source, operator, labels = _named(attribution, waits, work, path, lines, samples)
    site = _site_codes(calls.name[waits.call], path, source, operator)
    size = int(site.max()) + 1
    longest = _longest(site, waits.wait_ns)
    sites = SyncSites(
        call=calls.name[waits.call[longest]],
        path=path[longest],
        source=source[longest],
        operator=operator[longest],
        count=counts(site, size),
        wait_ns=sums(site, waits.wait_ns, size),
        busy_ns=sums(site, waits.busy_ns, size),
        bubble_ns=sums(site, bubble_ns, size),
        device=waits.device[longest],
        stream=waits.stream[longest],
        op=_op_names(trace, waits.op[longest]),
    )
    order = np.lexsort((-sites.wait_ns, -sites.bubble_ns))
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size)
    return Syncs(waits, bubble_ns, rank[site], sites.take(order), labels)


def _named(
    attribution: Attribution,
    waits: SyncCalls,
    work: HostCauses,
    path: Column,
    lines: CodeLines | None,
    samples: LineSamples | None,
) -> tuple[Column, Column, pa.StringArray]:
    """(source, operator, labels) per call; the first source of knowledge that knows decides."""
    trace = attribution.trace
    group = _together(waits, work)
    chain = np.full(len(waits), -1, np.int64)
    if trace.calls.callchain is not None:
        chain = trace.calls.callchain[waits.call]
    operators = path_operators(attribution)
    parts = [
        _marked(trace, waits, group),
        chain_operators(trace, chain),
        (operators.rows(path), operators.names),
        call_lines(trace, waits.call),
    ]
    if lines is not None:
        start = trace.calls.start[waits.call]
        parts.append((lines.at(waits.thread, start), lines.labels))
        parts.append((lines.built_in_at(waits.thread, start), lines.labels))
    if samples is not None:
        seen = samples.inside(attribution, waits.thread, waits.start, waits.end)
        parts.append((seen, samples.labels))
    (marked, chained, in_path, in_chain, *more), labels = _Labels(parts).coded()
    source = _shared(_first(marked, in_chain), group)
    if any(one.sampled for one in trace.sidecar.syncs):
        step = _steps(attribution, waits.start)
        source = carried(source, step, waits.thread, trace.calls.name[waits.call], path)
    operator = _first(_shared(chained, group), in_path)
    if lines is not None:
        source, operator = _first(source, more[0]), _first(operator, more[1])
    if samples is not None:
        call = trace.calls.name[waits.call]
        source = _first(source, _agreed(more[-1], call, path, operator))
    return source, operator, labels


def _first(known: Column, otherwise: Column) -> Column:
    """``known``, and where that is -1 ``otherwise``."""
    return np.where(known >= 0, known, otherwise)


def _agreed(seen: Column, *site: Column) -> Column:
    """``seen`` (-1: nothing); where all that was seen of a site is one, that for all of it."""
    code = _site_codes(*site)
    known = np.flatnonzero(seen >= 0)
    least = np.full(int(code.max()) + 1, np.iinfo(np.int32).max, np.int64)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, code[known], seen[known])
    np.maximum.at(most, code[known], seen[known])
    return np.where((seen < 0) & (least == most)[code], most[code], seen)


def _marked(trace: Trace, waits: SyncCalls, group: Column) -> tuple[Column, pa.StringArray]:
    """Source line per call from the marks that follow implicit synchronizations.

    A mark names the last wait to end before it on its thread; k marks in a row the last k.
    """
    marks = trace.marks
    out = np.full(len(waits), -1, np.int64)
    if not len(marks):
        return out, pa.array([], pa.string())
    texts = trace.strings.take(pa.array(marks.name, mask=marks.name < 0))
    where = pc.struct_field(pc.extract_regex(texts, _MARK), "where")
    rows = np.flatnonzero(where.is_valid().to_numpy(zero_copy_only=False))
    rows = rows[sorted_by(marks.thread[rows], marks.time[rows])]
    label = np.full(int(group.max()) + 1, -1, np.int64)
    thread, time = marks.thread[rows], marks.time[rows]
    for code, at in by_group(thread):
        low, high = np.searchsorted(waits.thread, [code, code + 1])
        before = np.searchsorted(waits.end[low:high], time[at], "right")
        last = np.where(before > 0, group[np.maximum(low + before - 1, 0)], -1)
        named = _count_back(last, int(group[low]) if high > low else 0)
        label[named[named >= 0]] = rows[at][named >= 0]
    return label[group], where


def carried(source: Column, step: Column, *site: Column) -> Column:
    """``source`` (-1: no mark), the lines of marked waits given to others of their site.

    Every wait of a thread's first step is marked, if it can be; of a later step the first of each
    line. So a wait has the line of the one at its place in the first step, where its site waits as
    often in its own; else the line of its site, where there is only one, and no wait of the first
    step was without.
    """
    code = _site_codes(*site)
    first = np.full(int(code.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, code, step)
    whole = step == first[code]
    in_step = _site_codes(code, step)
    order = np.argsort(in_step, kind="stable")
    heads = runs(in_step[order])
    length = np.diff(np.append(heads, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(heads, length)
    often = np.empty(len(order), np.int64)
    often[order] = np.repeat(length, length)
    out = _agreed(np.where(whole, source, -1), code, often, place)
    out = _first(source, out)
    lacking = np.zeros(len(first), bool)
    lacking[code[whole & (source < 0)]] = True
    alike = _agreed(source, code)
    return np.where((out < 0) & ~lacking[code], alike, out)


def _steps(attribution: Attribution, time: Column) -> Column:
    """Number of steps that have begun at each instant, over all threads."""
    ranges = attribution.trace.ranges
    starts = np.sort(ranges.start[attribution.tree.kind == Kind.STEP])
    return np.searchsorted(starts, time, "right").astype(np.int64)


def _together(waits: SyncCalls, work: HostCauses) -> Column:
    """Waits that belong to one synchronization: a copy that waited, and the wait right after it.

    Nothing was launched in between.
    """
    before, after = slice(None, -1), slice(1, None)
    pause = waits.thread[before] == waits.thread[after]
    begin, end = waits.end[before], np.maximum(waits.start[after], waits.end[before])
    between = work.split(waits.thread[before], begin, end)
    quiet = between.get(Cause.LAUNCH_CALL, np.zeros(len(begin), np.int64)) == 0
    joined = pause & quiet & (waits.copy[before] == 1)
    return np.concatenate(([0], np.cumsum(~joined)))


def _shared(label: Column, group: Column) -> Column:
    """``label`` with what is unknown taken from the other waits of its group."""
    of_group = np.full(int(group[-1]) + 1, -1, label.dtype)
    np.maximum.at(of_group, group, label)
    return np.where(label >= 0, label, of_group[group])


def _count_back(last: Column, lowest: int) -> Column:
    """The group that each of a thread's marks names: of k marks with one last group, the last k."""
    heads = runs(last)
    length = np.diff(np.append(heads, len(last)))
    behind = np.repeat(heads + length, length) - 1 - np.arange(len(last))
    taken = np.repeat(np.concatenate(([lowest - 1], last[heads][:-1])), length)
    named = last - behind
    return np.where((last >= 0) & (named > taken), named, -1)


def _site_codes(*columns: Column) -> Column:
    """Dense code of each distinct tuple of small integers (-1 allowed)."""
    code = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        _, code = distinct(code.astype(np.int64) << 32 | (values.astype(np.int64) + 1))
    return code


def _longest(site: Column, wait_ns: Column) -> Column:
    """Per site: the call that waited longest (ties: the first)."""
    order = np.lexsort((np.arange(len(site)), -wait_ns, site))
    return order[runs(site[order])]


def _op_names(trace: Trace, op: Column) -> Column:
    out = np.full(len(op), NO_ROW, np.int32)
    known = np.flatnonzero(op != NO_ROW)
    short, full = trace.ops.short_name[op[known]], trace.ops.name[op[known]]
    out[known] = np.where(short >= 0, short, full)
    return out
