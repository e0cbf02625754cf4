"""Each call of a compiled graph: found by nvprobe's ranges, else by the labels of torch itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.kinds import RangeRole, range_roles
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting, nest
from nvprobe.trace import NO_ROW, Column, Trace

_OWN = re.compile(r"^graph (?P<id>\S+) (?P<phase>fwd|bwd)$")
_FX = re.compile(r"^## Call CompiledFxGraph (?P<key>\S+) ##$")
_REGION = re.compile(r"^Torch-Compiled Region: (?P<id>\S+)$")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
_FORWARD = re.compile(r"^CompiledFunction$")
_BACKWARD = re.compile(r"^CompiledFunctionBackward$")
_RESUME = re.compile(
    r"^(?P<file>.+)\(\d+\): torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$"
)
_UNKNOWN = -1

Key = tuple[int, str, str]
"""(process row, compile id, phase)."""


@dataclass(frozen=True, slots=True)
class GraphCalls:
    """One row per call of a graph, by thread and start."""

    keys: list[Key]
    """Distinct graphs, in order of their first call."""
    row: Column
    """int64 row of ``trace.ranges``."""
    key: Column
    """int64 row of ``keys``."""
    length: Column
    """Host time of the graph's own code."""
    around: Column
    """Host time of what wraps it (region, autograd node) beyond that, but for other graphs, their
    look-ups and compilations inside; -1 where not labeled."""
    guards: Column
    """Host time of the look-up before it; -1 where not labeled."""
    nesting: Nesting
    parent: Column
    """int64 range around the call (around its region), -1."""
    begin: Column
    """Start of the call (of its region)."""
    finish: Column
    """End of the call (of its region)."""

    def __len__(self) -> int:
        return len(self.row)

    def at(self, thread: Column, time: Column) -> Column:
        """The innermost call open on each thread at each instant, -1."""
        position = self.nesting.innermost(self.nesting.last_started(thread, time), time)
        return np.where(position >= 0, self.nesting.row[position], NO_ROW)

    def next_of(self, calls: Column) -> Column:
        """The next call of another graph on the same thread and within the same range, -1.

        After a break that is inside the region of the graph that broke.
        """
        thread = np.searchsorted(self.nesting.first, _place(self.nesting, calls), side="right")
        after = calls + 1
        inside = after < len(self)
        after = np.where(inside, after, 0)
        other = np.searchsorted(self.nesting.first, _place(self.nesting, after), side="right")
        nested = self.begin[after] < self.finish[calls]
        same = inside & (thread == other) & (nested | (self.parent[after] == self.parent[calls]))
        return np.where(same & (self.key[after] != self.key[calls]), after, NO_ROW)

    def resume_line(self, trace: Trace, calls: Column) -> str | None:
        """``train.py:22 forward`` where the next graph runs in a frame that resumes there."""
        frames = trace.frames
        after = self.next_of(calls)
        if not (after >= 0).any():
            return None
        texts = trace.texts(np.unique(frames.name))
        named = {int(n): t for n, t in zip(np.unique(frames.name), texts, strict=True) if t}
        resumes = {name: m for name, text in named.items() if (m := _RESUME.match(text))}
        rows = np.flatnonzero(np.isin(frames.name, list(resumes)))
        follow = self.row[after[after >= 0][:1]]
        thread, time = trace.ranges.thread[follow], trace.ranges.start[follow]
        open_ = (frames.thread[rows] == thread) & (frames.start[rows] <= time)
        open_ &= frames.end[rows] > time
        if not open_.any():
            return None
        match = resumes[int(frames.name[rows[open_][-1]])]
        return f"{match['file'].rpartition('/')[2]}:{match['line']} {match['function']}"


def _place(nesting: Nesting, rows: Column) -> Column:
    place = np.zeros(len(nesting.row), np.int64)
    place[nesting.row] = np.arange(len(nesting.row))
    return place[rows]


def find_graph_calls(attribution: Attribution, inside: Column | None = None) -> GraphCalls:
    """All calls of compiled graphs (of those in ``inside``, bool per range)."""
    texts = _Texts(attribution)
    own = texts.rows(_OWN)
    keyed = _own_keys(attribution, texts, own) if len(own) else _torch_keys(attribution, texts)
    rows, keys, wrapper = keyed
    if inside is not None:
        kept = np.flatnonzero(inside[rows])
        rows, keys, wrapper = rows[kept], [keys[at] for at in kept.tolist()], wrapper[kept]
    return _table(attribution, texts, rows, keys, wrapper)


class _Texts:
    """Clean names of the ranges, looked up once a distinct name."""

    def __init__(self, attribution: Attribution) -> None:
        self.names = [text or "" for text in attribution.names.names.to_pylist()]
        self.code = np.full(len(attribution.tree.kind), NO_ROW, np.int64)
        nesting = attribution.open.nesting
        self.code[nesting.row] = attribution.open.facts.name

    def rows(self, *patterns: re.Pattern[str]) -> Column:
        """Rows of the ranges whose name matches one of the patterns."""
        codes = [n for n, text in enumerate(self.names) if any(p.match(text) for p in patterns)]
        return np.flatnonzero(np.isin(self.code, codes))

    def match(self, row: int, pattern: re.Pattern[str]) -> re.Match[str]:
        """The match of one range's name."""
        found = pattern.match(self.names[int(self.code[row])])
        assert found is not None
        return found


def _own_keys(
    attribution: Attribution, texts: _Texts, rows: Column
) -> tuple[Column, list[Key], Column]:
    process = attribution.trace.ranges.process
    keys = []
    for row in rows.tolist():
        found = texts.match(row, _OWN)
        keys.append((int(process[row]), found["id"], found["phase"]))
    return rows, keys, np.full(len(rows), NO_ROW, np.int64)


def _torch_keys(attribution: Attribution, texts: _Texts) -> tuple[Column, list[Key], Column]:
    """(rows, keys, wrappers) by torch's labels; a wrapper is the region or node around a call."""
    ranges = attribution.trace.ranges
    regions, nodes = texts.rows(_REGION), texts.rows(_BACKWARD)
    rows = texts.rows(_FX)
    if not len(rows):
        rows = np.sort(np.concatenate([regions, nodes]))
    region = _nearest(attribution, rows, regions)
    node = _nearest(attribution, rows, nodes)
    named = {row: texts.match(row, _REGION)["id"] for row in regions.tolist()}
    by_number = _forward_ids(attribution, texts, named, regions)
    keys: list[Key] = []
    for row, at_region, at_node in zip(rows.tolist(), region.tolist(), node.tolist(), strict=True):
        process, thread = int(ranges.process[row]), int(ranges.thread[row])
        backward = at_node >= 0 or bool(attribution.autograd[thread])
        identity = named.get(at_region)
        if identity is None and at_node >= 0:
            identity = by_number.get((process, int(attribution.tree.sequence[at_node])))
        if identity is None:
            found = _FX.match(texts.names[int(texts.code[row])])
            identity = f"key {found['key'][:8]}" if found else "?"
        keys.append((process, identity, "bwd" if backward else "fwd"))
    return rows, keys, np.where(node >= 0, node, region)


def _forward_ids(
    attribution: Attribution, texts: _Texts, named: dict[int, str], regions: Column
) -> dict[tuple[int, int], str]:
    """Compile id by (process, sequence number) of the forward's CompiledFunction."""
    forward = texts.rows(_FORWARD)
    around = _nearest(attribution, forward, regions)
    numbers = attribution.tree.sequence[forward].tolist()
    process = attribution.trace.ranges.process[forward].tolist()
    return {
        (p, n): named[r]
        for p, n, r in zip(process, numbers, around.tolist(), strict=True)
        if r >= 0 and n >= 0
    }


def _nearest(attribution: Attribution, rows: Column, targets: Column) -> Column:
    """The innermost of ``targets`` around each row (or the row itself), -1."""
    is_target = np.zeros(len(attribution.tree.parent) + 1, bool)
    is_target[targets] = True
    at = rows.copy()
    climbing = np.flatnonzero(~is_target[at])
    while len(climbing):
        at[climbing] = attribution.tree.parent[at[climbing]]
        climbing = climbing[(at[climbing] >= 0) & ~is_target[at[climbing]]]
    return at


def _table(
    attribution: Attribution, texts: _Texts, rows: Column, keys: list[Key], wrapper: Column
) -> GraphCalls:
    trace, end = attribution.trace, attribution.tree.end
    if not len(rows):
        empty = np.empty(0, np.int64)
        nothing = nest(empty, empty, empty, len(trace.threads))
        return GraphCalls([], empty, empty, empty, empty, empty, nothing, empty, empty, empty)
    start, thread = trace.ranges.start, trace.ranges.thread
    order = np.lexsort((start[rows], thread[rows]))
    rows, wrapper = rows[order], wrapper[order]
    first: dict[Key, int] = {}
    for at, old in enumerate(order.tolist()):
        first[keys[old]] = min(first.get(keys[old], 1 << 62), int(start[rows[at]]))
    distinct = sorted(first, key=lambda key: first[key])
    code = {key: at for at, key in enumerate(distinct)}
    length = end[rows] - start[rows]
    outside = np.where(wrapper >= 0, end[wrapper] - start[wrapper] - length, _UNKNOWN)
    outside -= _not_its_own(attribution, texts, wrapper)
    alone = (wrapper == rows) | (wrapper < 0)
    outer = np.where(wrapper >= 0, wrapper, rows)
    return GraphCalls(
        keys=distinct,
        row=rows,
        key=np.array([code[keys[at]] for at in order.tolist()], np.int64),
        length=length,
        around=np.where(alone, _UNKNOWN, outside),
        guards=_guards(attribution, texts, rows, wrapper),
        nesting=nest(thread[rows], start[rows], end[rows], len(trace.threads)),
        parent=attribution.tree.parent[outer],
        begin=start[outer],
        finish=end[outer],
    )


def _not_its_own(attribution: Attribution, texts: _Texts, wrapper: Column) -> Column:
    """Length of what belongs to other graphs inside each call's wrapper, 0 without one.

    A graph that resumes after a break runs, and is compiled, inside the region of the one before.
    """
    ranges, tree = attribution.trace.ranges, attribution.tree
    others = texts.rows(_REGION, _BACKWARD, _LOOKUP)
    others = np.union1d(others, compiling(attribution))
    above = tree.parent[others]
    inside = np.full(len(others), NO_ROW, np.int64)
    inside[above >= 0] = _nearest(attribution, above[above >= 0], others)
    spent = np.zeros(len(tree.parent), np.int64)
    length = tree.end[others] - ranges.start[others]
    np.add.at(spent, inside[inside >= 0], length[inside >= 0])
    return np.where(wrapper >= 0, spent[wrapper], 0)


def compiling(attribution: Attribution) -> Column:
    """Rows of the ranges that say that something is being compiled."""
    paths, tree = attribution.paths, attribution.tree
    compiles = range_roles(attribution.names.names) == RangeRole.COMPILATION
    return np.flatnonzero((tree.path >= 0) & compiles[paths.name[tree.path]])


def _guards(attribution: Attribution, texts: _Texts, rows: Column, wrapper: Column) -> Column:
    """Length of the last cache look-up that ended before each call's region began, on its thread.

    Only where no other call lies between them.
    """
    ranges, end = attribution.trace.ranges, attribution.tree.end
    out = np.full(len(rows), _UNKNOWN, np.int64)
    looks = texts.rows(_LOOKUP)
    begin = ranges.start[np.where(wrapper >= 0, wrapper, rows)]
    for thread in np.unique(ranges.thread[looks]).tolist():
        mine = np.flatnonzero(ranges.thread[rows] == thread)
        look = looks[ranges.thread[looks] == thread]
        look = look[np.argsort(ranges.start[look], kind="stable")]
        at = np.searchsorted(end[look], begin[mine], side="right") - 1
        before = np.append(-1, begin[mine][:-1]) if len(mine) else begin[mine]
        fits = (at >= 0) & (ranges.start[look[np.maximum(at, 0)]] >= before)
        found = look[at[fits]]
        out[mine[fits]] = end[found] - ranges.start[found]
    return out


def ops_of_calls(attribution: Attribution, found: GraphCalls) -> tuple[Column, Column]:
    """(op, graph call) of the ops called inside a graph."""
    calls = attribution.trace.calls
    op = np.flatnonzero(attribution.call >= 0)
    if not len(found):
        return op[:0], op[:0]
    call = attribution.call[op]
    at = found.at(calls.thread[call], calls.start[call])
    return op[at >= 0], at[at >= 0]
