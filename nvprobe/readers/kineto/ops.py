"""GPU operations of a torch trace in the vocabulary of a Trace: names, copies, graph nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nvprobe.trace import Column, Geometry, OpKind

__all__ = ["Copy", "copy_of", "geometry", "graph_nodes", "plain_call", "repeated", "short_kernel"]

_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7}
_COPY_KINDS |= {"DtoD": 8, "HtoH": 9, "PtoP": 10}
_MEMORY_KINDS = {"Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5}
_KERNEL_TOKENS = re.compile(r"(\(anonymous namespace\)::|\(unnamed[^)]*\)::|operator\(\)|[<>(){}])")
_ABI_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")


class Copy(NamedTuple):
    """What the name of a copy says."""

    name: str
    kind: int
    source: int
    target: int


def copy_of(name: str) -> Copy:
    """``Memcpy HtoD (Pageable -> Device)`` as CUPTI kinds and the name nsys gives."""
    match = _COPY.match(name)
    if not match:
        return Copy("Memset" if name.startswith("Memset") else name, -1, -1, -1)
    kinds = _COPY_KINDS.get(match[1], -1)
    source, target = (_MEMORY_KINDS.get(match[row] or "", -1) for row in (2, 3))
    return Copy(f"Memcpy {match[1]}", kinds, source, target)


def plain_call(name: str) -> str:
    """A CUDA call without the suffixes of its ABI version."""
    return _ABI_SUFFIX.sub("", name)


def short_kernel(name: str) -> str:
    """The function of a demangled kernel: no return type, namespace, template or parameters."""
    depth = 0
    out: list[str] = []
    for part in _KERNEL_TOKENS.split(name):
        if part in ("<", "(", "{"):
            if depth == 0 and part == "(" and "".join(out).strip():
                break
            depth += 1
        elif part in (">", ")", "}"):
            depth -= 1
        elif depth == 0 and not part.startswith(("(anonymous", "(unnamed")):
            out.append(part)
    short = "".join(out).strip().rpartition("::")[2].split()
    return short[-1] if short else name


def is_graph_launch(names: Sequence[str]) -> Column:
    """bool per call name."""
    return np.array([bool(_GRAPH_LAUNCH.match(name)) for name in names], bool)


def graph_nodes(ops: dict[str, Column], calls: dict[str, Column], names: Sequence[str]) -> Column:
    """int64 node id per op, 0 for ops that no graph launch started.

    A torch trace tells a graph's node only since CUPTI 12 (and counts from 0), so the launch call
    decides; where it tells no node, ops are numbered within their launch.
    """
    launches = is_graph_launch(names)[calls["name"]] if len(names) else np.zeros(0, bool)
    nodes = np.zeros(len(ops["start"]), np.int64)
    rows = np.flatnonzero(np.isin(ops["correlation"], calls["correlation"][launches]))
    order = rows[np.lexsort((ops["start"][rows], ops["correlation"][rows]))]
    correlation = ops["correlation"][order]
    first = np.flatnonzero(np.diff(correlation, prepend=-(1 << 31)))
    lengths = np.diff(first, append=len(order))
    nodes[order] = np.arange(len(order)) - np.repeat(first, lengths) + 1
    told = rows[ops["graph_node"][rows] >= 0]
    graph = np.maximum(ops["graph"][told], 0).astype(np.int64)
    nodes[told] = (graph << 32) + ops["graph_node"][told] + 1
    return nodes


def geometry(ops: dict[str, Column]) -> Geometry:
    """Launch geometry of the kernels that have any."""
    rows = np.flatnonzero((ops["kind"] == OpKind.KERNEL) & (ops["grid_x"] > 0))
    names = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    axes = {name: ops[name][rows] for name in names}
    shared = np.maximum(ops["shared"][rows], 0)
    return Geometry(
        op=rows,
        **axes,
        registers=ops["registers"][rows],
        static_shared=np.zeros(len(rows), np.int32),
        # The trace gives one figure: static and dynamic together.
        dynamic_shared=shared,
    )


def repeated(columns: dict[str, Column], keys: Sequence[str]) -> Column:
    """bool: the row says the same as an earlier one in all ``keys``."""
    order = np.lexsort([columns[key] for key in keys])
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        values = columns[key][order]
        same &= values[1:] == values[:-1]
    out = np.zeros(len(order), bool)
    out[order[1:][same]] = True  # lexsort is stable: the first of equals is the earliest row.
    return out
