"""Operators by name and input shapes: what ``key_averages`` gives, with GPU time and owner paths.

An operator is a ``cpu_op`` of torch.profiler or a range of ``emit_nvtx``. Its GPU work is what was
called while it was open on the calling thread: an op counts once for each (name, shapes) around
its call, so an operator that calls itself is not counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nvprobe.analysis.shapes import RangeShapes
from nvprobe.analysis.waiting.code_lines import NO_LINE, OpLines
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.attribution.nesting import row_type
from nvprobe.trace import NO_NAME, NO_ROW, Column, Table, column


@dataclass(frozen=True, slots=True)
class OperatorRows(Table):
    """One row a (name, shapes), most GPU time first, then most host time."""

    name: Column = column("i4")
    """Row of ``attribution.names.names``."""
    shapes: Column = column("i4")
    """Row of ``OperatorTable.shapes``, ``NO_NAME`` where shapes were not recorded."""
    calls: Column = column("i8")
    cpu_ns: Column = column("i8")
    """Host time inside, an operator inside itself not counted again."""
    self_cpu_ns: Column = column("i8")
    """Host time inside it and in no operator below it."""
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")
    """GPU time of everything called inside."""
    gpu_self_ns: Column = column("i8")
    """GPU time of what was called inside it and in no operator below it."""
    top_path: Column = column("i4")
    """The path in which it spends most GPU time (without any: most host time)."""


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """The operators of a trace and the texts of their shapes."""

    rows: OperatorRows
    names: pa.StringArray
    shapes: pa.StringArray
    """JSON text (``[[2048, 512], [512]]``)."""
    paths: list[str]
    """Texts of the rows' top paths."""
    sources: list[str | None]
    """The line of the user's code behind most of each row's time, where frames are known."""

    def records(self) -> list[dict[str, Any]]:
        """The table as JSON rows."""
        rows = self.rows
        names = self.names.take(pa.array(rows.name)).to_pylist()
        shapes = _texts(self.shapes, rows.shapes)
        numbers = ("calls", "cpu_ns", "self_cpu_ns", "ops", "gpu_ns", "gpu_self_ns")
        columns = [getattr(rows, number).tolist() for number in numbers]
        return [
            {
                "name": name,
                "shapes": shape,
                **dict(zip(numbers, values, strict=True)),
                "path": path,
                "source": source,
            }
            for name, shape, path, source, *values in zip(
                names, shapes, self.paths, self.sources, *columns, strict=True
            )
        ]


def operator_table(
    attribution: Attribution, lines: OpLines, shapes: RangeShapes, inside: Column | None = None
) -> OperatorTable | None:
    """All operators; None where the trace has none.

    ``inside`` (bool per range) leaves out the operators that a filter leaves out.
    """
    is_operator = _is_operator(attribution) & ~attribution.tree.folded
    chosen = np.flatnonzero(is_operator if inside is None else is_operator & inside)
    if not len(chosen):
        return None
    key, name, shape = _paired(_names_of(attribution)[chosen], shapes.code[chosen])
    columns, sources = _summed(attribution, lines, chosen, key, len(name))
    table = OperatorRows(name=name, shapes=shape, **columns)
    order = np.lexsort((-table.cpu_ns, -table.gpu_ns))
    table, sources = table.take(order), sources[order]
    paths = attribution.paths.texts()
    tops = [paths[path] if path >= 0 else "" for path in table.top_path.tolist()]
    texts = [lines.text(source) for source in sources.tolist()]
    return OperatorTable(table, attribution.names.names, shapes.texts, tops, texts)


def _summed(
    attribution: Attribution, lines: OpLines, chosen: Column, key: Column, keys: int
) -> tuple[dict[str, Column], Column]:
    """The quantities of each key, and its line."""
    start, end = attribution.trace.ranges.start[chosen], attribution.tree.end[chosen]
    length = end - start
    cpu_ns, self_cpu_ns = _host_times(_operator_above(attribution, chosen), start, end, key, keys)
    row, op, innermost = _chains(attribution, chosen)
    duration = attribution.duration[op]
    once = _first_of_pairs(op, key[row])
    gpu_of_range = _sums(row, duration, len(chosen))
    columns = {
        "calls": np.bincount(key, minlength=keys),
        "cpu_ns": cpu_ns,
        "self_cpu_ns": self_cpu_ns,
        "ops": np.bincount(key[row[once]], minlength=keys),
        "gpu_ns": _sums(key[row[once]], duration[once], keys),
        "gpu_self_ns": _sums(key[row[innermost]], duration[innermost], keys),
        "top_path": _top(key, attribution.tree.path[chosen], gpu_of_range, length, keys),
    }
    known = once & (lines.line[op] != NO_LINE)
    line, time = lines.line[op[known]], duration[known]
    return columns, _top(key[row[known]], line, time, time, keys)


def _host_times(
    above: Column, start: Column, end: Column, key: Column, keys: int
) -> tuple[Column, Column]:
    """(``cpu_ns``, ``self_cpu_ns``) of each key.

    Of an operator that ends after the one around it (damaged files), only what lies inside counts
    as that one's.
    """
    length = end - start
    outermost = ~_inside_itself(key, above)
    total = _sums(key[outermost], length[outermost], keys)
    inside = np.where(above >= 0, np.minimum(end, end[above]) - start, 0)
    return total, _sums(key, length - _sums(above, inside, len(length)), keys)


def _is_operator(attribution: Attribution) -> Column:
    """Bool per range: torch calls it an operator (compiled graphs and collectives are some too)."""
    kind = attribution.tree.kind
    named = np.isin(kind, (Kind.OPERATOR, Kind.COLLECTIVE)) & (attribution.tree.operator_id >= 0)
    named[attribution.trace.operators.range] = True
    return named | (kind == Kind.OPERATOR)


def _names_of(attribution: Attribution) -> Column:
    """Clean name of each range (of a folded duplicate too)."""
    names = np.full(len(attribution.tree.kind), NO_NAME, np.int32)
    nesting = attribution.open.nesting
    names[nesting.row] = attribution.open.facts.name
    missing = np.flatnonzero(names == NO_NAME)  # ranges without length: the end of their path
    names[missing] = attribution.paths.name[attribution.tree.path[missing]]
    return names


def _paired(first: Column, second: Column) -> tuple[Column, Column, Column]:
    """Distinct pairs of two int columns (the second from -1): code of each row, and their values.

    By hashing: sorting millions of rows takes several times their memory.
    """
    width = int(second.max(initial=0)) + 2
    coded = pa.array(first.astype(np.int64) * width + second + 1).dictionary_encode()
    distinct = coded.dictionary.to_numpy()
    return coded.indices.to_numpy(), distinct // width, distinct % width - 1


def _operator_above(attribution: Attribution, chosen: Column) -> Column:
    """Place in ``chosen`` of the nearest operator around each, -1."""
    place = _places(attribution, chosen)
    at = attribution.tree.parent[chosen]
    climbing = np.flatnonzero((at >= 0) & (place[at] < 0))
    while len(climbing):
        at[climbing] = attribution.tree.parent[at[climbing]]
        climbing = climbing[(at[climbing] >= 0) & (place[at[climbing]] < 0)]
    return np.asarray(place[at])


def _places(attribution: Attribution, chosen: Column) -> Column:
    """Place in ``chosen`` of each range, -1; one more, the last, for row -1."""
    ranges = len(attribution.tree.parent)
    place = np.full(ranges + 1, NO_ROW, row_type(ranges))
    place[chosen] = np.arange(len(chosen))
    return place


def _inside_itself(key: Column, above: Column) -> Column:
    """Bool: some operator around it has the same key."""
    out = np.zeros(len(key), bool)
    at = above.copy()
    climbing = np.flatnonzero(at >= 0)
    while len(climbing):
        same = key[at[climbing]] == key[climbing]
        out[climbing[same]] = True
        climbing = climbing[~same]
        at[climbing] = above[at[climbing]]
        climbing = climbing[at[climbing] >= 0]
    return out


def _chains(attribution: Attribution, chosen: Column) -> tuple[Column, Column, Column]:
    """Every (operator, op called inside it): place in ``chosen``, op, whether it is the innermost.

    Sorted by op, outermost operator first.
    """
    calls = attribution.trace.calls
    started = np.flatnonzero(attribution.call >= 0)
    used, of_op = np.unique(attribution.call[started], return_inverse=True)
    nesting = attribution.open.nesting
    time = calls.start[used]
    last = nesting.last_started(calls.thread[used], time)
    query, position = nesting.open_chains(last, time)
    row = _places(attribution, chosen)[nesting.row[position]]
    query, row = query[row >= 0], row[row >= 0]
    # Repeat each call's chain for each of its ops (a graph launch has many).
    begin = np.searchsorted(query, np.arange(len(used) + 1))
    lengths = np.diff(begin)[of_op]
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    op = np.repeat(started, lengths)
    innermost = offsets == np.repeat(lengths - 1, lengths)
    return row[np.repeat(begin[of_op], lengths) + offsets], op, innermost


def _first_of_pairs(op: Column, key: Column) -> Column:
    """Bool: the first occurrence of each (op, key)."""
    order = np.lexsort((np.arange(len(op)), key, op))
    out = np.ones(len(op), bool)
    again = (op[order][1:] == op[order][:-1]) & (key[order][1:] == key[order][:-1])
    out[order[1:][again]] = False
    return out


def _top(key: Column, value: Column, gpu: Column, host: Column, keys: int) -> Column:
    """Per key, the value with the largest sums of GPU time, then of host time; -1 for no rows."""
    group, of, values = _paired(key, value)
    sums = [_sums(group, times, len(of)) for times in (host, gpu)]
    order = np.lexsort((*sums, of))
    out = np.full(keys, NO_ROW, np.int32)
    out[of[order]] = values[order]  # the last one of a key, its largest, stays
    return out


def _sums(group: Column, values: Column, groups: int) -> Column:
    """int64 sums by group; members of group -1 count for none."""
    out = np.zeros(groups + 1, np.int64)  # the last one is for -1
    np.add.at(out, group, values)
    return out[:-1]


def _texts(texts: pa.StringArray, codes: Column) -> list[str | None]:
    return list(texts.take(pa.array(codes, mask=codes < 0)).to_pylist())
