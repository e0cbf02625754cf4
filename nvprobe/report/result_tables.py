"""What an analysis found, as Arrow tables: paths with quantities, and the lists of the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from nvprobe.analyze.analysis import Analysis
from nvprobe.analyze.model import UNKNOWN
from nvprobe.attribute.model import Kind
from nvprobe.report.tables import document
from nvprobe.trace import Column

__all__ = ["LISTS", "path_table", "result_tables"]

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
    later = len(paths.parent) - len(analysis.ranges)
    for name, values in analysis.ranges.columns().items():
        if name not in columns and name != "order":  # looked up after the sums were made: empty
            columns[name] = _null(np.append(values, np.full(later, UNKNOWN)), UNKNOWN)
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
