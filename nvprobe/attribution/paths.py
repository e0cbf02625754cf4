"""Owner paths: the trie that holds them, and the path open on a thread at an instant.

Attribution interns every path that is open at any time (rules 1 and 2 of docs/attribution.md),
then freezes the trie, so that path rows mean the same to every analysis, whatever their order.

Ranges that a sidecar noted inside CUDA graph captures lie before the profiled window. They never
become ranges of the Trace: they only answer which path was open when a graph's node was created,
where the profile itself cannot.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe import limits
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.kinds import closure_parts, range_kinds
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.attribution.names import CleanNames
from nvprobe.attribution.nesting import Nesting, nest
from nvprobe.errors import InputError
from nvprobe.trace import NO_NAME, NO_ROW, Column, Ranges, RangeSource, Trace
from nvprobe.trace.sidecar import CaptureRanges

NO_PATH = -1


class PathTrie:
    """Interns (parent path, name) pairs. Ids are dense; a parent's id is below its children's.

    ``optimizers`` are the clean names of optimizers' steps, as a bool per name.
    """

    def __init__(self, optimizers: Column) -> None:
        self.optimizers = optimizers
        self.parent = np.empty(0, np.int32)
        self.name = np.empty(0, np.int32)
        self.depth = np.empty(0, np.int32)
        self.kind = np.empty(0, np.int8)
        self.domain = np.empty(0, np.int32)
        self._keys = np.empty(0, np.int64)  # sorted
        self._ids = np.empty(0, np.int32)  # id of each sorted key
        self._frozen = False

    def __len__(self) -> int:
        return len(self.parent)

    def freeze(self, names: pa.StringArray) -> PathTable:
        """The table of all paths. From here on they are only looked up; a new one raises."""
        self._frozen = True
        columns = self.parent, self.name, self.depth, self.kind, self.domain
        for column in columns:
            column.setflags(write=False)
        return PathTable(*columns, names)

    def intern(self, parent: Column, name: Column, kind: Column, domain: Column) -> Column:
        """Ids of the paths ``parent / name``; kind and domain count where a path is new."""
        if not len(parent):
            return np.empty(0, np.int32)
        key = (parent.astype(np.int64) + 1) << 32 | name.astype(np.int64)
        coded = pa.array(key).dictionary_encode()
        distinct = coded.dictionary.to_numpy(zero_copy_only=False)
        inverse = coded.indices.to_numpy(zero_copy_only=False)
        ids = self._find(distinct)
        new = np.flatnonzero(ids < 0)
        if len(new):
            if self._frozen:
                raise LookupError("a path that attribution did not intern")
            example = np.empty(len(distinct), np.int64)
            example[inverse[::-1]] = np.arange(len(key))[::-1]  # the first row of each key
            rows = example[new]
            ids[new] = self._append(parent[rows], name[rows], kind[rows], domain[rows])
        return ids[inverse].astype(np.int32)

    def compose(self, head: Column, tail: Column) -> Column:
        """Ids of ``head`` followed by the whole path ``tail``, pair by pair (-1: nothing)."""
        out = np.where(tail < 0, head, np.where(head < 0, tail, NO_PATH)).astype(np.int32)
        both = np.flatnonzero((head >= 0) & (tail >= 0))
        if not len(both):
            return out
        pairs = head[both].astype(np.int64) << 32 | tail[both].astype(np.int64)
        coded = pa.array(pairs).dictionary_encode()
        pair = coded.dictionary.to_numpy(zero_copy_only=False)
        joined = self._extend((pair >> 32).astype(np.int32), (pair & 0xFFFFFFFF).astype(np.int32))
        out[both] = joined[coded.indices.to_numpy(zero_copy_only=False)]
        return out

    def outside_optimizer(self, path: Column) -> Column:
        """Each path without the optimizers' steps that it ends in."""
        out = path.copy()
        inside = np.flatnonzero(out >= 0)
        while len(inside := inside[self.optimizers[self.name[out[inside]]]]):
            out[inside] = self.parent[out[inside]]
            inside = inside[out[inside] >= 0]
        return out

    def _extend(self, head: Column, tail: Column) -> Column:
        """``compose`` of distinct pairs: walk each tail from its root down, one level a turn."""
        depth = self.depth[tail]
        deepest = int(depth.max())
        node = np.full((deepest + 1, len(tail)), NO_PATH, np.int32)
        current = tail.copy()
        for level in range(deepest, -1, -1):
            here = depth >= level
            node[level, here] = current[here]
            current[here] = self.parent[current[here]]
        out = head.copy()
        for level in range(deepest + 1):
            at = np.flatnonzero(node[level] >= 0)
            step = node[level, at]
            out[at] = self.intern(out[at], self.name[step], self.kind[step], self.domain[step])
        return out

    def _find(self, key: Column) -> Column:
        ids = np.full(len(key), NO_PATH, np.int32)
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
            hit = self._keys[at] == key
            ids[hit] = self._ids[at[hit]]
        return ids

    def _append(self, parent: Column, name: Column, kind: Column, domain: Column) -> Column:
        ids = np.arange(len(self), len(self) + len(parent), dtype=np.int32)
        above = np.where(parent >= 0, self.depth[parent] if len(self) else 0, -1)
        self.parent = np.append(self.parent, parent.astype(np.int32))
        self.name = np.append(self.name, name.astype(np.int32))
        self.depth = np.append(self.depth, (above + 1).astype(np.int32))
        if self.depth.max(initial=0) > limits.nesting():
            raise InputError(
                f"ranges are nested more than {limits.nesting():,} deep; {limits.HOW_TO_RAISE}"
            )
        self.kind = np.append(self.kind, kind.astype(np.int8))
        self.domain = np.append(self.domain, domain.astype(np.int32))
        key = (parent.astype(np.int64) + 1) << 32 | name.astype(np.int64)
        keys, known = np.append(self._keys, key), np.append(self._ids, ids)
        order = np.argsort(keys, kind="stable")
        self._keys, self._ids = keys[order], known[order]
        return ids


_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What of a range goes into a path, per row of the range table."""

    name: Column
    """int32 clean name."""
    kind: Column
    domain: Column
    duplicate: Column
    """bool: folds into a parent of the same name: it has an ``op_id`` or is an automatic phase."""
    closure: Column
    """bool: directly inside an optimizer's step it is the work of the closure, beside the step."""

    def take(self, rows: Column) -> RangeFacts:
        """The facts of some ranges."""
        return RangeFacts(
            self.name[rows],
            self.kind[rows],
            self.domain[rows],
            self.duplicate[rows],
            self.closure[rows],
        )


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """Look-ups of open paths. After :meth:`intern_all` every path they can answer is known."""

    trie: PathTrie
    nesting: Nesting
    facts: RangeFacts
    """Per position of ``nesting``."""
    own: Column
    """int32 path on its own thread, per position of ``nesting``."""
    process: Column
    """int32 process of each thread."""
    initiating: Column
    """int32 initiating thread of each process, -1."""
    autograd: Column
    """bool per thread."""
    captured: OpenPaths | None = None
    """The same for ranges that a sidecar noted inside CUDA graph captures."""

    def on_thread(self, thread: Column, time: Column) -> Column:
        """``path(T, t)``: int32 path per instant, -1 where nothing is open on that thread.

        Millions of instants are looked up in batches, which bounds the arrays alive at once.
        """
        if len(time) <= _BATCH:
            return self._on_thread(thread, time)
        batches = (slice(at, at + _BATCH) for at in range(0, len(time), _BATCH))
        return np.concatenate([self._on_thread(thread[rows], time[rows]) for rows in batches])

    def _on_thread(self, thread: Column, time: Column) -> Column:
        out = np.full(len(time), NO_PATH, np.int32)
        asked = np.flatnonzero(thread >= 0)
        if len(asked) < len(time):
            thread, time = thread[asked], time[asked]
        last = self.nesting.last_started(thread, time)
        crossing = self.nesting.in_crossing(last, time)
        plain = slice(None) if not crossing.any() else np.flatnonzero(~crossing)
        at = self.nesting.innermost(last[plain], time[plain])
        found = at >= 0
        out[asked[plain][found]] = self.own[at[found]]
        hard = np.flatnonzero(crossing)
        if len(hard):
            query, position = self.nesting.open_chains(last[hard], time[hard])
            out[asked[hard]] = self.chain_paths(query, position, len(hard))
        return out

    def at(self, thread: Column, time: Column) -> Column:
        """Rules 1 and 2: an autograd thread's path follows what its initiating thread has open."""
        return self.with_initiator(thread, time, self.on_thread(thread, time))

    def with_initiator(self, thread: Column, time: Column, own: Column) -> Column:
        """Rule 2, given rule 1's answer: put the initiating thread's path before autograd's."""
        path = own.copy()
        known = np.flatnonzero(thread >= 0)
        backward = known[self.autograd[thread[known]]]
        if len(backward):
            head = self.on_thread(self.initiator(thread[backward]), time[backward])
            path[backward] = self.behind(head, path[backward])
        return path

    def behind(self, head: Column, own: Column) -> Column:
        """Autograd threads' own paths behind what their initiating thread has open.

        No optimizer's step has work for them; the closure that it was given has.
        """
        outside = self.trie.outside_optimizer(head)
        return self.trie.compose(np.where(outside < 0, head, outside), own)

    def intern_all(self) -> None:
        """Intern the path open on every thread at every instant.

        A range's own path is known already. What is open changes only where a range begins or ends:
        new paths are where ranges that crossed end, and where an autograd thread's initiating one
        has something else open than when the ranges that are open there began.
        """
        nesting = self.nesting
        thread = np.repeat(np.arange(len(nesting.first) - 1), np.diff(nesting.first))
        crossed = np.flatnonzero(nesting.crossing)
        self.on_thread(thread[crossed], nesting.end[crossed])
        for one in np.flatnonzero(self.autograd & (np.diff(nesting.first) > 0)).tolist():
            leader = int(self.initiating[self.process[one]])
            if leader >= 0:
                time = self._new_below(one, leader)
                self.at(np.full(len(time), one), time)

    def _new_below(self, thread: int, leader: int) -> Column:
        """Sorted instants at which an autograd thread's path may be new.

        The leader's changes while anything is open; and ends of ranges if the leader changed since
        the range around began, whose path is known as of then.
        """
        nesting = self.nesting
        mine = np.arange(*nesting.first[thread : thread + 2])
        theirs = slice(*nesting.first[leader : leader + 2])
        roots = np.flatnonzero(nesting.depth[mine] == 0)
        begin, until = nesting.start[mine[roots]], np.maximum.reduceat(nesting.end[mine], roots)
        changes = np.concatenate((nesting.start[theirs], nesting.end[theirs]))
        at = np.searchsorted(begin, changes, side="right") - 1
        changes = np.sort(changes[(at >= 0) & (changes < until[at])])
        inner = mine[nesting.parent[mine] >= 0]
        since, end = nesting.start[nesting.parent[inner]], nesting.end[inner]
        changed = np.searchsorted(changes, end, "right") > np.searchsorted(changes, since, "right")
        crossed = mine[nesting.crossing[mine]]
        return np.sort(np.concatenate((changes, end[changed], nesting.end[crossed])))

    def initiator(self, thread: Column) -> Column:
        """Initiating thread of each thread's process, -1."""
        return self.initiating[self.process[thread]]

    def opened_after(self, thread: Column, time: Column, since: Column) -> Column:
        """Path of the ranges open at ``time`` (rules 1, 2) that started after ``since``; -1."""
        path = self._opened_after(thread, time, since)
        known = np.flatnonzero(thread >= 0)
        backward = known[self.autograd[thread[known]]]
        if len(backward):
            head = self._opened_after(
                self.initiator(thread[backward]), time[backward], since[backward]
            )
            path[backward] = self.behind(head, path[backward])
        return path

    def _opened_after(self, thread: Column, time: Column, since: Column) -> Column:
        out = np.full(len(time), NO_PATH, np.int32)
        asked = np.flatnonzero(thread >= 0)
        last = self.nesting.last_started(thread[asked], time[asked])
        query, position = self.nesting.open_chains(last, time[asked])
        keep = self.nesting.start[position] > since[asked[query]]
        out[asked] = self.chain_paths(query[keep], position[keep], len(asked))
        return out

    def chain_paths(self, query: Column, position: Column, queries: int) -> Column:
        """Intern chains of open ranges (sorted by query, outermost first) as paths."""
        out = np.full(queries, NO_PATH, np.int32)
        facts = self.facts.take(position)
        heads = runs(query)
        level = np.arange(len(query)) - np.repeat(heads, np.diff(np.append(heads, len(query))))
        folds = np.zeros(len(query), bool)
        folds[1:] = facts.duplicate[1:] & (facts.name[1:] == facts.name[:-1]) & (level[1:] > 0)
        order = np.argsort(level, kind="stable")
        bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=-1)) + 2))
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            here = order[low:high]
            here = here[~folds[here]]
            of = query[here]
            above = np.where(facts.closure[here], self.trie.outside_optimizer(out[of]), out[of])
            out[of] = self.trie.intern(
                above, facts.name[here], facts.kind[here], facts.domain[here]
            )
        return out


def own_paths(trie: PathTrie, nesting: Nesting, facts: RangeFacts) -> tuple[Column, Column]:
    """Path of every nesting position outside crossings, and which positions fold (level by level).

    Returns (int32 path, bool folded); positions among crossings are left at ``NO_PATH``.
    """
    own = np.full(len(nesting.row), NO_PATH, np.int32)
    parent = nesting.parent
    child = parent != NO_ROW
    folded = np.zeros(len(own), bool)
    folded[child] = facts.duplicate[child] & (facts.name[child] == facts.name[parent[child]])
    plain = np.flatnonzero(~nesting.crossing)
    order = plain[np.argsort(nesting.depth[plain], kind="stable")]
    depth = nesting.depth[order]
    bounds = np.searchsorted(depth, np.arange(int(depth.max(initial=-1)) + 2))
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        here = order[low:high]
        above = np.where(parent[here] >= 0, own[parent[here]], NO_PATH)
        fold = folded[here]
        own[here[fold]] = above[fold]
        above = np.where(facts.closure[here], trie.outside_optimizer(above), above)
        new = here[~fold]
        own[new] = trie.intern(above[~fold], facts.name[new], facts.kind[new], facts.domain[new])
    return own, folded


def closure_facts(names: pa.StringArray, code: Column, kind: Column) -> Column:
    """Bool per range: work of a closure where an optimizer's step is directly around it."""
    return closure_parts(names)[code] | (kind == Kind.MODULE)


def captured_ranges(trace: Trace) -> CaptureRanges:
    """The ranges of all captures that could be brought onto the trace's clock."""
    captures = trace.sidecar.captures
    placed = (captures.end > captures.start) & (captures.start != -1)
    return captures if placed.all() else captures.take(placed)


def with_captures(
    trace: Trace, look_up: OpenPaths, captures: CaptureRanges, text: Column, names: CleanNames
) -> OpenPaths:
    """A look-up that also knows the paths open inside captures; ``text`` is each one's name."""
    if not len(captures):
        return look_up
    code = names.code[text]
    none = np.full(len(captures), NO_NAME)
    ranges = Ranges(
        process=captures.process,
        thread=captures.thread,
        start=captures.start,
        end=captures.end,
        name=captures.name,
        domain=none,
        category=none,
        source=np.full(len(captures), RangeSource.NVTX),
    )
    numbered = names.operator_id[text] >= 0
    kind = range_kinds(trace, ranges, code, names.names, numbered)
    kind[np.isin(captures.category, _rows_of(trace, captures.category, "module"))] = Kind.MODULE
    nesting = nest(captures.thread, captures.start, captures.end, len(trace.threads))
    closure = closure_facts(names.names, code, kind)
    facts = RangeFacts(code, kind, ranges.domain, numbered, closure).take(nesting.row)
    own, _ = own_paths(look_up.trie, nesting, facts)
    captured = dataclasses.replace(look_up, nesting=nesting, facts=facts, own=own)
    return dataclasses.replace(look_up, captured=captured)


def _rows_of(trace: Trace, column: Column, text: str) -> list[int]:
    """The rows among a column's strings that say ``text``."""
    used = np.unique(column[column >= 0])
    return [int(row) for row, one in zip(used, trace.texts(used), strict=True) if one == text]
