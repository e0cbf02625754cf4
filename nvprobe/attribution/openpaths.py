"""The owner path open on a thread at an instant (rules 1 and 2 of docs/attribution.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.intervals import runs
from nvprobe.attribution.nesting import Nesting
from nvprobe.attribution.paths import NO_PATH, PathTrie
from nvprobe.trace import NO_ROW, Column

_BATCH = 1 << 18

__all__ = ["OpenPaths", "RangeFacts", "own_paths"]


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What of a range goes into a path, per row of the range table."""

    name: Column
    """int32 clean name."""
    kind: Column
    domain: Column
    twin: Column
    """bool: folds into a parent of the same name: it has an ``op_id`` or is an automatic phase."""

    def take(self, rows: Column) -> RangeFacts:
        """The facts of some ranges."""
        return RangeFacts(self.name[rows], self.kind[rows], self.domain[rows], self.twin[rows])


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
        backward = np.flatnonzero((thread >= 0) & self.autograd[thread])
        if len(backward):
            head = self.on_thread(self.initiator(thread[backward]), time[backward])
            path[backward] = self.trie.compose(head, path[backward])
        return path

    def intern_all(self) -> None:
        """Intern the path open on every thread at every instant.

        A range's own path is known already. What is open changes only where a range begins or ends:
        new paths are where ranges that crossed end, and on an autograd thread where one of its
        ranges ends or one of its initiating thread's begins or ends.
        """
        nesting = self.nesting
        thread = np.repeat(np.arange(len(nesting.first) - 1), np.diff(nesting.first))
        crossed = np.flatnonzero(nesting.crossing)
        self.on_thread(thread[crossed], nesting.end[crossed])
        for one in np.flatnonzero(self.autograd & (np.diff(nesting.first) > 0)).tolist():
            time = self._changes(one)
            own = self.on_thread(np.full(len(time), one), time)
            known = np.flatnonzero(own >= 0)
            self.with_initiator(np.full(len(known), one), time[known], own[known])

    def _changes(self, thread: int) -> Column:
        """Sorted instants at which the path of an autograd thread may change to a new one."""
        nesting = self.nesting
        mine = slice(*nesting.first[thread : thread + 2])
        begin, end = int(nesting.start[mine.start]), int(nesting.end[mine].max())
        leader = int(self.initiating[self.process[thread]])
        theirs = slice(*nesting.first[leader : leader + 2]) if leader >= 0 else slice(0)
        time = np.concatenate((nesting.end[mine], nesting.start[theirs], nesting.end[theirs]))
        return np.unique(time[(time >= begin) & (time < end)])

    def initiator(self, thread: Column) -> Column:
        """Initiating thread of each thread's process, -1."""
        return self.initiating[self.process[thread]]

    def opened_after(self, thread: Column, time: Column, since: Column) -> Column:
        """Path of the ranges open at ``time`` (rules 1, 2) that started after ``since``; -1."""
        path = self._opened_after(thread, time, since)
        backward = np.flatnonzero((thread >= 0) & self.autograd[thread])
        if len(backward):
            head = self._opened_after(
                self.initiator(thread[backward]), time[backward], since[backward]
            )
            path[backward] = self.trie.compose(head, path[backward])
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
        folds[1:] = facts.twin[1:] & (facts.name[1:] == facts.name[:-1]) & (level[1:] > 0)
        order = np.argsort(level, kind="stable")
        bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=-1)) + 2))
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            here = order[low:high]
            here = here[~folds[here]]
            of = query[here]
            out[of] = self.trie.intern(
                out[of], facts.name[here], facts.kind[here], facts.domain[here]
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
    folded[child] = facts.twin[child] & (facts.name[child] == facts.name[parent[child]])
    plain = np.flatnonzero(~nesting.crossing)
    order = plain[np.argsort(nesting.depth[plain], kind="stable")]
    depth = nesting.depth[order]
    bounds = np.searchsorted(depth, np.arange(int(depth.max(initial=-1)) + 2))
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        here = order[low:high]
        above = np.where(parent[here] >= 0, own[parent[here]], NO_PATH)
        fold = folded[here]
        own[here[fold]] = above[fold]
        new = here[~fold]
        own[new] = trie.intern(above[~fold], facts.name[new], facts.kind[new], facts.domain[new])
    return own, folded
