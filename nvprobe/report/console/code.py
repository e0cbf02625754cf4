"""Modules and operators in the terminal report: the code that GPU and host time go back to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import ModuleMethod
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.format import left_cut, path_cut, percent, plain, time
from nvprobe.report.console.tables import new_table
from nvprobe.report.console.view import TreeView

__all__ = ["modules", "operators"]

_PHASES = {
    "Forward": "forward_gpu_ns",
    "Backward": "backward_gpu_ns",
    "Recomputed": "recompute_gpu_ns",
}


def modules(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """GPU time by innermost module, those passes apart that any of them has."""
    rows, total = analysis.modules or [], analysis.ledger.total.gpu_ns
    if not rows or not total or not view.kernels:
        return None
    phases = {head: key for head, key in _PHASES.items() if any(row[key] for row in rows)}
    lines = any(row["sources"] for row in rows)
    limit = max(18, width // 4)
    table = new_table("Module", *phases, "GPU %", "Ops", *(["In"] if lines else []), In=limit)
    for row in rows[: view.kernels]:
        table.add_row(
            plain(row["module"]),
            *(time(row[key]) if row[key] else "·" for key in phases.values()),
            percent(sum(row[key] for key in _PHASES.values()), total),
            f"{row['ops']:,}",
            *([left_cut(next(iter(row["sources"]), None), limit)] if lines else []),
        )
    return Group(table, Text(_summary(analysis, len(rows) - view.kernels), "dim"))


def _summary(analysis: Analysis, more: int) -> str:
    """How much of the GPU time the modules have, and what is not shown."""
    ledger = analysis.module_ledger or {}
    resolved = [m.name.lower() for m in ModuleMethod if m.resolved]
    known = sum(ledger[name]["gpu_ns"] for name in resolved if name in ledger)
    share = percent(known, analysis.ledger.total.gpu_ns)
    left = f"… {counted(more, 'more module')} (--kernels); " if more > 0 else ""
    return f"{left}{share} of GPU time has a module, each op in the innermost one"


def operators(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Operators by what they cost themselves: on the GPU, else on the host."""
    rows, total = analysis.operators or [], analysis.ledger.total.gpu_ns
    if not rows or not view.kernels:
        return None
    limit = max(18, width // 4)
    gpu = ("Self GPU", "GPU %") if total else ()
    table = new_table("Operator", "Calls", "Self CPU", *gpu, "Mostly in", Mostly_in=limit)
    rows = sorted(rows, key=lambda row: (-row["gpu_self_ns"], -row["self_cpu_ns"]))
    for row in rows[: view.kernels]:
        own = row["gpu_self_ns"]
        table.add_row(
            plain(_with_shapes(row)),
            f"{row['calls']:,}",
            time(row["self_cpu_ns"]),
            *((time(own) if own else "·", percent(own, total)) if gpu else ()),
            left_cut(row["source"], limit) if row["source"] else path_cut(_around(row), limit),
        )
    more = len(rows) - view.kernels
    if more > 0:
        return Group(table, Text(f"… {counted(more, 'more operator')} (--kernels)", "dim"))
    return table


def _around(row: Mapping[str, Any]) -> str:
    """The path that an operator lies in, without itself."""
    path, name = row["path"] or "", row["name"] or ""
    return path.removesuffix(f"/{name}")


def _with_shapes(row: Mapping[str, Any]) -> str:
    """``aten::mm [2048, 512] [512, 512]``: what has no shape is left out."""
    try:
        shapes = json.loads(row["shapes"] or "[]")
        found = [json.dumps(shape) for shape in shapes if shape] if isinstance(shapes, list) else []
    except (ValueError, RecursionError):  # a file may hold whatever it likes
        found = []
    return " ".join([row["name"] or "(unnamed)", *found])
