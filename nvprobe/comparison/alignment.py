"""Which path of one run is which path of the other: by name, else by place and work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BORDER = re.compile(r"(?<!\\)/")
_CLOSE = 1.5
"""A path that was renamed has the calls and ops of the other, and GPU time within this factor."""


@dataclass(frozen=True, slots=True)
class PathWork:
    """What a path does in a step; enough to know it again under another name."""

    kind: str
    calls: float
    ops: float
    gpu_ns: float


@dataclass(frozen=True, slots=True)
class Alignment:
    """Paths of two sides. Those of the second are known by the names of the first."""

    names: Mapping[str, str]
    """Path of the first side by path of the second, also where both are called the same."""
    gone: Sequence[str]
    new: Sequence[str]

    @property
    def renamed(self) -> list[tuple[str, str]]:
        """(name before, name after) where only the last name differs, not what is above."""
        pairs = ((old, new) for new, old in self.names.items() if old != new)
        return [(old, new) for old, new in pairs if self.names.get(above(new)) == above(old)
                and old.removeprefix(above(old)) != new.removeprefix(above(new))]  # fmt: skip

    def reversed(self) -> Alignment:
        """The first side as the second, by its own names."""
        return Alignment({old: old for old in self.names.values()}, (), ())

    def common(self, path: str) -> str:
        """A path of the second side by its first name, or the nearest above that both have."""
        while path and path not in self.names:
            path = above(path)
        return self.names.get(path, "")


def above(path: str) -> str:
    """The path around a path; empty for the outermost."""
    parts = list(_BORDER.finditer(path))
    return path[: parts[-1].start()] if parts else ""


def align(before: Mapping[str, PathWork], after: Mapping[str, PathWork]) -> Alignment:
    """Match paths level by level: the same name below the same path, then the same work."""
    names: dict[str, str] = {"": ""}
    inside: tuple[dict[str, list[str]], dict[str, list[str]]] = (
        _children(before),
        _children(after),
    )
    queue = [""]
    for path in queue:
        old, new = inside[0][names[path]], inside[1][path]
        own = {below.removeprefix(path): below for below in new}
        pairs = [(below, own.pop(below.removeprefix(names[path]), None)) for below in old]
        same = {now: then for then, now in pairs if now is not None}
        left = [then for then, now in pairs if now is None]
        for now in own.values():
            match = next((then for then in left if _same_work(before[then], after[now])), None)
            if match is not None:
                left.remove(match)
                same[now] = match
        names.update(same)
        queue += same
    del names[""]
    found = set(names.values())
    return Alignment(
        names,
        [path for path in before if path not in found],
        [path for path in after if path not in names],
    )


def _children(paths: Mapping[str, PathWork]) -> dict[str, list[str]]:
    """Paths by the path around them, in order."""
    out: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        out[above(path)].append(path)
    return out


def _same_work(one: PathWork, other: PathWork) -> bool:
    """Whether two paths do the same, whatever they are called."""
    counts = one.kind == other.kind and one.calls == other.calls and one.ops == other.ops
    long, short = max(one.gpu_ns, other.gpu_ns), min(one.gpu_ns, other.gpu_ns)
    return counts and one.ops > 0 and long <= _CLOSE * short
