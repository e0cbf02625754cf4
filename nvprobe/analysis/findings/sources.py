"""Where a finding is: its path, and the lines of the program that cause it.

Lines of the program for findings, from the best that the capture has.

In this order: the rule's own (a synchronization's mark, a graph break's line); calls that are the
cause, as the sidecar's places name them; Python back-traces of the launches (nsys), the very lines;
Python frames of a torch trace, which name a function; the marks of its copies that the host waited
for; the place at which the innermost range of the finding's path begins, or of those of its ops. A
line never comes without its role.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from nvprobe.analysis.code_places import FROM, FUNCTION, LINE, CodePlaces, Line, running_line
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.grouping import push_up, sums
from nvprobe.analysis.libraries import library_of
from nvprobe.analysis.verdict import short_path
from nvprobe.analysis.waiting.code_lines import CodeLines, call_lines, code_lines
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import NO_ROW, Calls, Column, OpKind

_PATH_SHARE = 0.6
"""A path is the place if this much of the time lies in it."""
_LOWER = (Kind.OPERATOR, Kind.LIBRARY, Kind.COLLECTIVE)
"""What torch and its libraries call their own parts."""


def program_paths(paths: PathTable) -> Column:
    """Per path: itself or its nearest ancestor that a person wrote, -1 for none.

    A person knows ``step/forward``, not ``…/aten::linear/aten::addmm``; what a collective opens
    inside itself is the library's too.
    """
    lower = np.isin(paths.kind, _LOWER)
    inside = paths.nearest(paths.kind == Kind.COLLECTIVE) >= 0
    return paths.nearest(~lower & ~inside)


def common_path(paths: PathTable, ns: Column) -> int:
    """The deepest program path with most of ``ns`` (one entry per path, a last one for none)."""
    total = int(ns.sum())
    if not total or not len(paths.parent):
        return NO_ROW
    inclusive = push_up(paths, ns[: len(paths.parent)])
    program = program_paths(paths) == np.arange(len(paths.parent))
    large = np.flatnonzero((inclusive >= _PATH_SHARE * total) & program)
    if not len(large):
        return NO_ROW
    return int(large[np.lexsort((inclusive[large], paths.depth[large]))[-1]])


def main_operator(paths: PathTable, ns: Column) -> str | None:
    """The outermost operator (``aten::randn``) with most of ``ns``, where there are operators."""
    inclusive = push_up(paths, ns[: len(paths.parent)])
    large = np.flatnonzero((inclusive >= _PATH_SHARE * ns.sum()) & (paths.kind == Kind.OPERATOR))
    if not len(large) or not ns.any():
        return None
    outermost = large[np.argmin(paths.depth[large])]
    return str(paths.names[int(paths.name[outermost])])


def named(paths: PathTable, path: int, otherwise: str = "the program") -> str:
    """A path's text for a title, shortened where it is long."""
    return otherwise if path < 0 else short_path(paths.text(path))


def times(count: float) -> str:
    """``once``, ``2 times``, ``1,204 times``."""
    return "once" if round(count) == 1 else f"{count:,.0f} times"


_RIGHT_AFTER_NS = 20_000
"""A wait for a copy begins this soon after its call."""
_SHARE = 0.2
"""A line is named if this much of the finding's GPU time was called for in it."""
_MOST = 3
_OF_ALL = ("launch_bound", "host_work")
"""Findings about all that a program launches or does: no line of its parts is theirs."""


def with_sources(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """Findings with their lines, the likeliest first, and what each line is."""
    lines = _Lines(evidence)
    return [lines.complete(one) for one in found]


class _Lines:
    """Looks lines up; what the capture has none of is asked for once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def complete(self, finding: Finding) -> Finding:
        """The finding with its sources and their roles."""
        framed = self.evidence.trace.frames.recorded
        known = tuple(running_line(source, framed) for source in finding.sources)
        if finding.roles:
            known = tuple(map(Line, finding.sources, finding.roles))
        called, function = self._functions(finding)
        lines = (
            known + called
            or self._back_traces(finding)
            or self._frames(finding)
            or self._marked(finding)
            or self._place(finding)
            or self._places_of_ops(finding)
        )
        unique: dict[str, str] = {}
        for source, role in self._with_callers(lines):
            unique.setdefault(source, role)
        facts = {**finding.evidence, "function": function} if called else finding.evidence
        return dataclasses.replace(
            finding, sources=tuple(unique), roles=tuple(unique.values()), evidence=facts
        )

    def _with_callers(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Each line, and after a library's line that waits the user's own that called it."""
        for line in lines:
            yield line
            if line.source in self._callers:
                yield Line(self._callers[line.source], FROM)

    @cached_property
    def _callers(self) -> dict[str, str]:
        """The user's line that calls a library's line most often, where that one waits."""
        out: dict[str, str] = {}
        for sync in sorted(self.evidence.trace.sidecar.syncs, key=lambda one: -one.count):
            user = next((line for line in sync.stack if library_of(line) is None), None)
            if user is not None and library_of(sync.source):
                out.setdefault(sync.source, user)
        return out

    @property
    def _places(self) -> CodePlaces | None:
        return self.evidence.waits.places

    @cached_property
    def _code_lines(self) -> CodeLines | None:
        return code_lines(self.evidence.trace)

    @property
    def _calls(self) -> Calls:
        return self.evidence.trace.calls

    def _functions(self, finding: Finding) -> tuple[tuple[Line, ...], str | None]:
        if self._places is None or not finding.functions:
            return (), None
        return self._places.functions(finding.functions, ("default", *finding.sources))

    def _place(self, finding: Finding) -> tuple[Line, ...]:
        return () if self._places is None else self._places.of(finding.path)

    def _back_traces(self, finding: Finding) -> tuple[Line, ...]:
        """The lines that launched its ops, by Python back-traces of the calls."""
        call, ns = self._about(finding)
        row, labels = call_lines(self.evidence.trace, call)
        return _longest(row, ns, labels, LINE)

    def _frames(self, finding: Finding) -> tuple[Line, ...]:
        """The functions that launched its ops, by the frames of a torch trace."""
        call, ns = self._about(finding)
        if self._code_lines is None or not len(call):
            return ()
        known = call >= 0
        row = np.full(len(call), -1, np.int64)
        row[known] = self._code_lines.at(
            self._calls.thread[call[known]], self._calls.start[call[known]]
        )
        return _longest(row, ns, self._code_lines.labels, FUNCTION)

    def _marked(self, finding: Finding) -> tuple[Line, ...]:
        """The marked lines of its copies: of the wait that each is, or that follows it at once."""
        syncs, ops = self.evidence.waits.syncs, finding.ops
        apart = finding.calls is not None or finding.id in _OF_ALL
        if apart or ops is None or not len(syncs.labels):
            return ()
        call = self.evidence.attribution.call[ops]
        if not np.all(self.evidence.ops.kind[ops] == OpKind.MEMCPY) or not np.any(call >= 0):
            return ()
        call = np.unique(call[call >= 0])
        waits, count = syncs.calls, len(call)
        thread = np.append(self._calls.thread[call], waits.thread)
        start = np.append(self._calls.start[call], waits.start)
        order = np.lexsort((np.arange(len(start)) >= count, start, thread))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        following = np.append(order, order[-1])[place[:count] + 1]
        near = (following >= count) & (thread[following] == thread[:count])
        near &= start[following] <= self._calls.end[call] + _RIGHT_AFTER_NS
        source = np.full(count, -1, np.int64)
        source[near] = syncs.sites.source[syncs.site[following[near] - count]]
        return _longest(source, np.ones(count, np.int64), syncs.labels, LINE)

    def _places_of_ops(self, finding: Finding) -> tuple[Line, ...]:
        """The lines at which most of its ops are called for, whose paths have no more in common.

        ``backward()`` runs what the forward pass made: its line is given where no other is known.
        """
        if self._places is None or finding.ops is None or finding.id in _OF_ALL:
            return ()
        attribution, paths = self.evidence.attribution, self.evidence.attribution.paths
        owner, ns = attribution.owner[finding.ops], attribution.duration[finding.ops]
        spent = sums(owner.astype(np.int64), ns, len(paths.parent))
        backward = paths.nearest(_backward(paths)) >= 0
        for rows in (np.flatnonzero((spent > 0) & ~backward), np.flatnonzero(spent)):
            known = [
                (one, int(spent[row])) for row in rows for one in self._places.of(int(row))[:1]
            ]
            if known:
                total: dict[Line, int] = {}
                for line, spent_ns in known:
                    total[line] = total.get(line, 0) + spent_ns
                most = sorted(total, key=lambda line: -total[line])[:_MOST]
                least = _SHARE * sum(total.values())
                return tuple(line for line in most if total[line] >= least)
        return ()

    def _about(self, finding: Finding) -> tuple[Column, Column]:
        """(row of the call, -1; ns) of each op or call that a finding is about."""
        if finding.calls is not None:
            spent = self._calls.end[finding.calls] - self._calls.start[finding.calls]
            return finding.calls, spent
        attribution = self.evidence.attribution
        ops = np.empty(0, np.int64) if finding.ops is None else finding.ops
        return attribution.call[ops], attribution.duration[ops]


def _backward(paths: PathTable) -> Column:
    """Bool per path: its last range is a backward pass."""
    names = np.array(paths.names.to_pylist(), object)[paths.name]
    return (paths.kind == Kind.PHASE) & (names == "backward")


def _longest(row: Column, ns: Column, labels: pa.StringArray, role: str) -> tuple[Line, ...]:
    """The labels with most of the time; ``row``: of the labels, -1."""
    spent = sums(row.astype(np.int64), ns, len(labels))
    largest = np.argsort(-spent, kind="stable")[:_MOST]
    least = max(_SHARE * int(ns.sum()), 1)
    return tuple(
        Line(str(labels[int(one)].as_py()), role) for one in largest if spent[one] >= least
    )


def sampled_lines(evidence: Evidence, inside: Column) -> tuple[str, ...]:
    """Lines that Python samples saw while the GPU waited for the host, the most idle time first.

    ``inside`` is a bool per path, with a last entry for none. Empty where nothing was sampled.
    """
    sampled = evidence.waits.sampled
    if sampled is None:
        return ()
    rows = sampled.time.take(inside[sampled.path][sampled.time.group])
    return tuple(one.source for one in _longest(rows.line, rows.ns, sampled.labels, LINE))
