"""Steps that no range marks: the repeating unit of a program, by the strongest evidence there is.

In this order, for each process: steps in nvprobe's sidecar, whose ranges were not recorded (an
environment without the nvtx package); calls of the root module in a program that does not train;
calls of the outermost compiled graph; launches of one CUDA graph; a value read back to the host;
the period of the sequence of kernel names. Each gives *borders*, instants at which one thread
begins the next step. A unit has to hold half of the GPU work of its process; the first that does is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.model import FoundBy
from nvprobe.analysis.unit_phases import phases_of
from nvprobe.attribution.kinds import compiled_graphs
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import NO_ROW, Column, OpKind, Table, column
from nvprobe.trace.cuda_calls import CallRole, call_roles

FEWEST = 5
"""Repeats that make a loop."""
_SMALL_BYTES = 64 << 10
"""A copy to the host up to this size is a value that is read, not a result."""
_D2H = 2
_PAUSE = 5
"""Between two steps lies something else where the gap is so many times the usual one."""
_LEAST_PAUSE_NS = 1_000_000
_EQUAL = 0.9
"""Share of kernels that are the same one period later."""
TRAINS = (
    r"(?i)(?:^|[./:])(?:optim(?:izer)?(?:_step)?$|optimizer\.|backward$)|Backward\d+$"
    r"|^autograd::engine"
)


@dataclass(frozen=True, slots=True)
class Units(Table):
    """Steps without a range of their own, by process and start."""

    process: Column = column("i4")
    path: Column = column("i4")
    """Path of the range that begins each, -1."""
    index: Column = column("i8")
    start: Column = column("i8")
    end: Column = column("i8")
    found_by: Column = column("i1")
    phase: Column = column("i1")


@dataclass(frozen=True, slots=True)
class _Borders:
    """Where steps of one thread begin, and where the work that began each ends at the earliest."""

    start: Column
    end: Column
    path: int
    found_by: FoundBy


def find_units(attribution: Attribution, lacking: Column) -> Units:
    """The units of the processes (bool per process) that have no steps by name."""
    parts = []
    for process in np.flatnonzero(lacking).tolist():
        noted = _noted(attribution, process)
        if noted is not None:
            parts.append(noted.columns())
            continue
        calls = _Process(attribution, process)
        if len(calls.op) < FEWEST:
            continue
        found = calls.units()
        if found is not None:
            parts.append(found.columns())
    return Units.joined(parts) if parts else Units.empty()


def _noted(attribution: Attribution, process: int) -> Units | None:
    """The steps of a process in its sidecar that lie in the capture; ``None`` without any."""
    trace = attribution.trace
    steps = trace.sidecar.steps
    mine = (steps.process == process) & (steps.start >= trace.start_ns)
    steps = steps.take(mine & (steps.end <= trace.end_ns))
    if not len(steps):
        return None
    calls = _Process(attribution, process)
    low, high = np.searchsorted(calls.time, steps.start), np.searchsorted(calls.time, steps.end)
    if not (high > low).any():
        return None
    return Units(
        process=steps.process,
        path=np.full(len(steps), NO_ROW),
        index=steps.index,
        start=steps.start,
        end=steps.end,
        found_by=np.full(len(steps), FoundBy.MARK),
        phase=phases_of(attribution, calls.op, low, high),
    )


class _Process:
    """One process, and the ops that it called for, in the order of their calls."""

    def __init__(self, attribution: Attribution, process: int) -> None:
        self.attribution = attribution
        self.process = process
        trace = attribution.trace
        op = np.flatnonzero((trace.ops.process == process) & (attribution.call != NO_ROW))
        call = attribution.call[op]
        order = np.lexsort((trace.ops.start[op], trace.calls.start[call]))
        self.op, call = op[order], call[order]
        self.call = call
        self.time = trace.calls.start[call]
        self.thread = trace.calls.thread[call]

    def units(self) -> Units | None:
        """The first kind of unit that holds half of the work."""
        sources: tuple[Callable[[], Iterator[_Borders]], ...] = (
            self._module_calls,
            self._compiled_calls,
            self._graph_launches,
            self._read_backs,
            self._kernel_periods,
        )
        for source in sources:
            for borders in source():
                if len(borders.start) < FEWEST:
                    continue
                if self._inside_one_module(borders):
                    continue
                start, end = self._tiles(borders)
                if self._holds_the_work(start, end):
                    return self._made(start, end, borders)
        return None

    def _made(self, start: Column, end: Column, borders: _Borders) -> Units:
        size = len(start)
        low, high = np.searchsorted(self.time, start), np.searchsorted(self.time, end)
        return Units(
            process=np.full(size, self.process),
            path=np.full(size, borders.path),
            index=np.arange(size),
            start=start,
            end=end,
            found_by=np.full(size, borders.found_by),
            phase=phases_of(self.attribution, self.op, low, high),
        )

    def _inside_one_module(self, borders: _Borders) -> bool:
        """Whether most borders lie in one call of a module: its layers repeat, not the program."""
        tree, ranges = self.attribution.tree, self.attribution.trace.ranges
        rows = np.flatnonzero((ranges.process == self.process) & (tree.kind == Kind.MODULE))
        count = np.searchsorted(borders.start, tree.end[rows])
        count -= np.searchsorted(borders.start, ranges.start[rows], side="right")
        return bool(len(rows)) and 2 * int(count.max()) > len(borders.start)

    def _tiles(self, borders: _Borders) -> tuple[Column, Column]:
        """Steps from border to border; before a pause, and last, to the end of the last call."""
        start = borders.start
        after = np.append(start[1:], np.iinfo(np.int64).max)
        gap = after - borders.end
        usual = np.median(gap[:-1])
        pause = gap > max(_PAUSE * usual, _LEAST_PAUSE_NS)
        last = self._last_before(borders.end, borders.end + 2 * int(usual) + 1)
        return start, np.where(pause, np.minimum(np.maximum(borders.end, last), after), after)

    def _last_before(self, since: Column, until: Column) -> Column:
        """End of the last call of an op that begins before each instant, or ``since``."""
        at = np.searchsorted(self.time, until) - 1
        end = self.attribution.trace.calls.end[self.call[np.maximum(at, 0)]]
        return np.where(at >= 0, np.maximum(end, since), since)

    def _holds_the_work(self, start: Column, end: Column) -> bool:
        """Whether half of the ops called for since the first border lie in steps of like size."""
        low, high = np.searchsorted(self.time, start), np.searchsorted(self.time, end)
        count = high - low
        usual = np.median(count)
        alike = np.abs(count - usual) <= 0.5 * usual
        since = len(self.time) - int(low[0])
        return bool(usual >= 1 and 2 * alike.sum() >= len(count) and 2 * count.sum() >= since)

    def _module_calls(self) -> Iterator[_Borders]:
        """Calls of modules that run inside no other, where nothing trains."""
        chosen = self.attribution.paths.kind == Kind.MODULE
        return self._outermost(chosen, FoundBy.MODULE_CALL)

    def _compiled_calls(self) -> Iterator[_Borders]:
        """Calls of compiled graphs that run inside no other, where nothing trains."""
        return self._outermost(compiled_graphs(self.attribution.paths), FoundBy.COMPILED_CALL)

    def _outermost(self, chosen: Column, found_by: FoundBy) -> Iterator[_Borders]:
        """Ranges of the chosen paths (bool per path) that lie in no other of them."""
        tree, ranges = self.attribution.tree, self.attribution.trace.ranges
        if self._trains():
            return
        mine = (ranges.process == self.process) & ~tree.folded & (tree.path >= 0)
        rows = np.flatnonzero(mine & np.append(chosen, False)[tree.path])
        paths = self.attribution.paths
        nearest = np.append(paths.nearest(chosen), NO_ROW)
        rows = rows[nearest[paths.parent[tree.path[rows]]] < 0]
        yield from self._anchored(rows, found_by)

    def _trains(self) -> bool:
        """Whether ranges of the process speak of a backward pass or an optimizer."""
        ranges, tree = self.attribution.trace.ranges, self.attribution.tree
        paths = self.attribution.paths
        used = np.unique(tree.path[(ranges.process == self.process) & (tree.path >= 0)])
        names = paths.names.take(pa.array(np.unique(paths.name[used])))
        return bool(pc.any(pc.match_substring_regex(names, TRAINS)).as_py())

    def _anchored(self, rows: Column, found_by: FoundBy) -> Iterator[_Borders]:
        """Borders at the ranges of one path and thread: that with most time, then the earliest."""
        tree, ranges = self.attribution.tree, self.attribution.trace.ranges
        if not len(rows):
            return
        key = ranges.thread[rows].astype(np.int64) << 32 | tree.path[rows]
        keys, first, code = np.unique(key, return_index=True, return_inverse=True)
        wall = sums(code, tree.end[rows] - ranges.start[rows], len(keys))
        count = np.bincount(code)
        best = np.lexsort((ranges.start[rows[first]], -wall))
        for one in best[count[best] >= FEWEST][:3].tolist():
            mine = rows[code == one]
            mine = mine[np.argsort(ranges.start[mine], kind="stable")]
            path = int(tree.path[mine[0]])
            yield _Borders(ranges.start[mine], tree.end[mine], path, found_by)

    def _graph_launches(self) -> Iterator[_Borders]:
        """Launches of the CUDA graph that takes most GPU time, on one thread."""
        trace = self.attribution.trace
        role = call_roles(trace)[self.call]
        launched = np.flatnonzero(role == CallRole.GRAPH_LAUNCH)
        if not len(launched):
            return
        ops = trace.ops
        whole = ops.kind[self.op[launched]] == OpKind.GRAPH
        graph = np.where(whole, ops.graph_node[self.op[launched]], 0)
        graph = np.where(whole, graph, ops.graph_node[self.op[launched]] >> 32)
        keys, code = np.unique(graph, return_inverse=True)
        spent = sums(code, self.attribution.duration[self.op[launched]], len(keys))
        for one in np.argsort(-spent)[:3].tolist():
            calls = np.unique(self.call[launched[code == one]])
            calls = calls[np.argsort(trace.calls.start[calls])]
            yield _Borders(
                trace.calls.start[calls], trace.calls.end[calls], NO_ROW, FoundBy.GRAPH_LAUNCH
            )

    def _read_backs(self) -> Iterator[_Borders]:
        """Ends of small copies to the host for which the thread waited, of one size and path."""
        trace, owner = self.attribution.trace, self.attribution.owner
        ops = trace.ops
        small = (ops.copy_kind[self.op] == _D2H) & (ops.bytes[self.op] <= _SMALL_BYTES)
        rows = np.flatnonzero(small)
        if not len(rows):
            return
        key = ops.bytes[self.op[rows]] << 32 | (owner[self.op[rows]].astype(np.int64) + 1)
        _, code, count = np.unique(key, return_inverse=True, return_counts=True)
        for one in np.argsort(-count, kind="stable")[:3].tolist():
            mine = rows[code == one]
            end = trace.calls.end[self.call[mine]]
            yield _Borders(end, end, NO_ROW, FoundBy.READ_BACK)

    def _kernel_periods(self) -> Iterator[_Borders]:
        """First calls of the periods after which nine tenths of the kernels are the same."""
        trace = self.attribution.trace
        threads, count = np.unique(self.thread, return_counts=True)
        rows = np.flatnonzero(self.thread == threads[np.argmax(count)])
        name = trace.ops.name[self.op[rows]]
        for first, period in _periods(name):
            borders = np.arange(first, len(rows), period)
            start = trace.calls.start[self.call[rows[borders]]]
            yield _Borders(start, start, NO_ROW, FoundBy.KERNEL_PERIOD)


def _periods(name: Column) -> Iterator[tuple[int, int]]:
    """(first row, length) of the shortest period of a sequence that repeats five times."""
    if len(name) < FEWEST * 2:
        return
    tail = name[len(name) // 3 :]  # a start-up at the beginning repeats nothing
    _, code, count = np.unique(tail, return_inverse=True, return_counts=True)
    lags: set[int] = set()
    for one in np.argsort(count)[np.sort(count) >= FEWEST][:8].tolist():
        between = np.diff(np.flatnonzero(code == one))
        lags.add(int(np.bincount(between).argmax()))
    for lag in sorted(lags):
        if not 1 < lag <= len(tail) // FEWEST:
            continue
        same = name[lag:] == name[:-lag]
        if np.mean(same[len(name) // 3 :]) < _EQUAL:
            continue
        apart = np.flatnonzero(~same[: len(name) // 3])
        yield (int(apart[-1]) + 1 if len(apart) else 0), lag
        return
