"""The second owner of every GPU op: a weighted set of modules and source lines.

Definition: docs/attribution.md, "Modules: the second owner". What is known best wins: the manifest
inside compiled graphs, a module range opened by the launching thread itself, the sequence number of
a backward node, a module range inherited from the initiating thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nvprobe.attribution.backward import backward_nodes, module_of_sequence
from nvprobe.attribution.compiled import UNKNOWN, GraphOps, graph_ops, innermost_modules, qualified
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.ledger import Entry
from nvprobe.attribution.model import Attribution, ModuleMethod, Modules, Phase
from nvprobe.trace import NO_PAYLOAD, NO_ROW, Column


def modules(attribution: Attribution) -> Modules:
    """Modules and lines of every op; more of them where the trace has a sidecar merged in."""
    ops = attribution.trace.ops
    pool = _Pool()
    method = np.full(len(ops), ModuleMethod.NO_MODULE, np.int8)
    module = np.full(len(ops), NO_ROW, np.int64)
    phase = np.full(len(ops), Phase.FORWARD, np.int8)
    _from_ranges(attribution, pool, method, module, phase)
    _from_numbers(attribution, pool, method, module, phase)
    inside = graph_ops(attribution)
    compiled = _from_manifest(attribution, inside, pool, method)
    plain = np.flatnonzero(module >= 0)
    plain = plain[~np.isin(plain, inside.op)]
    nowhere = np.full(len(plain), NO_ROW, np.int64)
    single = (plain, module[plain], nowhere, phase[plain], np.ones(len(plain)))
    return _table(attribution, pool, method, single, compiled)


class _Pool:
    """Distinct texts and their rows."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def row(self, text: str) -> int:
        """Row of a text, a new one where it is not there yet."""
        return self.texts.setdefault(text, len(self.texts))


def _from_ranges(
    attribution: Attribution, pool: _Pool, method: Column, module: Column, phase: Column
) -> None:
    """(a) the innermost module range of the owner path, in place."""
    paths = attribution.paths
    owned = np.flatnonzero(attribution.owner >= 0)
    name = innermost_modules(paths)[attribution.owner[owned]]
    owned, name = owned[name >= 0], name[name >= 0]
    used, which = np.unique(name, return_inverse=True)
    rows = [pool.row(str(paths.names[row].as_py())) for row in used.tolist()]
    module[owned] = np.asarray(rows, np.int64)[which]
    method[owned] = ModuleMethod.RANGE
    phase[_recomputed(attribution)] = Phase.RECOMPUTE


def _recomputed(attribution: Attribution) -> Column:
    """Rows of ops that an autograd thread launches inside a module range of its own."""
    calls = attribution.trace.calls
    op = np.flatnonzero(attribution.call >= 0)
    op = op[attribution.autograd[calls.thread[attribution.call[op]]]]
    call = attribution.call[op]
    path = attribution.open.on_thread(calls.thread[call], calls.start[call])
    op, path = op[path >= 0], path[path >= 0]
    return op[innermost_modules(attribution.paths)[path] >= 0]


def _from_numbers(
    attribution: Attribution,
    pool: _Pool,
    method: Column,
    module: Column,
    phase: Column,
) -> None:
    """(b) backward ops by their node's sequence number, in place."""
    ops = attribution.trace.ops
    nodes = backward_nodes(attribution)
    if not len(nodes.op):
        return
    backward = phase[nodes.op] != Phase.RECOMPUTE
    phase[nodes.op[backward]] = Phase.BACKWARD
    row, texts = module_of_sequence(attribution, ops.process[nodes.op], nodes.sequence)
    found = np.flatnonzero(backward & (row >= 0))
    code = np.asarray([pool.row(text) for text in texts], np.int64)
    module[nodes.op[found]] = code[row[found]]
    method[nodes.op[found]] = np.where(
        nodes.borrowed[found], ModuleMethod.PREVIOUS_NODE, ModuleMethod.SEQUENCE
    )


Rows = tuple[Column, Column, Column, Column, Column]
"""op, module, source, phase, weight; one row a share."""


def _from_manifest(
    attribution: Attribution,
    inside: GraphOps,
    pool: _Pool,
    method: Column,
) -> Rows:
    """(c) ops of compiled graphs: all shares of their kernels."""
    sizes = np.asarray([len(shares) for shares in inside.sets], np.int64)
    firsts = np.cumsum(sizes) - sizes
    flat = [share for shares in inside.sets for share in shares]
    around, names = _modules_around(attribution, inside)
    method[inside.op] = np.where(
        names[around] == UNKNOWN, ModuleMethod.INDISTINGUISHABLE, ModuleMethod.MANIFEST
    )
    count = sizes[inside.owners]
    entry = np.repeat(np.arange(len(inside.op)), count)
    step = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    share = firsts[inside.owners[entry]] + step
    module = _qualified_rows(attribution, flat, names, around[entry], share, pool)
    source = np.asarray([NO_ROW if one[1] is None else pool.row(one[1]) for one in flat], np.int64)
    phase = np.asarray([one[2] for one in flat], np.int8)
    weight = np.asarray([one[3] for one in flat], np.float64)
    return inside.op[entry], module, source[share], phase[share], weight[share]


def _qualified_rows(
    attribution: Attribution,
    flat: Sequence[tuple[str, str | None, Phase, float]],
    names: Column,
    around: Column,
    share: Column,
    pool: _Pool,
) -> Column:
    """Row of each share's full module name: worked out once per (module around, share)."""
    roots = set(attribution.trace.sidecar.roots)
    pairs, which = np.unique(np.stack((around, share)), axis=1, return_inverse=True)
    rows = [
        pool.row(qualified(flat[one][0], names[place], is_root=_is_root(names[place], roots)))
        for place, one in pairs.T.tolist()
    ]
    return np.asarray(rows, np.int64)[which.reshape(-1)]


def _is_root(name: str | None, roots: set[str]) -> bool:
    """A model's own range has its class's name; any other module's a path that is not one's."""
    return name in roots or (not roots and name is not None and name[:1].isupper())


def _modules_around(attribution: Attribution, inside: GraphOps) -> tuple[Column, Column]:
    """The module that each op's graph was called in: row of the names (None, ``?`` or a name)."""
    instances, which = np.unique(inside.instance, return_inverse=True)
    repeated = np.zeros(len(instances), bool)
    repeated[which] = inside.repeated
    numbered = _numbered(attribution, instances)
    paths = attribution.paths
    above = innermost_modules(paths)[attribution.tree.path[instances]]
    names: dict[str | None, int] = {None: 0}
    rows = []
    for i, row in enumerate(above.tolist()):
        name = numbered[i]
        if name is None:
            opened = str(paths.names[row].as_py()) if row >= 0 else None
            name = UNKNOWN if repeated[i] else opened
        rows.append(names.setdefault(name, len(names)))
    return np.asarray(rows, np.int64)[which.reshape(-1)], np.asarray(list(names), object)


def _numbered(attribution: Attribution, instances: Column) -> list[str | None]:
    """Module of each graph range by the sequence number it carries (backward ranges of nvprobe)."""
    ranges = attribution.trace.ranges
    nothing: list[str | None] = [None] * len(instances)
    if ranges.payload is None or not len(instances):
        return nothing
    payload = ranges.payload[instances]
    sequence = np.where(payload == NO_PAYLOAD, NO_ROW, payload)
    row, texts = module_of_sequence(attribution, ranges.process[instances], sequence)
    return [texts[one] if one >= 0 else None for one in row.tolist()]


def _table(
    attribution: Attribution, pool: _Pool, method: Column, single: Rows, compiled: Rows
) -> Modules:
    """One table of both kinds of rows, with exact nanoseconds."""
    op, module, source, phase, weight = (
        np.concatenate(pair) for pair in zip(single, compiled, strict=True)
    )
    order = np.argsort(op, kind="stable")
    op, weight = op[order], weight[order]
    return Modules(
        names=pa.array(list(pool.texts), pa.string()),
        method=method,
        op=op,
        module=module[order].astype(np.int32),
        source=source[order].astype(np.int32),
        phase=phase[order].astype(np.int8),
        weight=weight,
        gpu_ns=exact_shares(op, weight, attribution.duration),
    )


def exact_shares(op: Column, weight: Column, duration: Column) -> Column:
    """Integer parts of each op's duration: rounded running sums, so that they add up exactly."""
    if not len(op):
        return np.empty(0, np.int64)
    first = runs(op)
    size = np.diff(np.append(first, len(op)))
    running = np.cumsum(weight)
    running -= np.repeat(running[first] - weight[first], size)
    whole = duration[op]
    reached = np.clip(np.rint(running * whole).astype(np.int64), 0, whole)
    reached[first + size - 1] = whole[first + size - 1]
    parts = reached.copy()
    parts[1:] -= reached[:-1]
    parts[first] = reached[first]
    return parts


def module_ledger(attribution: Attribution, table: Modules) -> dict[ModuleMethod, Entry]:
    """Ops and GPU time by method: they partition the ops and add up to the totals."""
    return {
        method: Entry(int(mask.sum()), int(attribution.duration[mask].sum()))
        for method in ModuleMethod
        if (mask := table.method == method).any()
    }
