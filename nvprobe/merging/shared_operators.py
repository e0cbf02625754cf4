"""Operators that both sources recorded: ``emit_nvtx`` in the profile, ``cpu_op`` in the trace.

Each of them would count twice. The profile's stay: they lie on its clock, around its calls. What
only the trace knows of them (shapes, types, arguments) goes over where both ran as often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.attribution.labels import Labels, labels
from nvprobe.trace import NO_ROW, Column, Operators, Ranges, RangeSource, Trace


@dataclass(frozen=True, slots=True)
class SharedOperators:
    """Which ranges of a torch trace the profile has too."""

    doubled: Column
    """bool per range of the torch trace."""
    partner: Column
    """int64 row of the profile's ranges for each of torch's, -1: the same call of it."""
    _numbers: dict[str, Column]
    """Per range of the profile, the numbers that its label has."""

    def numbered(self, table: Operators, partner: Column) -> Operators:
        """The table with the profile's own numbers, where ``partner`` is a row of its ranges."""
        own = partner >= 0
        return table.with_columns(
            **{
                column: np.where(own, numbers[partner], getattr(table, column))
                for column, numbers in self._numbers.items()
            }
        )


def shared_operators(profile: Trace, torch: Trace, threads: Column) -> SharedOperators:
    """Find the operators that both have; ``threads`` maps torch's threads to the profile's, -1."""
    ours, theirs = profile.ranges, torch.ranges
    nothing = SharedOperators(
        np.zeros(len(theirs), bool), np.full(len(theirs), NO_ROW, np.int64), {}
    )
    if not len(ours):
        return nothing
    found = labels(profile.strings.cast(pa.string()))
    labeled = np.append((found.sequence >= 0) | (found.operator_id >= 0), False)
    if not labeled[ours.name].any():
        return nothing
    own, other = _codes(found, labeled, ours, torch)
    recorded = np.isin(theirs.source, (RangeSource.OPERATOR, RangeSource.ANNOTATION))
    code = np.where(recorded, other[theirs.name], NO_ROW)
    partner = np.full(len(theirs), NO_ROW, np.int64)
    mine, yours = _in_order(own[ours.name], ours, code, theirs, threads)
    partner[yours] = mine
    numbers = {"sequence": found.sequence, "external": found.operator_id}
    by_range = {column: np.append(values, -1)[ours.name] for column, values in numbers.items()}
    return SharedOperators(code >= 0, partner, by_range)


def _codes(found: Labels, labeled: Column, ours: Ranges, torch: Trace) -> tuple[Column, Column]:
    """Per string of each source, the last row for none: a code of its name if both have it."""
    used = np.unique(ours.name[labeled[ours.name]])
    names = found.names.take(pa.array(used)).dictionary_encode()
    own = np.full(len(labeled), NO_ROW, np.int64)
    own[used] = names.indices.to_numpy(zero_copy_only=False)
    known = {text: row for row, text in enumerate(names.dictionary.to_pylist())}
    other = [known.get(text, NO_ROW) for text in torch.strings.to_pylist()]
    return own, np.array([*other, NO_ROW], np.int64)


def _in_order(
    own: Column, ours: Ranges, other: Column, theirs: Ranges, threads: Column
) -> tuple[Column, Column]:
    """Rows of both, k-th with k-th of a name on a thread, where both have as many."""
    size = int(max(own.max(initial=0), other.max(initial=0))) + 1
    thread = threads[theirs.thread]
    sides = []
    for code, on, ranges in ((own, ours.thread, ours), (other, thread, theirs)):
        rows = np.flatnonzero((code >= 0) & (on >= 0))
        key = on[rows].astype(np.int64) * size + code[rows]
        order = np.lexsort((ranges.start[rows], key))
        sides.append((rows[order], key[order]))
    (mine, key), (yours, their_key) = sides
    keys, counts = np.unique(key, return_counts=True)
    their_keys, their_counts = np.unique(their_key, return_counts=True)
    both, at, their_at = np.intersect1d(keys, their_keys, return_indices=True)
    same = both[counts[at] == their_counts[their_at]]
    return mine[np.isin(key, same)], yours[np.isin(their_key, same)]
