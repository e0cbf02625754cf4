"""Filters: what lies outside does not count, and the ledger says so.

Owners are found in the whole capture first, so that a filter never changes whom an op belongs to;
only a filter by NVTX domain comes before, because it asks for the paths of those domains. Then

* a GPU op counts if its call (without one: its own start) lies inside;
* a range, call, mark or record counts if it does, and is cut to the window of time or steps;
* busy is the time of the remaining ops, idle what ended with one of them; while a device works for
  what was left out it is neither.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from nvprobe.analysis.steady import steady_steps
from nvprobe.analysis.steps import steps, unnamed_steps
from nvprobe.attribution import attribute
from nvprobe.attribution.model import Attribution, Outside, RangeTree, Unfiltered, shown_path
from nvprobe.errors import UsageError
from nvprobe.trace import NO_NAME, NO_ROW, OPEN, Column, Payloads, Table, Trace

T = TypeVar("T", bound=Table)

NO_LAST_STEP = 2**62
"""The end of ``--steps 10:``."""
_FIRST, _LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
_ROWS = (
    *("processes", "threads", "devices", "geometry", "operators", "ops", "ranges", "calls"),
    *("payloads", "messages"),
)
"""Tables that others refer to by row, or that are filtered by rules of their own."""
_ALWAYS = (
    *("callchains", "graph_nodes", "os_stacks", "sample_stacks", "python_stacks"),
    *("backtraces", "backtrace_stacks", "payload_fields"),
)
"""Tables that only serve to look something up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What counts; an empty filter lets everything through."""

    processes: tuple[int, ...] = ()
    """Operating system pids."""
    devices: tuple[int, ...] = ()
    """Physical devices, as the report numbers them."""
    threads: tuple[int, ...] = ()
    """Operating system thread ids."""
    domains: tuple[str, ...] = ()
    """NVTX domains, ``""`` for the default one."""
    ranges: tuple[str, ...] = ()
    """Paths, with ``*`` and ``?``; what is below them counts too."""
    steps: tuple[int, int] | None = None
    """First step and the one after the last."""
    time: tuple[int | None, int | None] | None = None
    """Begin and end in ns since the begin of the capture."""
    step_names: tuple[str, ...] = ()
    """Regular expressions of names that are steps; they filter nothing."""
    everything: bool = False
    """Also what warms up, starts and ends a whole run."""

    def __bool__(self) -> bool:
        """Whether anything is filtered."""
        return dataclasses.replace(self, step_names=(), everything=False) != Selection()

    def words(self) -> tuple[str, ...]:
        """The filters as a user gives them."""
        out = [f"process {pid}" for pid in self.processes]
        out += [f"device {device}" for device in self.devices]
        out += [f"thread {tid}" for tid in self.threads]
        out += [f"domain {name!r}" for name in self.domains]
        out += [f"range {path!r}" for path in self.ranges]
        out += [_steps_in_words(self.steps)] if self.steps else []
        if self.time:
            s = ["" if t is None else f"{Decimal(t).scaleb(-9).normalize():f}s" for t in self.time]
            out.append(f"time {':'.join(s)}")
        return tuple(out)


def select(trace: Trace, selection: Selection, index_rules: Sequence[str] = ()) -> Attribution:
    """Attribute ``trace``, and leave what ``selection`` lets through; else its steady steps.

    Raises UsageError where a filter names what the capture does not have.
    """
    whole = attribute(of_domains(trace, selection.domains), index_rules, selection.step_names)
    if selection:
        return within(whole, selection)
    return whole if selection.everything else _steady(whole)


def _steady(whole: Attribution) -> Attribution:
    """The steady steps of a capture of a whole run; else all of it."""
    table = steps(whole, np.empty(0, np.int64))
    found = steady_steps(whole, table)
    if found is None:
        return whole
    part = within(whole, Selection(time=(found.start, found.end)))
    assert part.outside is not None
    assert part.unfiltered is not None
    first, last = found.numbers
    return dataclasses.replace(
        part,
        outside=dataclasses.replace(part.outside, filters=(f"steps {first}:{last}",)),
        unfiltered=dataclasses.replace(
            part.unfiltered,
            steps=table.with_columns(steady=found.steady),
            left_out=found.left_out,
        ),
    )


def of_domains(trace: Trace, domains: Sequence[str]) -> Trace:
    """The trace with ranges, spans and marks of these NVTX domains alone."""
    if not domains:
        return trace
    tables = (trace.ranges, trace.spans, trace.marks)
    used = np.unique(np.concatenate([table.domain for table in tables]))
    named = {"" if row == NO_NAME else str(trace.text(row)): row for row in used.tolist()}
    if unknown := [name for name in domains if name not in named]:
        known = ", ".join(repr(name) for name in list(named)[:8]) or "none"
        raise UsageError(f"domain {unknown[0]!r}: nothing was recorded in it; there is {known}")
    rows = np.array([named[name] for name in domains])
    kept = np.isin(trace.ranges.domain, rows)
    held = trace.payloads.take(np.isin(trace.payloads.domain, rows))
    return dataclasses.replace(
        trace,
        ranges=trace.ranges.take(kept),
        spans=trace.spans.take(np.isin(trace.spans.domain, rows)),
        marks=trace.marks.take(np.isin(trace.marks.domain, rows)),
        operators=_referring(trace.operators, "range", kept),
        payloads=held.with_columns(range=_renumbered(kept, held.range)),
    )


def within(attribution: Attribution, selection: Selection) -> Attribution:
    """What of an attribution lies inside, with owners as they were."""
    sieve = _Sieve(attribution, selection)
    trace = attribution.trace
    changes: dict[str, Any] = {
        spec.name: sieve.records(getattr(trace, spec.name))
        for spec in dataclasses.fields(trace)
        if isinstance(getattr(trace, spec.name), Table) and spec.name not in (*_ROWS, *_ALWAYS)
    }
    ops = sieve.ops()
    call = attribution.call[ops]
    calls, ranges = sieve.calls(), sieve.ranges()
    calls[call[call != NO_ROW]] = True
    call = _renumbered(calls, call)
    cut, tree = sieve.cut(ranges)
    changes |= {
        "calls": trace.calls.take(calls),
        "ops": trace.ops.take(ops),
        "geometry": _referring(trace.geometry, "op", ops),
        "messages": _referring(trace.messages, "op", ops),
        "ranges": cut,
        "payloads": sieve.payloads(trace.payloads, ranges),
    }
    left = int(len(ops) - np.count_nonzero(ops))
    outside = Outside(left, int(attribution.duration[~ops].sum()), selection.words())
    begin, end = sieve.hull()
    return dataclasses.replace(
        attribution,
        trace=dataclasses.replace(trace, start_ns=begin, end_ns=end, **changes),
        tree=tree,
        call=call,
        owner=attribution.owner[ops],
        method=attribution.method[ops],
        valid=attribution.valid[ops],
        duration=attribution.duration[ops],
        outside=outside,
        unfiltered=Unfiltered(_counting(attribution, ops), ops, ranges, unnamed_steps(attribution)),
    )


def _counting(attribution: Attribution, ops: Column) -> Attribution:
    """The whole attribution, in which ops outside start from no call and last 0 ns."""
    return dataclasses.replace(
        attribution,
        call=np.where(ops, attribution.call, NO_ROW),
        duration=np.where(ops, attribution.duration, 0),
    )


class _Sieve:
    """The filters as rows, windows and paths of one attribution."""

    def __init__(self, attribution: Attribution, selection: Selection) -> None:
        self.whole = attribution
        self.trace = trace = attribution.trace
        self.processes = _rows("process", selection.processes, trace.processes.pid)
        self.threads = _rows("thread", selection.threads, trace.threads.tid)
        self.devices = _rows("device", selection.devices, trace.devices.id)
        self.begin, self.end = _windows(attribution, selection)
        self.patterns = selection.ranges
        if selection.ranges and not self._inside(np.arange(len(attribution.paths.parent))).any():
            raise UsageError(
                f"range {selection.ranges[0]!r}: not a path of the capture, which has "
                f"{_outermost(attribution)}"
            )

    def ops(self) -> Column:
        """Bool per op."""
        ops, calls, call = self.trace.ops, self.trace.calls, self.whole.call
        called = call != NO_ROW
        time, thread = ops.start.copy(), np.full(len(ops), NO_ROW, np.int32)
        time[called], thread[called] = calls.start[call[called]], calls.thread[call[called]]
        keep = self._in_window(ops.process, time, time)
        keep &= _among(self.processes, ops.process) & _among(self.devices, ops.device)
        keep &= _among(self.threads, thread)
        return keep & self._inside(self.whole.owner) if self.patterns else keep

    def calls(self) -> Column:
        """Bool per call: it begins inside, and nothing says that it was for another device."""
        calls = self.trace.calls
        keep = self._in_window(calls.process, calls.start, calls.start)
        keep &= _among(self.processes, calls.process) & _among(self.threads, calls.thread)
        if self.devices is not None:
            keep &= ~_for_others(self.whole, self.devices)
        if self.patterns:
            rows = np.flatnonzero(keep)
            keep[rows] = self._inside(self.whole.open.at(calls.thread[rows], calls.start[rows]))
        return keep

    def ranges(self) -> Column:
        """Bool per range: some of it lies inside."""
        ranges = self.trace.ranges
        keep = self._in_window(ranges.process, ranges.start, self.whole.tree.end)
        keep &= _among(self.processes, ranges.process) & _among(self.threads, ranges.thread)
        return keep & self._inside(self.whole.tree.path) if self.patterns else keep

    def payloads(self, table: Payloads, ranges: Column) -> Payloads:
        """Those of ranges that lie inside, and of spans and marks that do."""
        of_range = table.range != NO_ROW
        gone = of_range.copy()
        gone[of_range] = ~ranges[table.range[of_range]]
        alone = self.records(table.take(~of_range))
        held = table.take(of_range & ~gone)
        return table.with_columns(**Payloads.joined([held.columns(), alone.columns()]).columns())

    def cut(self, kept: Column) -> tuple[Table, RangeTree]:
        """The ranges and their tree, cut to the window of their process.

        What lies outside stays as a row without length and is not an instance: look-ups
        of open ranges lead to rows of this table.
        """
        ranges, tree = self.trace.ranges, self.whole.tree
        begin, end = self.begin[ranges.process], self.end[ranges.process]
        start = np.where(kept, np.maximum(ranges.start, begin), ranges.start)
        closed = np.where(kept, np.minimum(tree.end, end), ranges.start)
        recorded = np.where(kept & (ranges.end == OPEN) & (end == _LAST), OPEN, closed)
        parent = np.where(kept & (tree.parent != NO_ROW) & kept[tree.parent], tree.parent, NO_ROW)
        return (
            ranges.with_columns(start=start, end=recorded),
            dataclasses.replace(tree, parent=parent, end=closed, folded=tree.folded | ~kept),
        )

    def records(self, table: T) -> T:
        """The rows of another table that lie inside, as far as its columns show."""
        has = table.columns()
        keep = np.ones(len(table), bool)
        threads = has.get("thread")
        process = has.get("process")
        if process is None and threads is not None:
            process = self.trace.threads.process[threads]
        if process is not None:
            keep &= _among(self.processes, process)
            start = has.get("start", has.get("time"))
            if start is not None:
                keep &= self._in_window(process, start, has.get("end", start))
        elif "time" in has:
            begin, end = self.hull()
            keep &= (has["time"] >= begin) & (has["time"] < end)
        if threads is not None:
            keep &= _among(self.threads, threads) | (threads == NO_ROW)
        if "device" in has:
            keep &= _among(self.devices, has["device"])
        return table if keep.all() else table.take(keep)

    def hull(self) -> tuple[int, int]:
        """Begin and end of the whole selection, within the capture."""
        begin = max(int(self.begin.min(initial=_LAST)), self.trace.start_ns)
        end = min(int(self.end.max(initial=_FIRST)), self.trace.end_ns)
        return (begin, end) if begin <= end else (self.trace.start_ns, self.trace.start_ns)

    def _in_window(self, process: Column, start: Column, end: Column) -> Column:
        """Bool: [start, end), or the instant start, meets the window of its process."""
        begin, last = self.begin[process], self.end[process]
        inside: Column = (start < last) & ((end > begin) | (start >= begin))
        return inside

    def _inside(self, path: Column) -> Column:
        """Bool per path row: a pattern matches it or something above it; no path matches none."""
        paths = self.whole.paths
        matched = np.zeros(len(paths.parent) + 1, bool)
        if self.patterns:
            whole = re.compile("|".join(map(_as_regex, self.patterns)), re.DOTALL)
            own = [
                whole.fullmatch(text) or whole.fullmatch(shown_path(text)) for text in paths.texts()
            ]
            matched[:-1] = paths.nearest(np.array(own, bool)) >= 0
        return matched[path]


def _as_regex(pattern: str) -> str:
    """A path with ``*`` and ``?``; all else, brackets too, means itself."""
    return "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in pattern)


def _steps_in_words(steps: tuple[int, int]) -> str:
    """The filter as it was given; past every step there can be, the end was left open."""
    return f"steps {steps[0]}:{'' if steps[1] >= NO_LAST_STEP else steps[1]}"


def _windows(attribution: Attribution, selection: Selection) -> tuple[Column, Column]:
    """Begin and end per process, by time and by steps."""
    size = len(attribution.trace.processes)
    begin, end = np.full(size, _FIRST), np.full(size, _LAST)
    if selection.steps is not None:
        begin, end = _of_steps(attribution, selection.steps, size)
    if selection.time is not None:
        first, last = selection.time
        begin = np.maximum(begin, _FIRST if first is None else first)
        end = np.minimum(end, _LAST if last is None else last)
    return begin, end


def _of_steps(
    attribution: Attribution, wanted: tuple[int, int], size: int
) -> tuple[Column, Column]:
    """From the begin of the first to the end of the last wanted step; nothing without them."""
    table = steps(attribution, np.empty(0, np.int64))
    rows = np.flatnonzero((table.index >= wanted[0]) & (table.index < wanted[1]))
    if not len(rows):
        has = f"steps {table.index.min()} to {table.index.max()}" if len(table) else "no steps"
        raise UsageError(f"{_steps_in_words(wanted)}: the capture has {has}")
    begin, end = np.full(size, _LAST), np.full(size, _FIRST)
    np.minimum.at(begin, table.process[rows], table.start[rows])
    np.maximum.at(end, table.process[rows], np.minimum(table.end[rows], OPEN))
    return begin, end


def _outermost(attribution: Attribution) -> str:
    """The first paths without anything above them."""
    paths = attribution.paths
    rows = np.flatnonzero(paths.parent < 0)[:8].tolist()
    return ", ".join(repr(paths.shown(row)) for row in rows) or "none"


def _rows(option: str, wanted: tuple[int, ...], known: Column) -> Column | None:
    """Table rows of the wanted ids; ``None`` where nothing is filtered."""
    if not wanted:
        return None
    if unknown := sorted(set(wanted) - set(known.tolist())):
        some = ", ".join(map(str, sorted(set(known.tolist()))[:8]))
        raise UsageError(f"{option} {unknown[0]}: not in the capture, which has {some or 'none'}")
    return np.flatnonzero(np.isin(known, np.array(wanted)))


def _for_others(whole: Attribution, devices: Column) -> Column:
    """Bool per call: its ops, what it waits for or all that its process runs is of others."""
    calls, ops, syncs = whole.trace.calls, whole.trace.ops, whole.trace.syncs
    here = np.isin(ops.device, devices)
    processes = len(whole.trace.processes)
    used = np.bincount(ops.process, minlength=processes) > 0
    ours = np.bincount(ops.process[here], minlength=processes) > 0
    out: Column = (used & ~ours)[calls.process]
    out[whole.call[~here & (whole.call != NO_ROW)]] = True
    other = syncs.take(~np.isin(syncs.device, devices) & (syncs.device >= 0))
    known = calls.correlation > 0
    out[known] |= np.isin(
        calls.correlation[known] * processes + calls.process[known],
        other.correlation * processes + other.process,
    )
    out[whole.call[here & (whole.call != NO_ROW)]] = False
    return out


def _among(rows: Column | None, values: Column) -> Column:
    return np.ones(len(values), bool) if rows is None else np.isin(values, rows)


def _renumbered(kept: Column, rows: Column) -> Column:
    """References to rows of a filtered table, ``NO_ROW`` where the row is gone."""
    number = np.where(kept, np.cumsum(kept) - 1, NO_ROW)
    return np.where(rows == NO_ROW, NO_ROW, number[rows]) if len(number) else rows


def _referring(table: T, field: str, kept: Column) -> T:
    """The rows that refer to kept rows, renumbered."""
    target = table.columns()[field]
    mine = kept[target]
    return table.take(mine).with_columns(**{field: _renumbered(kept, target[mine])})
