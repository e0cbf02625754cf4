"""Two runs of one program: which kernel of one is which kernel of the other, without any clock.

Kernels are put into groups by step and by the part of their owner path that both runs know (names
that occur in both), and matched inside a group by name in the order of their calls. Names are the
short ones: the tools demangle template arguments differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pyarrow as pa

from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import NO_ROW, Column, OpKind, RangeSource

_EXACT_LIMIT = 4000
"""Longest group that is compared by longest common blocks; larger ones match by rank."""


@dataclass(frozen=True, slots=True)
class Match:
    """Kernels of two runs that are the same; rows of ``ops``, ascending in ``first``."""

    first: Column
    second: Column
    share: float
    """Matched kernels of all kernels of the first."""


def match_kernels(first: Attribution, second: Attribution) -> Match:
    """Match the kernels (and copies and sets) of two runs."""
    common = _common_names(first, second)
    ours, theirs = (_Launched.of(one, common) for one in (first, second))
    steps = _step_pairs(ours.step, theirs.step)
    names, kernels = _coded(ours.kernel, theirs.kernel)
    paths = _coded(ours.path, theirs.path)
    group_a, group_b = _coded_rows(
        np.stack([steps[0], paths[0]], axis=1), np.stack([steps[1], paths[1]], axis=1)
    )
    pairs = [
        _match_group(names[rows_a], kernels[rows_b], rows_a, rows_b)
        for rows_a, rows_b in _same_groups(group_a, group_b)
    ]
    a = np.concatenate([pair[0] for pair in pairs] or [np.empty(0, np.int64)])
    b = np.concatenate([pair[1] for pair in pairs] or [np.empty(0, np.int64)])
    order = np.argsort(a, kind="stable")
    total = max(len(first.call), 1)
    return Match(ours.op[a[order]], theirs.op[b[order]], len(a) / total)


@dataclass(frozen=True, slots=True)
class _Launched:
    """Ops with a call, in the order of their calls."""

    op: Column
    step: Column
    """int64 index of the step (its number, else its place), -1 outside of steps."""
    path: list[str]
    kernel: list[str]

    @classmethod
    def of(cls, attribution: Attribution, common: set[str]) -> _Launched:
        """Ops in the order of their calls, with paths and kernels that both sources name alike."""
        trace = attribution.trace
        ops = trace.ops
        calls = trace.calls
        op = np.flatnonzero((attribution.call >= 0) & (ops.kind != OpKind.GRAPH))
        order = np.lexsort((ops.start[op], calls.start[attribution.call[op]]))
        op = op[order]
        kept = _restricted_paths(attribution, common)
        names = trace.strings.take(pa.array(ops.short_name[op])).to_pylist()
        return cls(
            op=op,
            step=_steps(attribution, op),
            path=[kept[path] if path >= 0 else "" for path in attribution.owner[op].tolist()],
            kernel=list(map(str, names)),
        )


def _own_names(attribution: Attribution) -> set[str]:
    """Names of paths that the program itself wrote: no operators, no frames of torch."""
    ranges = attribution.trace.ranges
    written = np.isin(ranges.source, (RangeSource.NVTX, RangeSource.ANNOTATION))
    kinds = attribution.tree.kind
    written &= ~np.isin(kinds, (Kind.OPERATOR, Kind.LIBRARY, Kind.COLLECTIVE))
    paths = np.unique(attribution.tree.path[written])
    names = attribution.paths.name[paths[paths >= 0]]
    return set(map(str, attribution.names.names.take(pa.array(np.unique(names))).to_pylist()))


def _common_names(first: Attribution, second: Attribution) -> set[str]:
    return _own_names(first) & _own_names(second)


def _restricted_paths(attribution: Attribution, common: set[str]) -> list[str]:
    """Each path with only the common names left in it."""
    paths = attribution.paths
    names = paths.names.to_pylist()
    out: list[str] = []
    for parent, name in zip(paths.parent.tolist(), paths.name.tolist(), strict=True):
        above = out[parent] if parent >= 0 else ""
        out.append(f"{above}/{names[name]}" if names[name] in common else above)
    return out


def _steps(attribution: Attribution, op: Column) -> Column:
    """Index of the step around the call of each op, by the initiating thread; -1 outside."""
    trace, tree = attribution.trace, attribution.tree
    ranges, calls = trace.ranges, trace.calls
    out = np.full(len(op), NO_ROW, np.int64)
    main = attribution.initiating[ranges.process]
    rows = np.flatnonzero(_outermost_steps(attribution) & (ranges.thread == main))
    rows = rows[np.argsort(ranges.start[rows], kind="stable")]
    if not len(rows):
        return out
    time = calls.start[attribution.call[op]]
    at = np.searchsorted(ranges.start[rows], time, side="right") - 1
    inside = (at >= 0) & (time < tree.end[rows[at]])
    index = tree.index[rows]
    if (index < 0).any() or len(np.unique(index)) < len(index):
        index = np.arange(len(rows))
    out[inside] = index[at[inside]]
    return out


def _outermost_steps(attribution: Attribution) -> Column:
    """Bool per range: a step, or where none is marked as one, a range with a step-like name."""
    tree = attribution.tree
    steps = tree.kind == Kind.STEP
    if not steps.any():
        like = attribution.names.step_like[attribution.paths.name[np.maximum(tree.path, 0)]]
        steps = like & (tree.path >= 0) & (tree.index >= 0) & (tree.parent < 0)
    return steps & ~np.append(steps, False)[tree.parent]


def _step_pairs(first: Column, second: Column) -> tuple[Column, Column]:
    """The same code for the same step: by index where the runs share them, else by place."""
    ours, theirs = (np.unique(steps[steps >= 0]) for steps in (first, second))
    if len(np.intersect1d(ours, theirs)) >= min(len(ours), len(theirs)):
        return first, second
    return (
        np.where(first >= 0, np.searchsorted(ours, first), -1),
        np.where(second >= 0, np.searchsorted(theirs, second), -1),
    )


def _coded(first: list[str], second: list[str]) -> tuple[Column, Column]:
    """Texts of both as codes of one dictionary."""
    codes = pa.array([*first, *second], pa.string()).dictionary_encode().indices
    both = codes.to_numpy(zero_copy_only=False).astype(np.int64)
    return both[: len(first)], both[len(first) :]


def _coded_rows(first: Column, second: Column) -> tuple[Column, Column]:
    both = np.concatenate([first, second])
    _, codes = np.unique(both, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    return codes[: len(first)], codes[len(first) :]


def _same_groups(first: Column, second: Column) -> list[tuple[Column, Column]]:
    """Rows of each group that both have, in order."""
    order_a, order_b = np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
    out = []
    for group in np.intersect1d(first, second).tolist():
        low_a, high_a = np.searchsorted(first[order_a], [group, group + 1])
        low_b, high_b = np.searchsorted(second[order_b], [group, group + 1])
        out.append((order_a[low_a:high_a], order_b[low_b:high_b]))
    return out


def _match_group(
    names_a: Column, names_b: Column, rows_a: Column, rows_b: Column
) -> tuple[Column, Column]:
    if len(names_a) == len(names_b) and (names_a == names_b).all():
        return rows_a, rows_b
    if max(len(names_a), len(names_b)) > _EXACT_LIMIT:
        a, b = _by_rank(names_a, names_b)
        return rows_a[a], rows_b[b]
    blocks = SequenceMatcher(None, names_a.tolist(), names_b.tolist(), autojunk=False)
    spans = [np.arange(size) for _, _, size in blocks.get_matching_blocks()]
    starts = [(a, b) for a, b, _ in blocks.get_matching_blocks()]
    a = np.concatenate([span + at for span, (at, _) in zip(spans, starts, strict=True)])
    b = np.concatenate([span + at for span, (_, at) in zip(spans, starts, strict=True)])
    return rows_a[a], rows_b[b]


def _by_rank(names_a: Column, names_b: Column) -> tuple[Column, Column]:
    """The k-th kernel of a name with the k-th of that name."""
    size = int(max(names_a.max(), names_b.max())) + 1
    keys_a, keys_b = (_rank(names) * size + names for names in (names_a, names_b))
    _, a, b = np.intersect1d(keys_a, keys_b, return_indices=True)
    return a, b


def _rank(names: Column) -> Column:
    """How many of the same name come before each."""
    order = np.argsort(names, kind="stable")
    first = np.searchsorted(names[order], names[order])
    out = np.empty(len(names), np.int64)
    out[order] = np.arange(len(names)) - first
    return out
