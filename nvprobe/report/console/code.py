"""Modules and operators in the terminal report: the code that GPU and host time go back to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import ModuleMethod
from nvprobe.report.console.folding import fold_name
from nvprobe.report.console.format import percent, span, time
from nvprobe.report.console.tables import more, names, numbers, table
from nvprobe.report.console.view import View

_PHASES = {
    "Forward": "forward_gpu_ns",
    "Backward": "backward_gpu_ns",
    "Recomputed": "recompute_gpu_ns",
}


def modules(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """GPU time by innermost module, those passes apart that any of them has."""
    rows, total = analysis.modules or [], analysis.ledger.total.gpu_ns
    if not rows or not total:
        return None
    rows = rows if view.unfold else _folded(analysis, view, rows)
    phases = {head: key for head, key in _PHASES.items() if any(row[key] for row in rows)}
    shown = rows[: view.rows()]
    each = [row.get("each", "") for row in shown]
    out = table(
        width,
        names("Module", [row["module"] for row in shown]),
        *(numbers(head, [_time(row[key]) for row in shown], 2) for head, key in phases.items()),
        numbers("GPU %", [percent(_gpu(row), total) for row in shown]),
        numbers("Ops", [f"{row['ops']:,}" for row in shown], 3),
        *(
            [numbers("Each", each, 4)]
            if any(each := [row.get("each", "") for row in shown])
            else []
        ),
        *([names("In", [_line(row) for row in shown], 1)] if any(map(_line, shown)) else []),
    )
    return Group(out, *more(len(rows) - len(shown), "module"), Text(_summary(analysis), "dim"))


def _folded(analysis: Analysis, view: View, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Modules that the tree folds as one row each, others by the numbers inside their names."""
    paths, folds = analysis.attribution.paths, view.fold(analysis)
    names_ = paths.names.to_pylist()
    known = {
        names_[name]: folds.name(int(first))
        for name, first in zip(paths.name.tolist(), folds.first.tolist(), strict=True)
        if folds.members[first] > 1
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = row["module"]
        groups.setdefault(known.get(name) or fold_name(name), []).append(row)
    folded = [_together(name, alike) for name, alike in groups.items()]
    return sorted(folded, key=lambda row: -_gpu(row))


def _together(name: str, alike: list[dict[str, Any]]) -> dict[str, Any]:
    """Several modules as one row, with the least and the greatest GPU time."""
    if len(alike) == 1:
        return alike[0]
    times = [_gpu(row) for row in alike]
    return {
        "module": f"{name} ×{len(alike)}",
        **{key: sum(row[key] for row in alike) for key in (*_PHASES.values(), "ops")},
        "sources": alike[0]["sources"],
        "each": span(min(times), max(times)),
    }


def _gpu(row: Mapping[str, Any]) -> int:
    return sum(row[key] for key in _PHASES.values())


def _line(row: Mapping[str, Any]) -> str:
    return next(iter(row["sources"]), "")


def _time(ns: int) -> str:
    return time(ns) if ns else "·"


def _summary(analysis: Analysis) -> str:
    """How much of the GPU time the modules have."""
    ledger = analysis.module_ledger or {}
    resolved = [m.name.lower() for m in ModuleMethod if m.resolved]
    known = sum(ledger[name]["gpu_ns"] for name in resolved if name in ledger)
    share = percent(known, analysis.ledger.total.gpu_ns)
    return f"{share} of GPU time has a module, each op in the innermost one"


def operators(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Operators by what they cost themselves: on the GPU, else on the host."""
    rows, total = analysis.operators or [], analysis.ledger.total.gpu_ns
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: (-row["gpu_self_ns"], -row["self_cpu_ns"]))
    shown = rows[: view.rows()]
    gpu = [
        numbers("Self GPU", [_time(row["gpu_self_ns"]) for row in shown]),
        numbers("GPU %", [percent(row["gpu_self_ns"], total) for row in shown]),
    ]
    out = table(
        width,
        names("Operator", [_with_shapes(row) for row in shown]),
        numbers("Calls", [f"{row['calls']:,}" for row in shown], 2),
        numbers("Self CPU", [time(row["self_cpu_ns"]) for row in shown], 3 if total else 0),
        *(gpu if total else []),
        names("Mostly in", [row["source"] or _around(row) or "–" for row in shown], 1),
    )
    return Group(out, *more(len(rows) - len(shown), "operator"))


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
