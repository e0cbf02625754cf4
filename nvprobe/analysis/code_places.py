"""The lines of the program behind a path, from the places in the sidecar (docs/sidecar.md).

A place is where a range *begins*: the cause lies there or below it. So a line always comes with its
role, and a report says ``called at``, never ``this line``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import structs

from nvprobe.analysis.libraries import library_of
from nvprobe.attribution.kinds import CATEGORY_KINDS, OWN_DOMAIN
from nvprobe.attribution.model import Attribution, Kind, PathTable
from nvprobe.attribution.names import clean_names
from nvprobe.trace import NO_NAME
from nvprobe.trace.sidecar import Place

LINE = "line"
"""The very line: where a synchronization, a graph break or a launch happened."""
FUNCTION = "function"
"""The first line of the function in which it happened."""
FROM = "from"
"""Who called the line before it."""
MADE_APART = "made_apart"
"""What prepares batches in worker processes."""
_ORDER = ("made", "entered", "called", "defined", "loop", MADE_APART)
"""Roles of places; what prepares batches in this process comes before the loop that waits."""
_MOST = 3
_SELDOM = 8
"""A place this much less frequent than the most frequent of its role is not the loop's."""


class Line(NamedTuple):
    """A line and what it is to what it is named for."""

    source: str
    role: str


def running_line(label: str, framed: bool) -> Line:
    """What was running; ``framed``: lines with a function behind are frames of a torch trace."""
    return Line(label, FUNCTION if framed and label.endswith(")") else LINE)


@dataclass(frozen=True)
class CodePlaces:
    """Places of all processes together: ranks run one program."""

    paths: PathTable
    places: tuple[Place, ...]
    ours: frozenset[int]
    """Domains (rows of the trace's strings) whose ranges are nvprobe's own."""

    def of(self, path: int) -> tuple[Line, ...]:
        """The lines of the innermost range that has the user's own, else of one in a library."""
        of_library: tuple[Line, ...] = ()
        while path >= 0:
            lines = self.own(path)
            users = tuple(one for one in lines if library_of(one.source) is None)
            if users:
                return users
            of_library = of_library or lines
            path = int(self.paths.parent[path])
        return of_library

    def own(self, path: int) -> tuple[Line, ...]:
        """The lines at which the last range of a path begins, the likeliest first."""
        if int(self.paths.domain[path]) not in self.ours:
            return ()
        kind, name = Kind(int(self.paths.kind[path])), self._name(path)
        if int(self.paths.domain[path]) == NO_NAME:  # a torch trace knows no categories
            found = self._by_name.get(name, [])
        else:
            found = self._ranges.get((kind, name), [])
        roots = {one.detail for one in found} - {None}
        if len(roots) > 1:
            around = self._names_above(path)
            found = [one for one in found if one.detail in around] or found
        return tuple(map(_users_line, _likeliest(found)))

    def nearest(self, path: int) -> Line | None:
        """The line of the innermost range of a path whose line is known, or None.

        The user's own line comes before a library's. A range that is entered in several places
        has no line: which of them it was is not known.
        """
        climbed = []
        while path >= 0 and path not in self._nearest:
            climbed.append(path)
            path = int(self.paths.parent[path])
        line = self._nearest.get(path)
        for row in reversed(climbed):
            line = self._nearest[row] = _nearer(line, self._only(row))
        return line

    def _only(self, path: int) -> Line | None:
        """The one line at which the last range of a path begins; of a step, the program's loop."""
        lines = self.own(path) or self._loops.get(path, ())
        same = {line for line in lines if line.role == lines[0].role}
        return lines[0] if len(same) == 1 else None

    def functions(
        self, names: Sequence[str], details: Iterable[str] = ()
    ) -> tuple[tuple[Line, ...], str | None]:
        """The lines at which functions without a range are called again and again; which they are.

        Args:
            names: The functions.
            details: Which of their calls: those with one of these details, where there are any.

        """
        found = [one for name in names for one in self._functions.get(name, ()) if one.count > 1]
        wanted = set(details)
        found = [one for one in found if one.detail in wanted] or found
        lines, largest = [], sorted(found, key=lambda one: -one.count)[:_MOST]
        for one in largest:
            roles = ("called", *[FROM] * (len(one.stack) - 1))
            lines += [Line(*pair) for pair in zip(one.stack or (one.source,), roles, strict=True)]
        called = ", ".join(dict.fromkeys(one.name for one in largest))
        return tuple(dict.fromkeys(lines)), called or None

    def _name(self, path: int) -> str:
        return str(self.paths.names[int(self.paths.name[path])].as_py())

    def _names_above(self, path: int) -> set[str]:
        above = set()
        while (path := int(self.paths.parent[path])) >= 0:
            above.add(self._name(path))
        return above

    @cached_property
    def _nearest(self) -> dict[int, Line | None]:
        """What `nearest` found so far."""
        return {}

    @cached_property
    def _loops(self) -> dict[int, tuple[Line, ...]]:
        """By step: the lines of the program that iterate over the batches fetched right in it.

        What a library iterates over says nothing of the loop around it.
        """
        paths = self.paths
        out: dict[int, tuple[Line, ...]] = {}
        for row in np.flatnonzero((paths.kind == Kind.PHASE) & (paths.parent >= 0)).tolist():
            step = int(paths.parent[row])
            loops = [one for one in self.own(row) if one.role == "loop"]
            if Kind(int(paths.kind[step])) == Kind.STEP:
                own = [one for one in loops if library_of(one.source) is None]
                out[step] = (*out.get(step, ()), *own)
        return out

    @cached_property
    def _ranges(self) -> dict[tuple[Kind, str], list[Place]]:
        """Places by what a path knows of a range: kind, and the name without its number."""
        known = [one for one in self.places if one.category in CATEGORY_KINDS]
        clean = clean_names(pa.array([one.name for one in known], pa.string()))
        names = clean.names.take(pa.array(clean.code)).to_pylist()
        out: dict[tuple[Kind, str], list[Place]] = defaultdict(list)
        for one, name in zip(known, names, strict=True):
            out[CATEGORY_KINDS[one.category or ""], name].append(one)
        return {key: _summed(some) for key, some in out.items()}

    @cached_property
    def _by_name(self) -> dict[str, list[Place]]:
        """Those of all kinds together."""
        out: dict[str, list[Place]] = defaultdict(list)
        for (_, name), some in self._ranges.items():
            out[name] += some
        return out

    @cached_property
    def _functions(self) -> dict[str, list[Place]]:
        out: dict[str, list[Place]] = defaultdict(list)
        for one in self.places:
            if one.category is None:
                out[one.name].append(one)
        return {name: _summed(some) for name, some in out.items()}


def code_places(attribution: Attribution) -> CodePlaces | None:
    """The places of a trace; None where no sidecar has any."""
    trace = attribution.trace
    if not trace.sidecar.places:
        return None
    paths = attribution.paths
    ours = {d for d in set(paths.domain.tolist()) if trace.text(d) == OWN_DOMAIN}
    if any(source.kind == "torch-trace" for source in trace.sources):
        ours.add(NO_NAME)
    return CodePlaces(paths, trace.sidecar.places, frozenset(ours))


def _nearer(outer: Line | None, own: Line | None) -> Line | None:
    """The line of a range, or that of the ranges around it: the user's own where there is one."""
    if own is None:
        return outer
    if outer is not None and library_of(own.source) and not library_of(outer.source):
        return outer
    return own


def _users_line(place: Place) -> Line:
    """The place's line; where an installed package opens the range, the program's call of that."""
    return Line(place.stack[-1], "called") if place.stack else Line(place.source, place.role)


def _summed(places: Iterable[Place]) -> list[Place]:
    """One a line and role: counts of processes (and of indices in a name) added up."""
    out: dict[tuple[object, ...], Place] = {}
    for one in places:
        key = (one.source, one.role, one.stack, one.detail)
        known = out.get(key)
        out[key] = one if known is None else structs.replace(known, count=known.count + one.count)
    return list(out.values())


def _likeliest(places: Sequence[Place]) -> list[Place]:
    """By role, then by count; without what is seldom."""
    most: dict[str, int] = defaultdict(int)
    for one in places:
        most[one.role] = max(most[one.role], one.count)
    kept = [one for one in places if one.count * _SELDOM >= most[one.role]]
    order = {role: place for place, role in enumerate(_ORDER)}
    kept.sort(key=lambda one: (order.get(one.role, len(order)), -one.count))
    return kept[:_MOST]
