"""Which line of the user's code a thread was in: Python frames of a torch trace.

A frame tells the function and its first line, not the line being run: ``train.py:50 (step)``.
The user's frame is the innermost one that belongs neither to torch nor to Python itself.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribute.model import Attribution
from nvprobe.attribute.nesting import Nesting, nest
from nvprobe.trace import Column, Frames, Trace

__all__ = ["NO_LINE", "CodeLines", "code_lines", "lines_behind"]

NO_LINE = -1

_FRAME = r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$"
_BUILT_IN = r"^<built-in (?:method|function) (?P<name>\w+)"
_STANDARD = "|".join(sorted(sys.stdlib_module_names))
_NOT_THE_USERS = (
    rf"^<|(?:^|/)(?:site|dist)-packages/(?:torch|nvtx|nvprobe)/|^(?:torch|nvtx|nvprobe)/"
    rf"|^(?:.*/python3\.\d+/)?(?:{_STANDARD})(?:/.*)?\.py$|^(?:{_STANDARD})/"
)


@dataclass(frozen=True, slots=True)
class CodeLines:
    """Look-up of the user's frame, and of the built-in function, open at an instant."""

    nesting: Nesting
    line: Column
    """int32 row of ``labels`` per position: the innermost user's frame there; -1."""
    built_in: Column
    """int32 row of ``labels`` per position: the built-in function that it is; -1."""
    labels: pa.StringArray
    leader: Column
    """int32 thread whose frames count where a thread has none open: its initiating one, -1."""

    def at(self, thread: Column, time: Column) -> Column:
        """int32 row of ``labels`` of the user's frame, ``NO_LINE`` where none is open."""
        out = self._open(self.line, thread, time)
        follows = np.flatnonzero((out == NO_LINE) & (thread >= 0))
        follows = follows[self.leader[thread[follows]] >= 0]
        if len(follows):
            out[follows] = self._open(self.line, self.leader[thread[follows]], time[follows])
        return out

    def built_in_at(self, thread: Column, time: Column) -> Column:
        """int32 row of ``labels`` of the built-in function running, ``NO_LINE`` for none."""
        return self._open(self.built_in, thread, time)

    def _open(self, label: Column, thread: Column, time: Column) -> Column:
        out = np.full(len(time), NO_LINE, np.int32)
        last = self.nesting.last_started(thread, time)
        crossing = self.nesting.in_crossing(last, time)
        at = np.where(crossing, -1, last)
        at = self.nesting.innermost(at, time)
        out[at >= 0] = label[at[at >= 0]]
        hard = np.flatnonzero(crossing)
        if len(hard):
            query, position = self.nesting.open_chains(last[hard], time[hard])
            known = label[position] != NO_LINE
            out[hard[query[known]]] = label[position[known]]  # the innermost is written last
        return out


def code_lines(trace: Trace) -> CodeLines | None:
    """The Python frames of a trace, each thread for itself; ``None`` where it has none."""
    frames = trace.frames
    if frames is None or not len(frames):
        return None
    threads = len(trace.threads)
    known = np.flatnonzero(frames.thread >= 0)
    nesting = nest(frames.thread[known], frames.start[known], frames.end[known], threads)
    line, built_in, labels = _labels(trace, frames)
    name = frames.name[known][nesting.row]
    alone = np.full(threads, -1, np.int32)
    return CodeLines(nesting, _inherited(nesting, line[name]), built_in[name], labels, alone)


def lines_behind(attribution: Attribution) -> CodeLines | None:
    """The same, with autograd threads following their initiating thread."""
    lines = code_lines(attribution.trace)
    if lines is None:
        return None
    leader = lines.leader.copy()
    backward = np.flatnonzero(attribution.autograd)
    leader[backward] = attribution.open.initiator(backward)
    return dataclasses.replace(lines, leader=leader)


def _labels(trace: Trace, frames: Frames) -> tuple[Column, Column, pa.StringArray]:
    """(label of the user's frame, label of the built-in) per row of the trace's strings."""
    used = np.zeros(len(trace.strings), bool)
    used[frames.name[frames.name >= 0]] = True
    rows = np.flatnonzero(used)
    texts = trace.strings.take(pa.array(rows))
    parts = pc.extract_regex(texts, _FRAME)
    file, number, function = (pc.struct_field(parts, name) for name in ("file", "line", "function"))
    users = pc.and_(pc.is_valid(parts), pc.invert(pc.match_substring_regex(file, _NOT_THE_USERS)))
    where = pc.binary_join_element_wise(file, number, ":")
    within = pc.binary_join_element_wise("(", function, ")", "")
    named = pc.binary_join_element_wise(where, within, " ")
    built_in = pc.struct_field(pc.extract_regex(texts, _BUILT_IN), "name")
    none = pa.nulls(len(rows), pa.string())
    chosen = pa.concat_arrays([pc.if_else(users, named, none), built_in])
    coded = pc.dictionary_encode(chosen)
    codes = np.asarray(pc.fill_null(coded.indices, NO_LINE), np.int32)
    tables = np.full((2, len(trace.strings) + 1), NO_LINE, np.int32)
    tables[0, rows], tables[1, rows] = codes[: len(rows)], codes[len(rows) :]
    return tables[0], tables[1], coded.dictionary


def _inherited(nesting: Nesting, own: Column) -> Column:
    """Each frame's own label, else that of the nearest frame around it, from the outside in."""
    out = own.copy()
    depth = nesting.depth
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    for low, high in zip(bounds[1:-1], bounds[2:], strict=True):
        here = order[low:high]
        here = here[(out[here] == NO_LINE) & (nesting.parent[here] >= 0)]
        out[here] = out[nesting.parent[here]]
    return out
