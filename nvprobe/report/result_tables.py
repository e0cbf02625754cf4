"""What an analysis found, as Arrow tables: paths with quantities, and the lists of the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind
from nvprobe.report.tables import document
from nvprobe.trace import Column

__all__ = ["COLUMNS", "LISTS", "path_table", "result_tables"]

LISTS: Mapping[str, str] = {
    "modules": "GPU time of each module, forward and backward",
    "kernels": "each kernel by name",
    "copies": "copies and sets by kind",
    "operators": "torch operators by name and shapes",
    "steps": "training steps",
    "syncs": "synchronising calls by path and source line",
    "collectives": "collectives",
    "compiled_graphs": "graphs of torch.compile",
    "findings": "what costs time, and what to try",
    "warnings": "doubts about the capture",
    "missing": "what the capture cannot tell, why, and how to record it",
    "idle": "idle time by path and cause",
    "ledger": "every op by process and method or reason",
}
"""Lists of the document ``nvprobe.analysis/1`` that become tables; their columns are its keys."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    name: tuple(columns.split())
    for name, columns in {
        "modules": "module forward_gpu_ns backward_gpu_ns recompute_gpu_ns ops sources",
        "kernels": "name short_name kind ops gpu_ns longest_ns top_path top_path_ns suspect_ops "
        "suspect_ns class family precision tensor_cores occupancy waves tail limiter",
        "copies": "name kind ops gpu_ns bytes top_path",
        "operators": "name shapes calls cpu_ns self_cpu_ns ops gpu_ns gpu_self_ns path source",
        "steps": "index process path start_ns end_ns wall_ns ops gpu_ns gpu_busy_ns idle_ns "
        "missing_launches",
        "syncs": "call path source operator count wait_ns busy_ns bubble_ns device stream "
        "awaited_op",
        "collectives": "name collective path count gpu_ns exposed_ns longest_ns messages bytes "
        "told_ops communicators reductions peers",
        "compiled_graphs": "id phase process calls host_ns dispatch_ns guard_ns ops gpu_ns kernels "
        "modules sources break_reason break_source break_idle_ns recompiles recompile_reasons "
        "compile_ns cudagraph",
        "findings": "id title severity path sources source_roles evidence saves_ns try",
        "warnings": "text",
        "missing": "what why how",
        "idle": "path cause ns",
        "ledger": "process_id method ops gpu_ns",
    }.items()
}
"""Columns of each list, also of one without rows."""


def result_tables(analysis: Analysis) -> dict[str, pa.Table]:
    """Paths, and every list of the analysis that has rows."""
    found = document(analysis)
    rows = {name: _rows(name, found) for name in LISTS}
    lists = {name: _table(entries) for name, entries in rows.items() if entries}
    return {"paths": path_table(analysis), **lists}


def path_table(analysis: Analysis) -> pa.Table:
    """Every owner path with its quantities, parents before children."""
    attribution = analysis.attribution
    paths, trace = attribution.paths, attribution.trace
    columns: dict[str, Any] = {
        "id": np.arange(len(paths.parent)),
        "parent_id": _null(paths.parent, -1),
        "path": pa.array(paths.texts(), pa.string()),
        "name": paths.names.take(pa.array(paths.name)),
        "depth": paths.depth.astype(np.int64),
        "kind": pa.array([Kind(kind).name.lower() for kind in paths.kind.tolist()], pa.string()),
        "domain": pa.array(trace.texts(paths.domain), pa.string()),
    }
    for name, values in analysis.ranges.columns().items():
        if name not in columns and name != "order":
            columns[name] = _null(values, UNKNOWN)
    return pa.table(columns)


def _null(values: Column, absent: int) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values == absent)


def _rows(name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """One list of the document as flat rows."""
    entries: Any = found[name]
    if name == "ledger":
        return _ledger(entries)
    if name == "idle":
        entries = entries["by_path"]
    if name == "warnings":
        entries = [{"text": text} for text in entries]
    return entries if isinstance(entries, list) else []


def _ledger(entries: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for process in entries["by_process"]:
        for group in ("methods", "unresolved"):
            for method, entry in process[group].items():
                row = {"process_id": process["process"], "method": method}
                rows.append({**row, "ops": entry["ops"], "gpu_ns": entry["gpu_ns"]})
    return rows


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as columns; lists and objects are JSON text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, bool}:
        return pa.array(values, pa.int64() if kinds != {bool} else pa.bool_())
    if kinds <= {int, float, bool}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
