"""Which line of the user's code a thread was in: Python frames of a torch trace.

A frame tells the function and its first line, not the line being run: ``train.py:50 (step)``.
The user's frame is the innermost one that belongs neither to torch or Triton, nor to a file that
Inductor generated, nor to Python itself.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting, nest
from nvprobe.trace import CallChains, Column, Trace

__all__ = [
    "NO_LINE",
    "CodeLines",
    "call_lines",
    "code_lines",
    "frame_labels",
    "lines_behind",
    "users_lines",
]

NO_LINE = -1

_FRAME = r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$"
_BUILT_IN = r"^<built-in (?:method|function) (?P<name>\w+)"
_STANDARD = "|".join(sorted(sys.stdlib_module_names))
_OURS = "torch|triton|nvtx|nvprobe"
_NOT_THE_USERS = (
    rf"^<|(?:^|/)(?:site|dist)-packages/(?:{_OURS})/|^(?:{_OURS})/"
    r"|(?:^|/)torchinductor_[^/]+/|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{50,}\.py$"  # Inductor's own cache
    rf"|^(?:.*/python3\.\d+/)?(?:{_STANDARD})(?:/.*)?\.py$|^(?:{_STANDARD})/"
)


@dataclass(frozen=True, slots=True)
class CodeLines:
    """Look-up of the user's frame, and of the built-in function, open at an instant."""

    users: Nesting
    """The user's frames alone: few, where torch's own are by the hundred thousand."""
    line: Column
    """int32 row of ``labels`` per position of ``users``."""
    nesting: Nesting
    """All frames."""
    built_in: Column
    """int32 row of ``labels`` per position: the built-in function that it is; -1."""
    labels: pa.StringArray
    leader: Column
    """int32 thread whose frames count where a thread has none open: its initiating one, -1."""

    def at(self, thread: Column, time: Column) -> Column:
        """int32 row of ``labels`` of the user's frame, ``NO_LINE`` where none is open."""
        out = _open(self.users, self.line, thread, time)
        follows = np.flatnonzero((out == NO_LINE) & (thread >= 0))
        follows = follows[self.leader[thread[follows]] >= 0]
        if len(follows):
            leader = self.leader[thread[follows]]
            out[follows] = _open(self.users, self.line, leader, time[follows])
        return out

    def built_in_at(self, thread: Column, time: Column) -> Column:
        """int32 row of ``labels`` of the built-in function running, ``NO_LINE`` for none."""
        return _open(self.nesting, self.built_in, thread, time)


def _open(nesting: Nesting, label: Column, thread: Column, time: Column) -> Column:
    """Label of the innermost frame open at each instant, ``NO_LINE`` where none is."""
    at = nesting.innermost_open(nesting.last_started(thread, time), time)
    return np.where(at >= 0, label[np.maximum(at, 0)] if len(label) else NO_LINE, NO_LINE)


def code_lines(trace: Trace) -> CodeLines | None:
    """The Python frames of a trace, each thread for itself; ``None`` where it has none."""
    frames = trace.frames
    if not len(frames):
        return None
    threads = len(trace.threads)
    known = np.flatnonzero(frames.thread >= 0)
    line, built_in, labels = frame_labels(trace, frames.name)
    mine = known[line[frames.name[known]] != NO_LINE]
    nestings = [
        nest(frames.thread[rows], frames.start[rows], frames.end[rows], threads)
        for rows in (mine, known)
    ]
    return CodeLines(
        users=nestings[0],
        line=line[frames.name[mine][nestings[0].row]],
        nesting=nestings[1],
        built_in=built_in[frames.name[known][nestings[1].row]],
        labels=labels,
        leader=np.full(threads, -1, np.int32),
    )


def lines_behind(attribution: Attribution) -> CodeLines | None:
    """The same, with autograd threads following their initiating thread."""
    lines = code_lines(attribution.trace)
    if lines is None:
        return None
    leader = lines.leader.copy()
    backward = np.flatnonzero(attribution.autograd)
    leader[backward] = attribution.open.initiator(backward)
    return dataclasses.replace(lines, leader=leader)


def call_lines(trace: Trace, calls: Column) -> tuple[Column, pa.StringArray]:
    """(int32 row of the labels, ``NO_LINE``, per given row of the calls; labels): the user's line.

    From the Python back-traces of CUDA calls (``nsys --python-backtrace=cuda``): the innermost
    frame that is the user's, and the very line that it was running, ``train.py:31``.
    """
    out = np.full(len(calls), NO_LINE, np.int32)
    marks, stacks, table = trace.backtraces, trace.backtrace_stacks, trace.calls
    if not len(marks) or not len(calls):
        return out, pa.array([], pa.string())
    line, _, labels = frame_labels(trace, stacks.symbol)
    of_stack = users_lines(stacks, line, int(marks.stack.max()) + 1)
    times, place = np.unique(marks.time, return_inverse=True)
    keys = place.ravel() + marks.thread.astype(np.int64) * len(times)
    order = np.argsort(keys, kind="stable")
    known = np.flatnonzero(calls >= 0)
    start, thread = table.start[calls[known]], table.thread[calls[known]].astype(np.int64)
    at = np.minimum(np.searchsorted(times, start), len(times) - 1)
    wanted = at + thread * len(times)
    found = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
    hit = (keys[found] == wanted) & (times[at] == start)
    out[known[hit]] = of_stack[marks.stack[found[hit]]]
    return out, pc.replace_substring_regex(labels, r" \(.*\)$", "")


def users_lines(stacks: CallChains, line: Column, size: int) -> Column:
    """int32 per stack: the label of its innermost user's frame, ``NO_LINE``.

    ``line`` has a label per row of the trace's strings, as :func:`frame_labels` gives it.
    """
    of_row = line[stacks.symbol]
    users = np.flatnonzero(of_row != NO_LINE)
    last = int(stacks.chain.max(initial=-1)) + 1
    of_stack = np.full(max(last, size), NO_LINE, np.int32)
    # Rows are by chain and depth: what is written last of a chain is its innermost.
    of_stack[stacks.chain[users[::-1]]] = of_row[users[::-1]]
    return of_stack


def frame_labels(trace: Trace, names: Column) -> tuple[Column, Column, pa.StringArray]:
    """(label of the user's frame, label of the built-in) per row of the trace's strings.

    ``names`` are the names of frames: ``train.py(12): forward``.
    """
    used = np.zeros(len(trace.strings), bool)
    used[names[names >= 0]] = True
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
