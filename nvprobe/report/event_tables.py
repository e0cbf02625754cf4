"""Every event of a capture as Arrow tables, each op with its owner: for pandas, DuckDB and SQL.

The tables are those of the trace, whose columns say what they mean (``column_schemas``); here are
their exported names and what attribution adds. :data:`TABLES` is the whole, from which
``scripts/docs`` writes docs/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.model import Attribution, Kind, Method
from nvprobe.trace import (
    NO_NAME,
    CallChains,
    Calls,
    Column,
    ColumnSchema,
    Counters,
    CudaEvents,
    Devices,
    Geometry,
    GraphNodes,
    Marks,
    MemoryEvents,
    Messages,
    Ops,
    OsCalls,
    Overheads,
    PageFaults,
    Payloads,
    Processes,
    Ranges,
    Samples,
    Schedule,
    Spans,
    Syncs,
    Table,
    Threads,
)

NAMES = "names"
"""What text columns refer to: in SQLite a table, elsewhere the column's dictionary."""
PATH_TEXT = "path text"


@dataclass(frozen=True, slots=True)
class EventColumn:
    """One exported column."""

    name: str
    source: str
    """Column of the trace's table, or of what attribution adds; empty for the row number."""
    about: str
    unit: str = ""
    refers: str = ""
    """The table to whose ``id`` it leads, ``NAMES`` for a text, ``PATH_TEXT`` for a path's."""
    missing: float | None = None
    """The value that becomes null."""
    enum: Any = None


@dataclass(frozen=True, slots=True)
class EventTable:
    """One exported table."""

    source: str
    """Field of the Trace."""
    about: str
    columns: tuple[EventColumn, ...]


_ROW = EventColumn("id", "", "row")
_EXPORTED = {"ranges": "range_events", "strings": NAMES}
_INSTANTS = {"start": "start_ns", "end": "end_ns", "time": "time_ns"}
_RENAMED = {"callchain": "stack", "schema_name": "schema"}


def _columns(kind: type[Table], **names: str) -> Iterator[EventColumn]:
    """The columns of a table of the trace; ``names`` are other than usual, "" leaves one out."""
    yield _ROW
    for schema in kind.column_schemas():
        refers = _EXPORTED.get(schema.refers or "", schema.refers or "")
        usual = f"{schema.name}_id" if refers not in ("", NAMES) else schema.name
        usual = (_INSTANTS if schema.unit == "ns" else _RENAMED).get(schema.name, usual)
        if name := names.get(schema.name, usual):
            yield _exported(name, schema, refers)


def _exported(name: str, schema: ColumnSchema, refers: str) -> EventColumn:
    about = schema.about.replace("none ", "null ")
    return EventColumn(name, schema.name, about, schema.unit, refers, schema.missing, schema.enum)


def _table(source: str, kind: type[Table], about: str = "", **names: str) -> EventTable:
    description = about or (kind.__doc__ or "").split("\n")[0].replace("``", "`")
    return EventTable(source, description, tuple(_columns(kind, **names)))


def _with(table: EventTable, *more: EventColumn) -> EventTable:
    return EventTable(table.source, table.about, (*table.columns, *more))


_OWNER = (
    EventColumn("duration_ns", "duration", "0 where its times are impossible", "ns"),
    EventColumn("call_id", "call", "the call that started it", refers="calls", missing=-1),
    EventColumn("path_id", "owner", "the path it belongs to", refers="paths", missing=-1),
    EventColumn("path", "owner", "the same in words", refers=PATH_TEXT),
    EventColumn("method", "method", "how the path was found, or why there is none", enum=Method),
)
_PLACE = (
    EventColumn("path_id", "path", "its path, the range itself last", refers="paths", missing=-1),
    EventColumn("path", "path", "the same in words", refers=PATH_TEXT),
    EventColumn("parent_id", "parent", "the range around it on its thread", "", "range_events", -1),
    EventColumn("step", "index", "the number that ended its name", missing=-1),
    EventColumn("sequence", "sequence", "autograd sequence number", missing=-1),
    EventColumn(
        "kind",
        "range_kind",
        "user, step, phase, module, graph, collective, operator, library",
        enum=Kind,
    ),
)

TABLES: Mapping[str, EventTable] = {
    "processes": _table("processes", Processes, "Processes.", key=""),
    "threads": _table("threads", Threads, "Threads."),
    "devices": _table("devices", Devices, "Physical GPUs.", id="device"),
    "calls": _table("calls", Calls),
    "ops": _with(
        _table(
            "ops",
            Ops,
            "GPU ops, each with its owner. Methods and reasons are those of the ledger; "
            "they partition the rows.",
        ),
        *_OWNER,
    ),
    "geometry": _table("geometry", Geometry),
    "messages": _table("messages", Messages),
    "range_events": _with(
        _table("ranges", Ranges, "Ranges: NVTX push/pop, and what torch traces have of them."),
        *_PLACE,
    ),
    "spans": _table("spans", Spans),
    "marks": _table("marks", Marks, "NVTX marks."),
    "payload_values": _table(
        "payloads",
        Payloads,
        "Values of structured NVTX payloads, one row per value: messages of NCCL, layers of "
        "TensorRT, and what programs attach. Only in [exports with payloads](inputs.md#payloads).",
        start="time_ns",
        end="",
    ),
    "sync_records": _table("syncs", Syncs, "What synchronizing calls waited for."),
    "graph_nodes": _table("graph_nodes", GraphNodes),
    "memory_events": _table("memory", MemoryEvents),
    "counters": _table("counters", Counters, "Samples of GPU metrics."),
    "cuda_events": _table("cuda_events", CudaEvents),
    "os_calls": _table("os_calls", OsCalls, "Calls of operating system libraries."),
    "samples": _table("samples", Samples, "Periodic samples of threads."),
    "python_samples": _table("python_samples", Samples, "Samples of Python threads.", cpu=""),
    "backtraces": _table("backtraces", Samples, "Python stacks of CUDA calls.", cpu=""),
    "schedule": _table("schedule", Schedule),
    "page_faults": _table("page_faults", PageFaults),
    "overheads": _table("overheads", Overheads),
    "call_stacks": _table("callchains", CallChains, "Native call stacks of CUDA calls."),
    "os_stacks": _table("os_stacks", CallChains, "Native call stacks of OS calls."),
    "sample_stacks": _table("sample_stacks", CallChains, "Native call stacks of samples."),
    "python_stacks": _table("python_stacks", CallChains, "Python stacks of samples."),
    "backtrace_stacks": _table("backtrace_stacks", CallChains, "Python stacks of CUDA calls."),
}
"""Every table of events. One that the capture lacks is left out of files."""


def event_tables(attribution: Attribution) -> dict[str, pa.Table]:
    """All tables that the capture has. Texts are dictionary-encoded, references are int64."""
    maker, recorded = _Maker(attribution), attribution.trace.recorded
    return {name: maker.table(one) for name, one in TABLES.items() if one.source in recorded}


def event_table(attribution: Attribution, name: str) -> pa.Table:
    """One table, without rows where the capture lacks it."""
    return _Maker(attribution).table(TABLES[name])


class _Maker:
    """Turns columns of a Trace into Arrow arrays."""

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.texts = {
            NAMES: attribution.trace.strings,
            PATH_TEXT: pa.array(attribution.paths.texts(), pa.string()),
        }

    def table(self, table: EventTable) -> pa.Table:
        """One table of events."""
        found: Table = getattr(self.attribution.trace, table.source)
        columns = {**found.columns(), **self._added(table.source), "": np.arange(len(found))}
        if table.source == "ranges" and self.attribution.unfiltered is not None:
            row = np.flatnonzero(self.attribution.unfiltered.ranges)
            columns = {column: values[row] for column, values in columns.items()}
        rows = len(columns[""])
        return pa.table(
            {
                one.name: self._array(one, columns.get(one.source, np.full(rows, one.missing)))
                for one in table.columns
            }
        )

    def _added(self, source: str) -> dict[str, Column]:
        """What attribution knows of each row."""
        made, tree = self.attribution, self.attribution.tree
        if source == "ops":
            found = ("duration", "call", "owner", "method")
            return {column: getattr(made, column) for column in found}
        if source == "ranges":
            of_tree = ("path", "parent", "index", "sequence", "end")
            return {"range_kind": tree.kind} | {c: getattr(tree, c) for c in of_tree}
        return {}

    def _array(self, column: EventColumn, values: Column) -> pa.Array:
        if column.refers in self.texts:
            return _texts(self.texts[column.refers], values)
        if column.enum:
            return _words(column.enum, values)
        if values.dtype.kind == "f":
            return pa.array(values, mask=np.isnan(values))
        numbers = values.astype(np.int64, copy=False)
        return pa.array(numbers, mask=None if column.missing is None else numbers == column.missing)


def _texts(strings: pa.Array, rows: Column) -> pa.Array:
    """Texts as a dictionary of those in use, null for -1."""
    used, code = np.unique(rows, return_inverse=True)
    known = used != NO_NAME
    values = strings.take(pa.array(used[known])).cast(pa.string())
    place: Column = code.astype(np.int32) - int(np.count_nonzero(~known))
    encoded = pc.dictionary_encode(values)  # equal texts may stand in several rows
    if len(encoded):
        place = np.asarray(encoded.indices, np.int32)[place]
    return pa.DictionaryArray.from_arrays(pa.array(place, mask=rows == NO_NAME), encoded.dictionary)


def _words(enum: Any, values: Column) -> pa.Array:
    """The names of an enumeration's values, in lower case."""
    members = list(enum)
    code = np.searchsorted([int(member) for member in members], values)
    words = pa.array([member.name.lower() for member in members])
    return pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), words)
