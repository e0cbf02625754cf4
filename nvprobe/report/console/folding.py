"""Siblings that are alike (``h.0`` to ``h.11``, layers, experts) as one row ``h.*``.

Paths fold where at least three siblings differ only in a number that stands by itself, and are
built alike: the same kind, below them the same modules, at the leaves kernels of the same families.
What is below folded siblings is summed by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import Column

_LEAST = 3
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_BEFORE_A_NAME = re.compile(r"(?<![A-Za-z0-9])\d+(?=\.[^.])")
_FOLDED = (Kind.USER, Kind.MODULE, Kind.COLLECTIVE)
_INNER = (Kind.OPERATOR, Kind.LIBRARY)


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows of the path table, those that are alike under the first of them."""

    paths: PathTable
    first: Column
    """int64 row of each path's group: the first of those folded with it, else itself."""
    members: Column
    """Paths of each group, at its first row."""
    labels: dict[int, str] = field(default_factory=dict)
    """Names of groups that differ from their row's own."""

    def sums(self, values: Column) -> Column:
        """Sums of known values by group, at its first row."""
        return sums(self.first, np.where(values == UNKNOWN, 0, values), len(self.first))

    def parent(self, row: int) -> int:
        """The group above a row, -1 at a root."""
        above = int(self.paths.parent[row])
        return int(self.first[above]) if above >= 0 else -1

    def name(self, row: int) -> str:
        """The last name of a path: ``h.*``."""
        return self.labels.get(row) or str(self.paths.names[int(self.paths.name[row])])

    def text(self, row: int) -> str:
        r"""``step/forward/h.*/attn``; a slash inside a name is written ``\/``."""
        parts, row = [], int(self.first[row])
        while row >= 0:
            parts.append(self.name(row).replace("/", "\\/"))
            row = self.parent(row)
        return "/".join(reversed(parts))

    def counted_text(self, row: int) -> str:
        """The path with how many paths it stands for: ``step/forward/h.*/attn ×12``."""
        many = int(self.members[row])
        return self.text(row) + (f" ×{many}" if many > 1 else "")

    def folded(self, row: int) -> int:
        """How many siblings a row stands for; 1 where only what is above it is folded."""
        above = self.parent(row)
        return int(self.members[row]) // (int(self.members[above]) if above >= 0 else 1)


def fold_name(name: str) -> str:
    """A module's full name with numbers before other names off: ``h.*.mlp.0``."""
    return _BEFORE_A_NAME.sub("*", name)


def fold(analysis: Analysis, *, unfold: bool = False) -> Folds:
    """Find the paths that are alike."""
    paths = analysis.attribution.paths
    own = np.arange(len(paths.parent))
    names = paths.names.to_pylist()
    if unfold or not any(_NUMBER.search(name) for name in names):
        return Folds(paths, own, np.ones(len(own), np.int64))
    patterns = [_NUMBER.sub("*", name) for name in names]
    code = {pattern: number for number, pattern in enumerate(dict.fromkeys(patterns))}
    pattern = np.array([code[one] for one in patterns], np.int64)[paths.name]
    numbered = np.array([a != b for a, b in zip(names, patterns, strict=True)])[paths.name]
    built = _built(analysis, pattern)
    alike = _alike(paths, pattern, numbered & np.isin(paths.kind, _FOLDED), built)
    return _Folder(paths, names, patterns, np.where(alike, built, 0)).folds()


def _alike(paths: PathTable, pattern: Column, able: Column, built: Column) -> Column:
    """Bool per path: it folds with its siblings."""
    rows = np.flatnonzero(able)
    key = np.stack([paths.parent[rows], pattern[rows], paths.kind[rows], paths.domain[rows]])
    key = np.vstack([key, built[rows].view(np.int64)])
    _, group, count = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    out = np.zeros(len(able), bool)
    out[rows] = count[group.ravel()] >= _LEAST
    return out


def _built(analysis: Analysis, pattern: Column) -> Column:
    """uint64 per path: what is below it, of the program's own ranges, as a sum of hashes."""
    paths = analysis.attribution.paths
    inner = np.isin(paths.kind, _INNER)
    random = np.random.default_rng(1)
    of_pattern = random.integers(1, 2**63, int(pattern.max()) + 1, np.uint64)
    families = _families(analysis)
    of_family = random.integers(1, 2**63, int(families.max()) + 1, np.uint64)
    out = np.zeros(len(pattern), np.uint64)
    leaf = ~inner
    for rows in reversed(paths.levels()):
        leaf_rows = rows[leaf[rows]]
        out[leaf_rows] = of_family[families[leaf_rows]]
        own = rows[~inner[rows] & (paths.parent[rows] >= 0)]
        if not len(own):
            continue
        parent = paths.parent[own]
        leaf[parent] = False
        key = np.stack(
            [parent.astype(np.uint64), out[own] * np.uint64(3) + of_pattern[pattern[own]]]
        )
        distinct = np.unique(key, axis=1)
        np.add.at(out, distinct[0].astype(np.int64), distinct[1] * np.uint64(0x9E3779B97F4A7C15))
    return out


def _families(analysis: Analysis) -> Column:
    """A bit for each family of kernels that a path has, itself or in operators below it."""
    paths, attribution = analysis.attribution.paths, analysis.attribution
    out = np.zeros(len(paths.parent), np.int64)
    if analysis.traits is None or not len(analysis.kernels):
        return out
    strings = np.full(
        int(max(analysis.kernels.name.max(), attribution.trace.ops.name.max())) + 2, -1
    )
    strings[analysis.kernels.name] = analysis.traits.family
    family = strings[attribution.trace.ops.name]
    known = (family >= 0) & (attribution.owner >= 0)
    np.bitwise_or.at(out, attribution.owner[known], 1 << family[known].astype(np.int64))
    for rows in reversed(paths.levels()):
        inner = rows[np.isin(paths.kind[rows], _INNER) & (paths.parent[rows] >= 0)]
        np.bitwise_or.at(out, paths.parent[inner], out[inner])
    return out


class _Folder:
    """Groups from the roots down: what is alike, and what is below by its name."""

    def __init__(
        self, paths: PathTable, names: list[str], patterns: list[str], built: Column
    ) -> None:
        self.paths, self.names, self.patterns = paths, names, patterns
        self.built = built
        """Per path a hash of what is below it, 0 where it does not fold with its siblings."""
        self.first = np.arange(len(built))
        self.labels: dict[int, str] = {}
        self.numbers: dict[int, list[int]] = {}
        self.names_of: dict[int, set[str]] = {}
        self.groups: dict[tuple[int, str, int, int], dict[int, int]] = {}

    def folds(self) -> Folds:
        """Give each row its group."""
        inside = self.built != 0
        for rows in self.paths.levels():
            parent = self.paths.parent[rows]
            above = parent >= 0
            inside[rows[above]] |= inside[parent[above]]
            for row in rows[inside[rows]].tolist():
                self._place(row)
        members = np.bincount(self.first, minlength=len(self.first))
        self._number()
        labels = {row: label for row, label in self.labels.items() if len(self.names_of[row]) > 1}
        return Folds(self.paths, self.first, members, labels)

    def _place(self, row: int) -> None:
        parent = int(self.paths.parent[row])
        above = int(self.first[parent]) if parent >= 0 else -1
        label = self._label(row, parent, above)
        key = above, label, int(self.paths.kind[row]), int(self.paths.domain[row])
        first = self.groups.setdefault(key, {}).setdefault(int(self.built[row]), row)
        self.first[row] = first
        self.labels[first] = label
        self.names_of.setdefault(first, set()).add(self.names[int(self.paths.name[row])])
        if found := _NUMBER.findall(self.names[int(self.paths.name[row])]):
            self.numbers.setdefault(first, []).append(int(found[-1][:18]))

    def _label(self, row: int, parent: int, above: int) -> str:
        """The name without the numbers that vary: ``h.*.mlp.0`` below ``h.*.mlp``."""
        number = int(self.paths.name[row])
        name = self.names[number]
        outer = self.names[int(self.paths.name[parent])] if parent >= 0 else ""
        if not outer or not name.startswith(f"{outer}."):
            return self.patterns[number]
        rest = name[len(outer) :]
        return self.labels.get(above, outer) + (_NUMBER.sub("*", rest) if self.built[row] else rest)

    def _number(self) -> None:
        """Where siblings with one label are built in several ways: which of them each row is."""
        for same in self.groups.values():
            for first in same.values() if len(same) > 1 else ():
                if found := self.numbers.get(first):
                    low, high = min(found), max(found)
                    self.labels[first] += f" ({low}–{high})" if low < high else f" ({low})"
