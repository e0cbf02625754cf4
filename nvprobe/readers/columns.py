"""A Trace as a folder of Arrow files, and back: memory-mapped, so that opening reads nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from nvprobe import trace as tables
from nvprobe.trace import Clock, Missing, Source, Table, Trace

_STRINGS = "strings.arrow"
_HEADER = "trace.json"


def can_keep(trace: Trace) -> bool:
    """Whether a Trace is columns and plain facts alone (a merged sidecar is more)."""
    return not trace.sidecar.recorded


def write_columns(trace: Trace, folder: Path) -> None:
    """Write every table of ``trace`` into ``folder``."""
    facts: dict[str, Any] = {"tables": {}}
    for spec in dataclasses.fields(trace):
        value = getattr(trace, spec.name)
        if isinstance(value, Table):
            if not value.recorded:
                continue
            _write(folder / f"{spec.name}.arrow", value.columns())
            facts["tables"][spec.name] = type(value).__name__
        elif spec.name not in ("strings", "sidecar"):
            facts[spec.name] = value
    _write(folder / _STRINGS, {"text": trace.strings})
    text = json.dumps(facts, default=msgspec.structs.asdict)
    (folder / _HEADER).write_text(text, "utf-8", "surrogatepass")


def read_columns(folder: Path) -> Trace:
    """The Trace that :func:`write_columns` wrote; its arrays are read-only views of the files.

    Raises OSError, ValueError, KeyError or pa.ArrowException where the folder is damaged.
    """
    facts = json.loads((folder / _HEADER).read_text("utf-8", "surrogatepass"))
    values: dict[str, Any] = {
        "sources": tuple(Source(**source) for source in facts["sources"]),
        "missing": tuple(Missing(**entry) for entry in facts["missing"]),
        "clock": _clock(facts["clock"]),
        "domains": tuple(facts["domains"]),
        "warnings": tuple(facts["warnings"]),
        "diagnostics": tuple((severity, text) for severity, text in facts["diagnostics"]),
        **{name: facts[name] for name in ("start_ns", "end_ns", "origin_ns")},
        "strings": _read(folder / _STRINGS)["text"],
    }
    for name, kind in facts["tables"].items():
        columns = _read(folder / f"{name}.arrow")
        arrays = {column: array.to_numpy(zero_copy_only=False) for column, array in columns.items()}
        values[name] = getattr(tables, kind)(**arrays)
    return Trace(**values)


def _clock(facts: dict[str, Any]) -> Clock:
    offset = facts["offset_ns"]
    return Clock(facts["kind"], None if offset is None else tuple(offset), facts["matched_share"])


def _write(file: Path, columns: dict[str, Any]) -> None:
    batch = pa.record_batch([pa.array(values) for values in columns.values()], list(columns))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _read(file: Path) -> dict[str, pa.Array]:
    with pa.memory_map(str(file)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    return {name: batch.column(name) for name in batch.schema.names}
