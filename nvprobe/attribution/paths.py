"""A trie of owner paths, built in batches: the only place where paths come into being.

Attribution interns every path that is open at any time and then freezes the trie, so that path
rows mean the same to every analysis, in whatever order they run.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nvprobe import limits
from nvprobe.attribution.model import PathTable
from nvprobe.errors import InputError
from nvprobe.trace import Column

__all__ = ["NO_PATH", "PathTrie"]

NO_PATH = -1


class PathTrie:
    """Interns (parent path, name) pairs. Ids are dense; a parent's id is below its children's."""

    def __init__(self) -> None:
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
