"""The JSON document ``nvprobe.analysis/1`` (docs/cli.md): plain lists and dictionaries.

Times are integer nanoseconds; what cannot be known is null, never 0; keys are only added.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np

from nvprobe.analysis.missing import not_computed
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.ledger import Entry
from nvprobe.attribution.model import Kind, Method
from nvprobe.report import advice, waits
from nvprobe.report.rows import Row, numbers, path_texts, records
from nvprobe.trace import Column, Missing, OpKind, Table, Trace
from nvprobe.version import __version__

__all__ = ["SCHEMA", "document", "to_json"]

SCHEMA = "nvprobe.analysis/1"


def to_json(analysis: Analysis) -> str:
    """The document as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(document(analysis)), indent=1).decode()


def document(analysis: Analysis) -> Row:
    """The whole document."""
    trace = analysis.attribution.trace
    return {
        "schema": SCHEMA,
        "nvprobe": __version__,
        "verdict": analysis.verdict,
        "sources": _sources(trace),
        "processes": _processes(analysis),
        "window": {"start_ns": trace.start_ns, "end_ns": trace.end_ns},
        "clock": _clock(trace),
        "profiler": _profiler(analysis),
        "warnings": list(analysis.warnings),
        "devices": _devices(analysis),
        "ledger": _ledger(analysis),
        "ranges": _ranges(analysis),
        "modules": analysis.modules,
        "spans": _spans(analysis),
        "kernels": _kernels(analysis),
        "copies": _copies(analysis),
        "operators": analysis.operators,
        "steps": _steps(analysis),
        "step_spread": _step_spread(analysis),
        "syncs": waits.syncs(analysis),
        "idle": waits.idle(analysis),
        "overlap": waits.overlap(analysis),
        "collectives": waits.collectives(analysis),
        "host": waits.host(analysis),
        "memory": advice.memory(analysis),
        "counters": advice.counters(analysis),
        "compiled_graphs": analysis.compiled_graphs,
        "findings": advice.finding_rows(analysis),
        "missing": [_missing(m) for m in (*analysis.missing, *not_computed(analysis))],
    }


def _numeric(table: Table, names: str) -> dict[str, list[Any]]:
    """Columns of a table as they are."""
    return {name: numbers(getattr(table, name), len(table)) for name in names.split()}


def _sources(trace: Trace) -> list[Row]:
    return [
        {
            "kind": source.kind,
            "file": source.file,
            "product_version": source.product_version,
            "lost_events": source.lost_events,
            "notes": source.notes,
        }
        for source in trace.sources
    ]


def _processes(analysis: Analysis) -> list[Row]:
    """Those that recorded something: nsys lists whatever else ran on the machine, too."""
    trace, initiating = analysis.attribution.trace, analysis.attribution.initiating
    processes, tid = trace.processes, trace.threads.tid
    rows = _recorded(trace)
    return records(
        {
            "id": rows.tolist(),
            "pid": processes.pid[rows].tolist(),
            "name": trace.texts(processes.name[rows]),
            "rank": [rank if rank >= 0 else None for rank in processes.rank[rows].tolist()],
            "initiating_thread": [
                int(tid[t]) if t >= 0 else None for t in initiating[rows].tolist()
            ],
        }
    )


def _recorded(trace: Trace) -> Column:
    """Rows of the processes that any event is of."""
    found = np.zeros(len(trace.processes), bool)
    for field in dataclasses.fields(trace):
        rows = getattr(getattr(trace, field.name), "process", None)
        if field.name != "threads" and isinstance(rows, np.ndarray):
            found[rows[rows >= 0]] = True
    return np.flatnonzero(found)


def _clock(trace: Trace) -> Row:
    clock = trace.clock
    bounds = None if clock.offset_ns is None else list(clock.offset_ns)
    return {"kind": clock.kind, "offset_ns": bounds, "matched_share": clock.matched_share}


def _profiler(analysis: Analysis) -> Row | None:
    """A step with and without the profiler."""
    cost = analysis.profiler
    if cost is None:
        return None
    return {
        "backend": cost.backend,
        "source": cost.source,
        "profiled_step_ns": cost.profiled_ns,
        "unprofiled_step_ns": cost.unprofiled_ns,
        "unprofiled_bounds_ns": list(cost.bounds_ns),
        "idle_ns": cost.idle_ns,
        "profiler_idle_ns": cost.profiler_idle_ns,
        "records": dataclasses.asdict(cost.records),
        "costs": dataclasses.asdict(cost.costs),
    }


def _devices(analysis: Analysis) -> list[Row]:
    table, devices = analysis.devices, analysis.attribution.trace.devices
    known = [row if 0 <= row < len(devices) else None for row in table.device.tolist()]
    names = analysis.attribution.trace.texts(devices.name)
    return records(
        {
            "device": [None if row is None else int(devices.id[row]) for row in known],
            "name": [None if row is None else names[row] for row in known],
            **_numeric(table, "ops busy_ns idle_ns window_ns"),
        }
    )


def _entry(entry: Entry) -> Row:
    return {"ops": entry.ops, "gpu_ns": entry.gpu_ns}


def _methods(by_method: dict[Method, Entry]) -> Row:
    """Every method, and the reasons that occur."""
    nothing = Entry(0, 0)
    return {
        "methods": {
            m.name.lower(): _entry(by_method.get(m, nothing)) for m in Method if m.resolved
        },
        "unresolved": {
            m.name.lower(): _entry(entry) for m, entry in by_method.items() if not m.resolved
        },
    }


def _ledger(analysis: Analysis) -> Row:
    book = analysis.ledger
    out = {**_entry(book.total), **_methods(book.by_method)}
    if book.threads_without_range:
        out["unresolved"]["no_range_open"]["threads"] = _threads(analysis)
    out["by_process"] = [
        {"process": process, **_entry(total), **_methods(by_method)}
        for process, total, by_method in book.by_process
    ]
    out["modules"] = analysis.module_ledger
    outside = analysis.attribution.outside
    out["outside"] = None if outside is None else dataclasses.asdict(outside)
    return out


def _threads(analysis: Analysis) -> list[Row]:
    trace = analysis.attribution.trace
    return [
        {
            "process": int(trace.threads.process[thread]),
            "tid": int(trace.threads.tid[thread]),
            "name": trace.text(int(trace.threads.name[thread])),
            **_entry(entry),
        }
        for thread, entry in analysis.ledger.threads_without_range.items()
    ]


def _ranges(analysis: Analysis) -> list[Row]:
    table, paths = analysis.ranges, analysis.attribution.paths
    rows = np.argsort(table.order)
    rows = rows[(table.calls[rows] > 0) | (table.ops[rows] > 0)]
    table, texts = table.take(rows), paths.texts()
    trace, work = analysis.attribution.trace, advice.work_of_paths(analysis)
    counters = advice.counters_of_paths(analysis)
    quantities = (
        "calls wall_ns self_wall_ns ops gpu_ns gpu_self_ns gpu_busy_ns gpu_span_ns "
        "sync_ns idle_ns exposed_comm_ns"
    )
    return records(
        {
            "path": [texts[row] for row in rows.tolist()],
            "kind": [Kind(kind).name.lower() for kind in paths.kind[rows].tolist()],
            "domain": trace.texts(paths.domain[rows]),
            **_numeric(table, quantities),
            "work": [work.get(row) for row in rows.tolist()],
            "counters": [counters.get(row) for row in rows.tolist()],
            "places": advice.places_of_paths(analysis, rows.tolist()),
        }
    )


def _spans(analysis: Analysis) -> list[Row]:
    table, trace = analysis.spans, analysis.attribution.trace
    return records(
        {
            "name": trace.texts(table.name),
            "domain": trace.texts(table.domain),
            **_numeric(table, "calls wall_ns longest_ns unclosed"),
        }
    )


def _kernels(analysis: Analysis) -> list[Row]:
    table, trace = analysis.kernels, analysis.attribution.trace
    return records(
        {
            "name": trace.texts(table.name),
            "short_name": trace.texts(table.short_name),
            "kind": [OpKind(kind).name.lower() for kind in table.kind.tolist()],
            **_numeric(table, "ops gpu_ns longest_ns"),
            "top_path": path_texts(analysis, table.top_path),
            **_numeric(table, "top_path_ns suspect_ops suspect_ns"),
            **advice.kernel_traits(analysis),
        }
    )


def _copies(analysis: Analysis) -> list[Row]:
    table, trace = analysis.copies, analysis.attribution.trace
    return records(
        {
            "name": trace.texts(table.name),
            "kind": [OpKind(kind).name.lower() for kind in table.kind.tolist()],
            **_numeric(table, "ops gpu_ns bytes"),
            "top_path": path_texts(analysis, table.top_path),
        }
    )


def _steps(analysis: Analysis) -> list[Row]:
    table = analysis.steps
    return records(
        {
            "index": table.index.tolist(),
            "process": table.process.tolist(),
            "path": path_texts(analysis, table.path),
            "start_ns": table.start.tolist(),
            "end_ns": table.end.tolist(),
            **_numeric(table, "wall_ns ops gpu_ns gpu_busy_ns idle_ns missing_launches"),
        }
    )


def _step_spread(analysis: Analysis) -> Row | None:
    spread = analysis.step_spread
    return None if spread is None else dataclasses.asdict(spread)


def _missing(entry: Missing) -> Row:
    return {"what": entry.what, "why": entry.why, "how": entry.how}
