"""What an analysis found, as flat Arrow tables: the rows of the document, and every path.

A table's columns, types, units and meanings are the fields of its row's struct (``schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind
from nvprobe.report import (
    capture,
    critical,
    inference,
    kernels,
    memory,
    overlap,
    paths,
    step_parts,
    waits,
)
from nvprobe.report.document import Document, Finding, document
from nvprobe.report.schema import arrow, fields
from nvprobe.trace import Column, Missing, Source
from nvprobe.trace.rows import Row, is_, ns


class LedgerEntry(Row, frozen=True):
    """Every op by process and method or reason."""

    process_id: Annotated[int, is_("the process")]
    method: Annotated[str, is_("how the owner was found, or why there is none")]
    ops: Annotated[int, is_("GPU ops")]
    gpu_ns: Annotated[int, ns("sum of their durations")]


class Doubt(Row, frozen=True):
    """What to distrust."""

    text: Annotated[str, is_("one sentence")]


class Together(Row, frozen=True):
    """Time in which some classes of ops ran at once."""

    classes: Annotated[str, is_("classes that ran at once, as in `compute+communication`")]
    ns: Annotated[int, ns("time in which exactly these ran")]


def _keyed(about: str, row: type[Row], **keys: Any) -> type[Row]:
    """A row with the key that it is listed under in front."""
    own = [(field.name, field.type) for field in msgspec.structs.fields(row)]
    members = [*keys.items(), *own]
    made: type[Row] = msgspec.defstruct(  # type: ignore[assignment]  # bases say that it is a Row
        row.__name__, members, bases=(Row,), namespace={"__doc__": about}, frozen=True
    )
    return made


_DEVICE = Annotated[int | None, is_("physical number of the GPU")]
_STEP = Annotated[int, is_("number of the step")]
_PATH = Annotated[str | None, is_("the path")]
PATHS = _keyed(
    "Owner paths, parents before children, inclusive of what is below them.",
    paths.PathTotals,
    id=Annotated[int, is_("row")],
    parent_id=Annotated[int | None, is_("the path above")],
    name=Annotated[str, is_("the last name of the path")],
    depth=Annotated[int, is_("0 for the outermost")],
)
DEVICE_OVERLAP = _keyed("Time by GPU and the classes that ran at once.", Together, device=_DEVICE)
STEP_OVERLAP = _keyed("Time by step and the classes that ran at once.", Together, index=_STEP)
PATH_OVERLAP = _keyed("Time by path and the classes that ran at once.", Together, path=_PATH)
PATH_WORK = _keyed("Arithmetic of paths, where shapes are recorded.", paths.Work, path=_PATH)
PATH_COUNTERS = _keyed("Averages of GPU counters by path.", kernels.PathCounters, path=_PATH)
PATH_LINES = _keyed("Lines at which the ranges of paths begin.", paths.Line, path=_PATH)
HOLDERS = _keyed(
    "Who held memory at the peak of a memory snapshot.", memory.SnapshotHolder, device=_DEVICE
)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table and where its rows are in the document."""

    row: type[Row]
    rows: Callable[[Document], Sequence[Row] | None]

    @property
    def about(self) -> str:
        """What a row is."""
        return (self.row.__doc__ or "").split("\n")[0]


def _at(path: str) -> Callable[[Document], Sequence[Row] | None]:
    """The list at ``idle.by_line``; None where it or anything above it is null."""

    def found(inside: Any) -> Any:
        for name in path.split("."):
            inside = None if inside is None else getattr(inside, name)
        return inside

    return found


def _under(kind: type[Row], pairs: Iterable[tuple[Any, Sequence[Row] | None]]) -> list[Row]:
    """Rows that begin with the key that they are listed under."""
    return [kind(key, *astuple(row)) for key, some in pairs for row in some or ()]


def _overlap(kind: type[Row], path: str) -> Callable[[Document], Sequence[Row]]:
    """A row for each combination of classes of the rows at ``path``."""
    rows = _at(path)

    def found(inside: Document) -> list[Row]:
        pairs = (astuple(row) for row in rows(inside) or ())
        return [kind(key, *entry) for key, classes in pairs for entry in classes.items()]

    return found


def _ledger(found: Document) -> list[Row]:
    return [
        LedgerEntry(process.process, method, entry.ops, entry.gpu_ns)
        for process in found.ledger.by_process
        for method, entry in (*process.methods.items(), *process.unresolved.items())
    ]


def _path_work(found: Document) -> list[Row]:
    return _under(PATH_WORK, ((r.path, [r.work]) for r in found.ranges if r.work))


def _path_counters(found: Document) -> list[Row]:
    return _under(PATH_COUNTERS, ((r.path, [r.counters]) for r in found.ranges if r.counters))


def _holders(found: Document) -> list[Row]:
    snapshot = found.memory and found.memory.snapshot
    pairs = ((one.device, one.holders) for one in snapshot.devices) if snapshot else ()
    return _under(HOLDERS, pairs)


RESULTS: Mapping[str, ResultTable] = {
    "paths": ResultTable(PATHS, lambda d: None),
    "sources": ResultTable(Source, _at("sources")),
    "device_totals": ResultTable(capture.DeviceTotals, _at("devices")),
    "ledger": ResultTable(LedgerEntry, _ledger),
    "path_work": ResultTable(PATH_WORK, _path_work),
    "path_counters": ResultTable(PATH_COUNTERS, _path_counters),
    "path_lines": ResultTable(
        PATH_LINES, lambda d: _under(PATH_LINES, ((r.path, r.lines) for r in d.ranges))
    ),
    "modules": ResultTable(paths.Module, _at("modules")),
    "span_totals": ResultTable(paths.SpanTotals, _at("spans")),
    "kernels": ResultTable(kernels.Kernel, _at("kernels")),
    "kernel_counters": ResultTable(kernels.KernelCounters, _at("counters.kernels")),
    "copies": ResultTable(kernels.Copy, _at("copies")),
    "operators": ResultTable(paths.Operator, _at("operators")),
    "steps": ResultTable(paths.Step, _at("steps")),
    "critical_path": ResultTable(critical.CriticalPart, _at("critical_path")),
    "step_parts": ResultTable(step_parts.StepPart, _at("step_parts.parts")),
    "step_counts": ResultTable(step_parts.StepCounts, _at("step_parts.counts")),
    "syncs": ResultTable(waits.Sync, _at("syncs")),
    "idle": ResultTable(waits.IdleByPath, _at("idle.by_path")),
    "idle_by_device": ResultTable(waits.IdleByDevice, _at("idle.by_device")),
    "idle_by_step": ResultTable(waits.IdleByStep, _at("idle.by_step")),
    "idle_by_stream": ResultTable(waits.IdleByStream, _at("idle.by_stream")),
    "idle_by_line": ResultTable(waits.IdleByLine, _at("idle.by_line")),
    "overlap": ResultTable(DEVICE_OVERLAP, _overlap(DEVICE_OVERLAP, "overlap.by_device")),
    "overlap_by_step": ResultTable(STEP_OVERLAP, _overlap(STEP_OVERLAP, "overlap.by_step")),
    "overlap_by_path": ResultTable(PATH_OVERLAP, _overlap(PATH_OVERLAP, "overlap.by_path")),
    "stream_totals": ResultTable(overlap.StreamTotals, _at("overlap.streams")),
    "stream_pairs": ResultTable(overlap.StreamPair, _at("overlap.pairs")),
    "path_pairs": ResultTable(overlap.PathPair, _at("overlap.path_pairs")),
    "never_together": ResultTable(overlap.NeverTogether, _at("overlap.never_together")),
    "collectives": ResultTable(overlap.Collective, _at("collectives")),
    "collectives_by_process": ResultTable(overlap.ProcessCollective, _at("collectives_by_process")),
    "host": ResultTable(waits.Host, _at("host")),
    "memory_devices": ResultTable(memory.MemoryDevice, _at("memory.devices")),
    "memory_steps": ResultTable(memory.MemoryStep, _at("memory.steps")),
    "memory_paths": ResultTable(memory.MemoryPath, _at("memory.paths")),
    "allocator_devices": ResultTable(
        memory.AllocatorDevice,
        _at("memory.allocator.devices"),
    ),
    "allocator_steps": ResultTable(
        memory.AllocatorStep,
        _at("memory.allocator.steps"),
    ),
    "snapshot_holders": ResultTable(HOLDERS, _holders),
    "compiled_graphs": ResultTable(kernels.CompiledGraph, _at("compiled_graphs")),
    "phases": ResultTable(inference.PhaseTotals, _at("inference.phases")),
    "step_budget": ResultTable(inference.BudgetPart, _at("inference.budget")),
    "phase_kernels": ResultTable(inference.KernelFamily, _at("inference.kernel_families")),
    "client_latencies": ResultTable(inference.ClientLatency, _at("inference.client")),
    "slowest_steps": ResultTable(inference.SlowStep, _at("inference.slowest")),
    "findings": ResultTable(Finding, _at("findings")),
    "warnings": ResultTable(Doubt, lambda d: [Doubt(text) for text in d.warnings]),
    "missing": ResultTable(Missing, _at("missing")),
}
"""Every table of results by its name."""


def result_tables(analysis: Analysis, found: Document | None = None) -> dict[str, pa.Table]:
    """All of them, also those without rows; ``found`` is the document, where it is made already."""
    found = document(analysis) if found is None else found
    tables = {name: arrow(table.row, table.rows(found) or ()) for name, table in RESULTS.items()}
    return {**tables, "paths": path_table(analysis)}


def path_table(analysis: Analysis) -> pa.Table:
    """Every owner path with its quantities, parents before children."""
    known, trace = analysis.attribution.paths, analysis.attribution.trace
    columns: dict[str, Any] = {
        "id": np.arange(len(known.parent)),
        "parent_id": _null(known.parent, -1),
        "path": pa.array(known.texts(), pa.string()),
        "name": known.names.take(pa.array(known.name)),
        "depth": known.depth.astype(np.int64),
        "kind": pa.array([Kind(kind).name.lower() for kind in known.kind.tolist()], pa.string()),
        "domain": pa.array(trace.texts(known.domain), pa.string()),
    }
    for name, values in analysis.ranges.columns().items():
        columns[name] = _null(values, UNKNOWN)
    names = [field.name for field in fields(PATHS)]
    absent = pa.nulls(len(known.parent), pa.int64())
    return pa.table({name: columns.get(name, absent) for name in names})


def _null(values: Column, absent: int) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values == absent)
