"""From a Trace to the owner of every GPU op, with the method and a ledger that adds up.

``attribute(trace)`` is the entry; definitions stand in docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvprobe.attribution.ledger import Entry, Ledger, LedgerError, ledger
from nvprobe.attribution.model import Attribution, Kind, Method, PathTable, RangeTree
from nvprobe.attribution.owners import owners
from nvprobe.attribution.tree import range_tree
from nvprobe.trace import Column, Ops, Trace

__all__ = [
    "Attribution",
    "Entry",
    "Kind",
    "Ledger",
    "LedgerError",
    "Method",
    "PathTable",
    "RangeTree",
    "attribute",
    "ledger",
]


def attribute(
    trace: Trace, index_rules: Sequence[str] = (), step_rules: Sequence[str] = ()
) -> Attribution:
    """Attribute every GPU op of a trace.

    ``index_rules``: further rules that take a number off a range name, ``step_rules``: further
    names of steps (see ``names.clean_names``).
    """
    tree, look_up, names = range_tree(trace, index_rules, step_rules)
    call, owner, method = owners(trace, look_up)
    look_up.intern_all()
    valid = possible_times(trace.ops)
    return Attribution(
        trace=trace,
        paths=look_up.trie.freeze(names.names),
        open=look_up,
        tree=tree,
        names=names,
        call=call,
        owner=owner,
        method=method,
        valid=valid,
        duration=_durations(trace, valid),
    )


def possible_times(ops: Ops) -> Column:
    """Bool per op: it ends no sooner than it starts and neither time is 0."""
    return (ops.end >= ops.start) & (ops.start != 0) & (ops.end != 0)


def _durations(trace: Trace, valid: Column) -> Column:
    return np.where(valid, trace.ops.end - trace.ops.start, 0)
