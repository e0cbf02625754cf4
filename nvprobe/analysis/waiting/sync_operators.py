"""Which operator of PyTorch made a call: ``item``, ``nonzero``, ``copy_`` and so on.

Two sources that agree in their words: the operator ranges of torch (cpu_op of a torch trace, NVTX
of emit_nvtx) and the native call stack of a call. Of several operators inside one another the
outermost is what the user wrote. Both give names without ``aten::``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import levels
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import Column, Trace

__all__ = ["PathOperators", "chain_operators", "path_operators"]

_BINDING = r"^torch::autograd::THPVariable_(?P<name>\w+)\("
"""The Python binding of a tensor method or function: what the user called."""
_DISPATCHED = r"^at::_ops::(?P<name>\w+)::(?:call|redispatch)\("


@dataclass(frozen=True, slots=True)
class PathOperators:
    """The operator that each path ends in."""

    row: Column
    """int32 row of ``names`` per path, -1 where it ends in none."""
    names: pa.StringArray

    def rows(self, paths: Column) -> Column:
        """int32 row of ``names`` of some path rows; -1 for path -1 and where there is none."""
        known = paths >= 0
        rows = np.full(len(paths), -1, np.int32)
        rows[known] = self.row[paths[known]]
        return rows

    def of(self, paths: Column) -> list[str | None]:
        """The operators of some path rows; None for -1 and where there is none."""
        rows = self.rows(paths)
        return list(self.names.take(pa.array(rows, mask=rows < 0)).to_pylist())


def path_operators(attribution: Attribution) -> PathOperators:
    """The outermost ``aten::`` operator of the operators at the end of each path.

    Where there is none of ``aten::``, the outermost of any; library ranges inside an operator do
    not hide it.
    """
    paths = attribution.paths
    is_aten = pc.starts_with(paths.names, "aten::").to_numpy(zero_copy_only=False)
    outer = np.full(len(paths.parent), -1, np.int32)
    aten = outer.copy()
    for rows in levels(paths):
        kind, name = paths.kind[rows], paths.name[rows]
        parent = np.where(paths.parent[rows] >= 0, paths.parent[rows], len(outer) - 1)
        inside = paths.parent[rows] >= 0
        above = np.where(inside, outer[parent], -1), np.where(inside, aten[parent], -1)
        operator = kind == Kind.OPERATOR
        kept = operator | (kind == Kind.LIBRARY)
        outer[rows] = np.where(above[0] >= 0, above[0], np.where(operator, name, -1))
        aten[rows] = np.where(above[1] >= 0, above[1], np.where(is_aten[name], name, -1))
        outer[rows[~kept]], aten[rows[~kept]] = -1, -1
    found = np.where(aten >= 0, aten, outer).astype(np.int32)
    return PathOperators(found, pc.replace_substring_regex(paths.names, "^aten::", ""))


def chain_operators(trace: Trace, chains: Column) -> tuple[Column, pa.StringArray]:
    """(int32 row of the names, -1, per given call chain; names): the operator in its stack.

    The outermost binding of a tensor method, else the outermost operator dispatched.
    """
    names = pa.array([], pa.string())
    out = np.full(len(chains), -1, np.int32)
    table = trace.callchains
    if not len(table) or not len(chains):
        return out, names
    symbols, code = np.unique(table.symbol, return_inverse=True)
    texts = trace.strings.take(pa.array(symbols, mask=symbols < 0))
    for pattern in (_DISPATCHED, _BINDING):
        found = pc.struct_field(pc.extract_regex(texts, pattern), "name")
        known = np.asarray(found.is_valid(), bool)[code]
        chain, symbol = table.chain[known], code[known]
        # Rows are by chain and depth: what stands last of a chain is outermost.
        last = np.searchsorted(chain, chains, "right") - 1
        hit = np.flatnonzero(last >= 0)
        hit = hit[chain[last[hit]] == chains[hit]]
        out[hit] = symbol[last[hit]] + len(names)
        names = pa.concat_arrays([names, found])
    return out, names
