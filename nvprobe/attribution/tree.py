"""The range tree of a trace: clean names, kinds, parents and paths of every range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.engines import Role
from nvprobe.attribution.intervals import union_length
from nvprobe.attribution.kinds import (
    autograd_names,
    automatic_phases,
    optimizer_steps,
    range_kinds,
)
from nvprobe.attribution.model import Kind, RangeTree
from nvprobe.attribution.names import CleanNames, clean_names
from nvprobe.attribution.nesting import Nesting, nest, row_type
from nvprobe.attribution.paths import (
    NO_PATH,
    OpenPaths,
    PathTrie,
    RangeFacts,
    captured_ranges,
    closure_facts,
    own_paths,
    with_captures,
)
from nvprobe.trace import NO_ROW, OPEN, Column, Ranges, Trace


def initiating_threads(trace: Trace, ranges: Ranges, end: Column, steps: Column) -> Column:
    """The initiating thread of each process: int32 thread row, -1 for a process without ranges.

    It is the thread with the steps of an inference engine (``steps``: bool per range), else the
    main thread (tid = pid) if that has ranges, else the thread with the largest union of ranges
    (ties: largest union, then lowest tid).
    """
    threads, processes = trace.threads, trace.processes
    out = np.full(len(processes), NO_ROW, np.int32)
    has_ranges = np.zeros(len(threads), bool)
    has_ranges[ranges.thread] = True
    candidates = np.flatnonzero(has_ranges)
    if not len(candidates):
        return out
    length = union_length(ranges.thread, ranges.start, end, len(threads))
    is_main = threads.tid == processes.pid[threads.process]
    has_steps = np.bincount(ranges.thread[steps], minlength=len(threads)) > 0
    order = np.lexsort(
        (
            -threads.tid[candidates],
            length[candidates],
            is_main[candidates],
            has_steps[candidates],
        )
    )
    best_last = candidates[order]  # the last assignment to a process stays
    out[threads.process[best_last]] = best_last
    return out


def autograd_threads(
    trace: Trace, ranges: Ranges, code: Column, names: pa.StringArray, initiating: Column
) -> Column:
    """Bool per thread: named ``pt_autograd_*`` or running ranges only autograd runs."""
    out = np.zeros(len(trace.threads), bool)
    for row, text in enumerate(trace.texts(trace.threads.name)):
        out[row] = text is not None and text.startswith("pt_autograd_")
    out[ranges.thread[autograd_names(names)[code]]] = True
    out[initiating[initiating >= 0]] = False
    return out


EXHAUSTED = "data exhausted"
"""Name of the wait that found no batch, as `nvprobe.instrumentation.steps` writes it."""


def range_tree(
    trace: Trace, index_rules: Sequence[str] = (), step_rules: Sequence[str] = ()
) -> tuple[RangeTree, OpenPaths, CleanNames]:
    """Names, tree and open-path look-up of ``trace.ranges``."""
    ranges = trace.ranges
    captures = captured_ranges(trace)
    text, capture_text, names = _names(trace, ranges, captures.name, index_rules, step_rules)
    code = names.code[text]
    sequence, operator_id = _torch_numbers(trace, names.sequence[text], names.operator_id[text])
    kind = range_kinds(trace, ranges, code, names.names, operator_id >= 0)
    kind[names.role[code] == Role.MODULE] = Kind.MODULE
    end = _ends(trace, ranges)
    nesting = nest(ranges.thread, ranges.start, end, len(trace.threads))
    initiating = initiating_threads(trace, ranges, end, names.role[code] == Role.STEP)
    duplicate = (names.operator_id[text] >= 0) | automatic_phases(trace, ranges, kind)
    _rename_vain_waits(nesting, ranges, names.names, code, kind, duplicate)
    closure = closure_facts(names.names, code, kind)
    facts = RangeFacts(code, kind, ranges.domain, duplicate, closure)
    trie = PathTrie(optimizer_steps(names.names))
    at_positions = facts.take(nesting.row)
    own, folded_at = own_paths(trie, nesting, at_positions)
    look_up = OpenPaths(
        trie=trie,
        nesting=nesting,
        facts=at_positions,
        own=own,
        process=trace.threads.process,
        initiating=initiating,
        autograd=autograd_threads(trace, ranges, code, names.names, initiating),
    )
    parent, folded = _parents(nesting, folded_at, len(ranges))
    _resolve_crossings(look_up, parent, folded)
    _place_instants(look_up, ranges, end, parent)
    tree = RangeTree(
        parent=parent,
        path=_owner_paths(look_up, ranges, facts, end),
        folded=folded,
        closure=_of_closures(trie, facts, parent),
        end=end,
        index=_indices(ranges, names.index[text]),
        kind=kind,
        sequence=sequence,
        operator_id=operator_id,
    )
    return tree, with_captures(trace, look_up, captures, capture_text, names), names


def _names(
    trace: Trace,
    ranges: Ranges,
    captured: Column,
    index_rules: Sequence[str],
    step_rules: Sequence[str],
) -> tuple[Column, Column, CleanNames]:
    """Each range's and captured range's row among the texts in use, and those texts cleaned."""
    used = np.zeros(len(trace.strings) + 1, bool)  # the last one stands for NO_NAME (-1)
    used[ranges.name] = used[captured] = True
    if 2 * int(used.sum()) > len(used):
        used[:-1] = True  # copying most of the texts costs more than cleaning the rest too
    row = np.cumsum(used) - 1
    texts = trace.strings
    if not used[:-1].all():
        texts = texts.take(pa.array(np.flatnonzero(used[:-1])))
    if used[-1]:
        texts = pa.concat_arrays([texts, pa.array(["(unnamed)"], texts.type)])
    cleaned = clean_names(texts.cast(pa.string()), index_rules, step_rules)
    return row[ranges.name], row[captured], cleaned


def _rename_vain_waits(
    nesting: Nesting,
    ranges: Ranges,
    names: pa.StringArray,
    code: Column,
    kind: Column,
    duplicate: Column,
) -> None:
    """Take the steps whose loader had no batch left out of the steps: they are not instances.

    Such a range is the innermost one around a range named `EXHAUSTED`; it takes that name, and the
    mark becomes one node with it.
    """
    step, exhausted = (pc.index(names, name).as_py() for name in ("step", EXHAUSTED))
    if min(step, exhausted) < 0:
        return
    marks = np.flatnonzero(code == exhausted)
    time = ranges.start[marks]
    last = nesting.last_started(ranges.thread[marks], time)
    query, position = nesting.open_chains(last, time)
    around = nesting.row[position] != marks[query]
    query, row = query[around], nesting.row[position[around]]
    innermost = row[np.append(query[1:] != query[:-1], True)[: len(query)]]
    innermost = innermost[code[innermost] == step]
    code[innermost], kind[innermost], duplicate[marks] = exhausted, Kind.PHASE, True


def _ends(trace: Trace, ranges: Ranges) -> Column:
    """Where each range ends; the very column of the trace where all of them were closed."""
    never_closed = ranges.end == OPEN
    if not never_closed.any():
        return ranges.end
    return np.where(never_closed, np.maximum(trace.end_ns, ranges.start), ranges.end)


def _torch_numbers(trace: Trace, sequence: Column, operator_id: Column) -> tuple[Column, Column]:
    """Sequence numbers and operator ids: from names, or from the operators table."""
    row = trace.operators.range
    sequence[row] = trace.operators.sequence
    operator_id[row] = trace.operators.external
    return sequence, operator_id


def _indices(ranges: Ranges, index: Column) -> Column:
    """The number in the name, else the payload of a range of nvprobe's."""
    if ranges.payload is None:
        return index
    return np.where((index < 0) & (ranges.payload >= 0), ranges.payload, index)


def _parents(nesting: Nesting, folded_at: Column, ranges: int) -> tuple[Column, Column]:
    """Parent rows and folded flags, from positions to rows of the range table."""
    parent = np.full(ranges, NO_ROW, row_type(ranges))
    folded = np.zeros(ranges, bool)
    child = nesting.parent >= 0
    parent[nesting.row[child]] = nesting.row[nesting.parent[child]]
    folded[nesting.row] = folded_at
    return parent, folded


def _of_closures(trie: PathTrie, facts: RangeFacts, parent: Column) -> Column:
    """Bool per range: directly inside an optimizer's step, and no work of the optimizer."""
    out = facts.closure & (parent != NO_ROW)
    out[out] = trie.optimizers[facts.name[parent[out]]]
    return out


def _resolve_crossings(look_up: OpenPaths, parent: Column, folded: Column) -> None:
    """Paths, parents and folding of the ranges among crossings, by listing what is open."""
    nesting = look_up.nesting
    hard = np.flatnonzero(nesting.crossing)
    if not len(hard):
        return
    query, position = nesting.open_chains(hard, nesting.start[hard])
    look_up.own[hard] = look_up.chain_paths(query, position, len(hard))
    inner = np.flatnonzero(np.append(query[1:] != query[:-1], True))  # each chain's last
    has_parent = (inner > 0) & (query[inner - 1] == query[inner])
    above = np.where(has_parent, position[inner - 1], NO_ROW)
    rows = nesting.row[hard]
    parent[rows] = np.where(has_parent, nesting.row[above], NO_ROW)
    facts = look_up.facts
    folded[rows] = has_parent & facts.duplicate[hard] & (facts.name[hard] == facts.name[above])


def _place_instants(look_up: OpenPaths, ranges: Ranges, end: Column, parent: Column) -> None:
    """Parents of the ranges without length: the innermost range open at their start."""
    rows = np.flatnonzero(end <= ranges.start)
    if not len(rows):
        return
    nesting, time = look_up.nesting, ranges.start[rows]
    last = nesting.last_started(ranges.thread[rows], time)
    query, position = nesting.open_chains(last, time)
    inner = np.append(query[1:] != query[:-1], True) if len(query) else np.empty(0, bool)
    parent[rows[query[inner]]] = nesting.row[position[inner]]


def _owner_paths(look_up: OpenPaths, ranges: Ranges, facts: RangeFacts, end: Column) -> Column:
    """Each range's own path, the initiating thread's first where its thread is autograd's."""
    trie = look_up.trie
    path = np.full(len(ranges), NO_PATH, np.int32)
    path[look_up.nesting.row] = look_up.own
    instants = np.flatnonzero(end <= ranges.start)
    above = look_up.on_thread(ranges.thread[instants], ranges.start[instants])
    above = np.where(facts.closure[instants], trie.outside_optimizer(above), above)
    path[instants] = trie.intern(
        above, facts.name[instants], facts.kind[instants], facts.domain[instants]
    )
    backward = np.flatnonzero(look_up.autograd[ranges.thread])
    head = look_up.on_thread(look_up.initiator(ranges.thread[backward]), ranges.start[backward])
    path[backward] = look_up.behind(head, path[backward])
    return path
