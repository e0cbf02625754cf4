"""Lines of the program: of every op, of every instant, and of samples.

The line of the user's code behind every GPU op, from the Python frames of a torch trace.

An op belongs to the frame open where it was called. An op of the backward pass belongs to the line
whose forward operator made its node (autograd's sequence number); without a number, to what the
initiating thread was running, which is the line that called ``backward``.

Which line of the user's code a thread was in: Python frames of a torch trace.

A frame has the function and its first line, not the line being run: ``train.py:50 (step)``.
The user's frame is the innermost one that belongs neither to torch or Triton, nor to a file that
Inductor generated, nor to Python itself.

Which line the host was running while the GPU waited for it: an estimate from Python samples.

``nsys --python-sampling`` stops a thread every millisecond or so and notes its Python stack, down
to the line being run. The samples that fall into idle time of a path share out the idle time of
that path: a line that was seen in a third of them has a third of it. What is shared out is exact
and adds up; how it is shared is as good as the number of samples, which stands beside each line.
Time of a path that no sample fell into has no line.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import counts, distinct
from nvprobe.attribution.backward import backward_nodes
from nvprobe.attribution.intervals import Instants, sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.attribution.nesting import Nesting, nest
from nvprobe.trace import NO_ROW, CallChains, Column, Table, Trace, column


@dataclass(frozen=True, slots=True)
class OpLines:
    """Lines of ops: ``line`` is a row of ``labels`` per op, ``NO_LINE`` where none is known."""

    line: Column
    labels: pa.StringArray

    def text(self, row: int) -> str | None:
        """One line's text."""
        return None if row == NO_LINE else str(self.labels[row].as_py())


def op_lines(attribution: Attribution) -> OpLines:
    """The user's line behind each op; none anywhere where the trace has no frames."""
    line = np.full(len(attribution.call), NO_LINE, np.int32)
    lines = code_lines(attribution.trace)
    calls = attribution.trace.calls
    if lines is None:
        return OpLines(line, pa.array([], pa.string()))
    op = np.flatnonzero(attribution.call >= 0)
    call = attribution.call[op]
    line[op] = lines.at(calls.thread[call], calls.start[call])
    _from_forward(attribution, lines, line)
    left = op[line[op] == NO_LINE]
    left = left[attribution.autograd[calls.thread[attribution.call[left]]]]
    call = attribution.call[left]
    main = attribution.open.initiator(calls.thread[call])
    line[left] = lines.at(main, calls.start[call])
    return OpLines(line, lines.labels)


def _from_forward(attribution: Attribution, lines: CodeLines, line: Column) -> None:
    """Backward ops take the line of the forward operator with their node's number, in place."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    nodes = backward_nodes(attribution)
    if not len(nodes.op):
        return
    forward = np.flatnonzero((tree.sequence >= 0) & ~attribution.autograd[ranges.thread])
    forward = forward[np.lexsort((ranges.start[forward], tree.sequence[forward]))]
    numbers = tree.sequence[forward]
    at = np.searchsorted(numbers, nodes.sequence, side="right") - 1
    known = at >= 0
    known[known] = numbers[at[known]] == nodes.sequence[known]
    made = forward[at[known]]  # the last operator that carries the number
    found = lines.at(ranges.thread[made], ranges.start[made])
    op = nodes.op[known]
    line[op] = np.where(found != NO_LINE, found, line[op])


NO_LINE = -1

_FRAME = r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$"
_BUILT_IN = r"^<built-in (?:method|function) (?P<name>\w+)"
_STANDARD = "|".join(sorted(sys.stdlib_module_names))
_OURS = "torch|triton|nvtx|nvprobe"
_NOT_THE_USERS = (
    rf"^<|(?:^|/)(?:site|dist)-packages/(?:{_OURS})/|^(?:{_OURS})/"
    r"|(?:^|/)torchinductor_[^/]+/|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{50,}\.py$"  # Inductor's own cache
    r"|\(as importlib\._bootstrap\)$"  # nvprobe's own (instrumentation/frames.py)
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


@dataclass(frozen=True, slots=True)
class LineSamples:
    """The samples whose stack has a line of the user's, in order of time."""

    thread: Column
    time: Column
    line: Column
    """int32 row of ``labels``: the innermost of the user's lines."""
    labels: pa.StringArray

    def tellers(self, attribution: Attribution) -> Column:
        """Whose samples show what each thread does (one more, -1, for no thread).

        Its own; a thread without any (autograd's run no Python) follows the initiating one.
        """
        threads = np.arange(len(attribution.autograd))
        sampled = np.zeros(len(threads), bool)
        sampled[self.thread] = True
        leader = np.where(attribution.autograd, attribution.open.initiator(threads), NO_ROW)
        return np.append(np.where(sampled, threads, leader), NO_ROW)

    def inside(
        self, attribution: Attribution, thread: Column, start: Column, end: Column
    ) -> Column:
        """int32 line of the last sample in each stretch of a thread, ``NO_LINE`` for none."""
        order = sorted_by(self.thread, self.time)
        lanes = Instants.of(self.thread, self.time, len(attribution.autograd))
        teller = self.tellers(attribution)[thread]
        out = np.full(len(thread), NO_LINE, np.int32)
        asked = np.flatnonzero(teller != NO_ROW)
        last = lanes.count_before(teller[asked], end[asked]) - 1
        hit = (last >= lanes.first[teller[asked]]) & (lanes.time[last] >= start[asked])
        out[asked[hit]] = self.line[order[last[hit]]]
        return out


@dataclass(frozen=True, slots=True)
class SampledTime(Table):
    """Time of groups (a path, a path and a cause) shared out among lines."""

    group: Column = column("i8")
    line: Column = column("i4")
    """Row of ``LineSamples.labels``, -1 for time that no sample fell into."""
    ns: Column = column("i8")
    samples: Column = column("i8")


def line_samples(trace: Trace) -> LineSamples | None:
    """The Python samples of a trace; ``None`` where none of them saw a line of the user's."""
    samples, stacks = trace.python_samples, trace.python_stacks
    if not len(samples) or not len(stacks):
        return None
    line_of_text, _, labels = frame_labels(trace, stacks.symbol)
    line = users_lines(stacks, line_of_text, int(samples.stack.max()) + 1)[samples.stack]
    known = np.flatnonzero(line != NO_LINE)
    if not len(known):
        return None
    known = known[np.argsort(samples.time[known], kind="stable")]
    return LineSamples(samples.thread[known], samples.time[known], line[known], labels)


def shared_out(ns: Column, group: Column, line: Column) -> SampledTime:
    """Share ``ns`` (one per group) out among the lines seen in each group, to the nanosecond.

    ``group`` and ``line`` have one entry a sample. Whole nanoseconds are shared by the running
    sum of samples, so the shares of a group add up to its time.
    """
    pairs, code = distinct(group.astype(np.int64) << 32 | line.astype(np.int64))
    seen = counts(code, len(pairs))
    order = np.argsort(pairs, kind="stable")
    pairs, seen = pairs[order], seen[order]
    of, which = pairs >> 32, pairs & 0xFFFFFFFF
    first = np.searchsorted(of, of)
    after = np.cumsum(seen) - (np.cumsum(seen) - seen)[first]
    total = counts(group, len(ns))[of]
    share = _part(ns[of], after, total) - _part(ns[of], after - seen, total)
    silent = np.setdiff1d(np.flatnonzero(ns), of)  # nobody looked
    return SampledTime(
        group=np.concatenate((of, silent)),
        line=np.concatenate((which, np.full(len(silent), NO_LINE))),
        ns=np.concatenate((share, ns[silent])),
        samples=np.concatenate((seen, np.zeros(len(silent), np.int64))),
    )


def _part(ns: Column, seen: Column, total: Column) -> Column:
    """``ns * seen // total`` without leaving int64 (``seen`` <= ``total``)."""
    whole, rest = np.divmod(ns, np.maximum(total, 1))
    return whole * seen + rest * seen // np.maximum(total, 1)


def added_up(*shared: SampledTime) -> tuple[tuple[Column, Column], Column, Column]:
    """((group, line), time of each table, samples) of every group and line of several tables.

    Samples are the most that any of the tables saw there: they are mostly the same ones.
    """
    key = np.concatenate([one.group << 32 | one.line.astype(np.int64) + 1 for one in shared])
    keys, code = distinct(key)
    total = np.zeros((len(shared), len(keys)), np.int64)
    seen = np.zeros(len(keys), np.int64)
    first = 0
    for which, one in enumerate(shared):
        place = code[first : first + len(one)]
        total[which, place] = one.ns
        seen[place] = np.maximum(seen[place], one.samples)
        first += len(one)
    return (keys >> 32, (keys & 0xFFFFFFFF) - 1), total, seen
