"""Steps, their spread, and the spans between them.

Training steps: which ranges they are, and what belongs to each.

Definition (docs/attribution.md): on the initiating thread of a process the ranges that an inference
engine names as its iterations, else the ranges of kind step,
else its outermost ranges with a step-like name; a wait that found no batch is not a step, nor is a
part of one (``Optimizer.step``) or of a compilation. Ops belong to the step that was open on the
initiating thread when they were called for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.model import UNKNOWN, FoundBy, SpanRows, Steps, StepSpread
from nvprobe.analysis.timelines import launches_kernels, process_timeline
from nvprobe.analysis.units import Units, find_units
from nvprobe.attribution.engines import Batches, Role, StepPhase, parse
from nvprobe.attribution.intervals import Instants, firsts, union_length
from nvprobe.attribution.kinds import RangeRole, known_parts, range_roles
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.attribution.names import STEP_WORDS
from nvprobe.trace import NO_ROW, OPEN, Column, Trace


def steps(attribution: Attribution, lost_launches: Column) -> Steps:
    """One row per step, by process and time. ``lost_launches``: call rows without a GPU record."""
    held = attribution.unfiltered
    if held is not None and isinstance(held.steps, Steps):
        return held.steps
    ranges, tree = attribution.trace.ranges, attribution.tree
    rows, found_by = _step_ranges(attribution)
    lacking = np.ones(len(attribution.trace.processes), bool)
    lacking[ranges.process[rows]] = False
    named = {
        "process": ranges.process[rows],
        "range": rows,
        "path": tree.path[rows],
        "index": _numbers(tree.index[rows], ranges.process[rows]),
        "start": ranges.start[rows],
        "end": tree.end[rows],
        "found_by": found_by,
        **_batches(attribution, rows),
    }
    found = {name: np.concatenate((values, other))
             for (name, values), other in zip(named.items(),
                                              _unnamed(attribution, lacking, named).values(),
                                              strict=True)}  # fmt: skip
    if not len(found["start"]):
        return Steps.empty()
    order = np.lexsort((found["start"], found["process"]))
    found = {name: values[order] for name, values in found.items()}
    process, start, end = found["process"], found["start"], found["end"]
    _leave_out_teardown(attribution, process, start, end)
    own = _work(attribution, process, start, end)
    return Steps(
        **found,
        wall_ns=np.maximum(end - start, 0),
        ops=own[0],
        gpu_ns=own[1],
        gpu_busy_ns=own[2],
        missing_launches=_lost(attribution, lost_launches, process, start, end),
    )


def unnamed_steps(attribution: Attribution) -> Units:
    """The steps of processes in which no range marks any."""
    lacking = np.ones(len(attribution.trace.processes), bool)
    lacking[attribution.trace.ranges.process[_step_ranges(attribution)[0]]] = False
    return _units(attribution, lacking)


def _unnamed(
    attribution: Attribution, lacking: Column, columns: Mapping[str, Column]
) -> dict[str, Column]:
    """The same columns of the steps that no range marks, of the processes that lack others."""
    units = _units(attribution, lacking)
    known = units.columns()
    none = np.full(len(units), UNKNOWN)
    return {name: known.get(name, np.full(len(units), NO_ROW) if name == "range" else none)
            for name in columns}  # fmt: skip


def _units(attribution: Attribution, lacking: Column) -> Units:
    """Units of the whole capture; of a selection those that lie in its window, cut to it."""
    held = attribution.unfiltered
    if held is None:
        return find_units(attribution, lacking)
    if not isinstance(held.units, Units):
        return Units.empty()
    trace, units = attribution.trace, held.units
    inside = lacking[units.process] & (units.start < trace.end_ns) & (units.end > trace.start_ns)
    units = units.take(inside)
    return units.with_columns(
        start=np.maximum(units.start, trace.start_ns), end=np.minimum(units.end, trace.end_ns)
    )


def _leave_out_teardown(
    attribution: Attribution, process: Column, start: Column, end: Column
) -> None:
    """Cut, in place, the last step of a process that lasts on when nothing is recorded any more.

    A step ends where the next one begins, so the last one may last until the program's end. Where
    after its last call and range more than twice the longest other step follows, it is as long as
    a median step, or ends with that call or range.
    """
    calls, ranges = attribution.trace.calls, attribution.trace.ranges
    for number in np.unique(process).tolist():
        mine = np.flatnonzero(process == number)
        last = mine[-1]
        others = (end - start)[mine[:-1]]
        if len(others) < 2 or end[last] - start[last] <= 2 * others.max():
            continue
        used = [start[last]]
        for table, ends in ((calls, calls.end), (ranges, attribution.tree.end)):
            inside = (table.process == number) & (table.start > start[last])
            inside &= ends <= end[last]
            used.append(ends[inside].max(initial=start[last]))
        if end[last] - max(used) > 2 * others.max():
            end[last] = max(*used, start[last] + int(np.median(others)))


def _batches(attribution: Attribution, rows: Column) -> dict[str, Column]:
    """What the names of ranges say of phases, requests and tokens, by column of `Steps`."""
    source = _saying(attribution, rows)
    names, place = np.unique(attribution.trace.ranges.name[source], return_inverse=True)
    texts = pc.fill_null(pa.array(attribution.trace.texts(names), pa.string()), "")
    known = parse(texts, attribution.names.step_rules)
    plain = {"prefill": StepPhase.PREFILL, "decode": StepPhase.DECODE, "denoise": StepPhase.DENOISE}
    out = {}
    for spec in Batches.column_schemas():
        if spec.name == "iteration":
            continue
        values = np.full(len(names), 0 if spec.name == "phase" else UNKNOWN, spec.dtype)
        stated = known.batches.columns()[spec.name]
        values[known.row] = (
            stated if spec.name == "phase" else np.where(stated < 0, UNKNOWN, stated)
        )
        if spec.name == "phase":
            words = np.array([plain.get(text, StepPhase.UNKNOWN) for text in texts.to_pylist()])
            values = np.where((values == StepPhase.UNKNOWN) & (source != rows).any(), words, values)
        out[spec.name] = values[place]
    return out


def _saying(attribution: Attribution, rows: Column) -> Column:
    """The range that says what each step does: the first phase of inference in it, else itself."""
    tree, paths, names = attribution.tree, attribution.paths, attribution.names
    words = np.isin(names.names.to_numpy(zero_copy_only=False), ("prefill", "decode", "denoise"))
    says = np.append((names.role == Role.STEP) | words, False)
    name = np.where(tree.path >= 0, paths.name[np.maximum(tree.path, 0)], -1)
    step = np.full(len(tree.parent) + 1, NO_ROW, np.int64)
    step[rows] = np.arange(len(rows))
    inner = np.flatnonzero(says[name] & (tree.parent != NO_ROW))
    inner = inner[step[tree.parent[inner]] != NO_ROW]
    out = rows.copy()
    inner = inner[np.argsort(-attribution.trace.ranges.start[inner], kind="stable")]
    out[step[tree.parent[inner]]] = inner  # the last assignment stays: the first in time
    return out


def step_spread(table: Steps) -> StepSpread | None:
    """How much the host time of steps varies; ``None`` without steps."""
    table = table.shown
    if not len(table):
        return None
    wall = np.sort(table.wall_ns)
    return StepSpread(
        count=len(wall),
        shortest_ns=int(wall[0]),
        median_ns=int(wall[len(wall) // 2]),
        longest_ns=int(wall[-1]),
        slowest=int(table.index[np.argmax(table.wall_ns)]),
    )


def _step_ranges(attribution: Attribution) -> tuple[Column, Column]:
    """(rows of ``trace.ranges`` that are steps, how they were found), by process and start."""
    ranges, tree, names = attribution.trace.ranges, attribution.tree, attribution.names
    leading = attribution.initiating[ranges.process] == ranges.thread
    candidates = np.flatnonzero(leading & ~tree.folded)
    found = np.full(len(ranges), NO_ROW, np.int8)
    if (names.role == Role.STEP).any():
        known = names.role[attribution.paths.name[np.maximum(tree.path[candidates], 0)]]
        engine = candidates[(known == Role.STEP) & (tree.path[candidates] >= 0)]
        engine = engine[~_inside(attribution, engine, tree.kind == Kind.STEP)]
        found[engine] = FoundBy.ENGINE
        candidates = _of_others(attribution, candidates, engine)
    marked = candidates[tree.kind[candidates] == Kind.STEP]
    found[marked] = FoundBy.MARK
    candidates = _of_others(attribution, candidates, marked)
    found[_named_steps(attribution, candidates)] = FoundBy.NAME
    rows = np.flatnonzero(found != NO_ROW)
    rows = rows[~_inside(attribution, rows, found != NO_ROW)]
    rows = rows[np.lexsort((ranges.start[rows], ranges.process[rows]))]
    return rows, found[rows]


def _of_others(attribution: Attribution, candidates: Column, found: Column) -> Column:
    """Those of the candidates whose process has no step yet."""
    process = attribution.trace.ranges.process
    has = np.zeros(len(attribution.trace.processes), bool)
    has[process[found]] = True
    return candidates[~has[process[candidates]]]


def _named_steps(attribution: Attribution, rows: Column) -> Column:
    """Those of ``rows`` that are steps by their name."""
    names, tree = attribution.names, attribution.tree
    named = (names.step_like & ~known_parts(names.names)) | (names.role == Role.CALL)
    named &= ~_in_themselves(attribution)
    rows = rows[named[attribution.paths.name[tree.path[rows]]]]
    if not len(rows):
        return rows
    role = range_roles(names.names)[attribution.paths.name[np.maximum(tree.path, 0)]]
    compiling = (tree.path >= 0) & (role == RangeRole.COMPILATION)
    rows = rows[~_inside(attribution, rows, compiling)]
    inputs = np.flatnonzero(role[rows] == RangeRole.INPUT)
    rows = np.delete(rows, inputs[~launches_kernels(attribution, rows[inputs])])
    return rows[~_phases_of_a_loop(attribution, rows, role)]


def _in_themselves(attribution: Attribution) -> Column:
    """Bool per name: a mask with one of its ranges in another, which is a recursion."""
    names, paths = attribution.names, attribution.paths
    out = np.zeros(len(names.names), bool)
    path = np.flatnonzero(names.masked[paths.name])
    above = paths.parent[path]
    while len(path):
        path, above = path[above >= 0], above[above >= 0]
        out[paths.name[path[paths.name[above] == paths.name[path]]]] = True
        above = paths.parent[above]
    return out


def _phases_of_a_loop(attribution: Attribution, rows: Column, role: Column) -> Column:
    """Bool per row: ``run_batch`` of a loop of phases side by side, of which it is a lesser part.

    A number in the name, or a name that is nothing but a step word, marks a step. Waiting for data
    stands beside steps, too; so does what happens less than half as often. What happens once is no
    part of a loop. ``role`` per range.
    """
    tree, names, paths = attribution.tree, attribution.names, attribution.paths
    named = pc.is_in(pc.utf8_lower(names.names), pa.array(STEP_WORDS))
    sure = named.to_numpy(zero_copy_only=False) | (names.role == Role.CALL)
    word = sure[paths.name[tree.path[rows]]]
    doubtful = np.flatnonzero((tree.index[rows] < 0) & ~word)
    out = np.zeros(len(rows), bool)
    if not len(doubtful):
        return out
    thread = attribution.trace.ranges.thread
    wall = np.maximum(tree.end - attribution.trace.ranges.start, 0)
    known = np.flatnonzero((tree.path >= 0) & ~tree.folded)
    key = thread.astype(np.int64) * len(paths.parent) + tree.path
    keys, first, code, count = np.unique(key[known], True, True, True)
    spent, one = sums(code, wall[known], len(keys)), known[first]
    phase = ~names.step_like[paths.name[tree.path[one]]] & (role[one] != RangeRole.INPUT)
    for mine in np.searchsorted(keys, np.unique(key[rows[doubtful]])).tolist():
        beside = phase & (thread[one] == thread[one[mine]]) & (2 * count >= count[mine])
        beside &= paths.parent[tree.path[one]] == paths.parent[tree.path[one[mine]]]
        if count[mine] > 1 and spent[beside].sum() > spent[mine]:
            out[doubtful] |= key[rows[doubtful]] == keys[mine]
    return out


def _inside(attribution: Attribution, rows: Column, chosen: Column) -> Column:
    """Bool per row of ``rows``: one of the ``chosen`` ranges (bool per range) is above it."""
    parent = attribution.tree.parent
    inside = np.zeros(len(rows), bool)
    above = parent[rows]
    climbing = np.flatnonzero(above != NO_ROW)
    while len(climbing):
        inside[climbing] |= chosen[above[climbing]]
        above[climbing] = parent[above[climbing]]
        climbing = climbing[(above[climbing] != NO_ROW) & ~inside[climbing]]
    return inside


def _numbers(index: Column, process: Column) -> Column:
    """The number in each name, or the position among the process's steps."""
    first = np.searchsorted(process, process)
    return np.where(index >= 0, index, np.arange(len(process)) - first)


def _work(attribution: Attribution, process: Column, start: Column, end: Column) -> list[Column]:
    """(ops, gpu_ns, gpu_busy_ns) of the ops called for in each step."""
    ops, size = attribution.trace.ops, len(process)
    timeline = process_timeline(attribution)
    low, high = timeline.slices(process, start, end)
    step = np.repeat(np.arange(size), high - low)
    position = np.arange(len(step)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    op = timeline.op[low[step] + position]
    gpu = sums(step, attribution.duration[op], size)
    kept = attribution.valid[op]
    step, op = step[kept], op[kept]
    devices = int(ops.device.max(initial=-1)) + 2
    busy = union_length(
        step * devices + ops.device[op] + 1, ops.start[op], ops.end[op], size * devices
    )
    return [high - low, gpu, busy.reshape(size, devices).sum(axis=1)]


def _lost(
    attribution: Attribution, lost: Column, process: Column, start: Column, end: Column
) -> Column:
    """Launch calls without a GPU record by step."""
    calls = attribution.trace.calls
    out = np.zeros(len(process), np.int64)
    if not len(lost):
        return out
    for number in np.unique(process):
        mine = process == number
        time = np.sort(calls.start[lost[calls.process[lost] == number]])
        out[mine] = np.searchsorted(time, end[mine]) - np.searchsorted(time, start[mine])
    return out


def step_at(steps: Steps, process: Column, time: Column) -> Column:
    """Row of the step open at each instant, -1 for none; steps of one process do not overlap."""
    out = np.full(len(time), NO_ROW, np.int64)
    if not len(steps):
        return out
    lanes = Instants(firsts(steps.process, process), steps.start)
    last = lanes.count_before(process, time, "right") - 1
    inside = (last >= lanes.first[process]) & (time < steps.end[last])
    out[inside] = last[inside]
    return out


def step_or_next(steps: Steps, process: Column, time: Column) -> Column:
    """Row of the step of a process that is open at each instant or comes next, -1 for none."""
    out = np.full(len(time), NO_ROW, np.int64)
    if not len(steps):
        return out
    lanes = Instants(firsts(steps.process, process), steps.end)
    row = lanes.count_before(process, time, "right")
    coming = row < lanes.first[process + 1]
    out[coming] = row[coming]
    return out


OWN_WINDOW = "nvprobe.window"
"""The span that nvprobe opens its window with."""


def span_rows(trace: Trace) -> SpanRows:
    """Totals of the start/end ranges, the longest first; open ones last until the capture's end.

    Without nvprobe's own, which opens the capture window where there is no CUDA.
    """
    spans = trace.spans
    own = pc.equal(trace.strings, OWN_WINDOW).to_numpy(zero_copy_only=False)
    spans = spans.take(np.flatnonzero((spans.name < 0) | ~own[spans.name]))
    end = np.where(spans.end == OPEN, np.maximum(trace.end_ns, spans.start), spans.end)
    length = np.maximum(end - spans.start, 0)
    key, group = distinct((spans.domain.astype(np.int64) + 1) << 32 | (spans.name + 1))
    size = len(key)
    longest = np.zeros(size, np.int64)
    np.maximum.at(longest, group, length)
    wall = sums(group, length, size)
    table = SpanRows(
        name=(key & 0xFFFFFFFF) - 1,
        domain=(key >> 32) - 1,
        calls=np.bincount(group, minlength=size),
        wall_ns=wall,
        longest_ns=longest,
        unclosed=sums(group, (spans.end == OPEN).astype(np.int64), size),
    )
    return table.take(np.argsort(-wall, kind="stable"))
