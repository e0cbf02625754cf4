"""From the tables of an nsys export, SQLite or columnar, to a Trace."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.export import Export
from nvprobe.readers.nsys.gpu import (
    by_context,
    read_cuda_events,
    read_geometry,
    read_graph_nodes,
    read_memory,
    read_ops,
    read_page_faults,
    read_syncs,
)
from nvprobe.readers.nsys.host import (
    read_callchains,
    read_calls,
    read_library_calls,
    read_os_calls,
    read_overheads,
    read_samples,
    read_schedule,
)
from nvprobe.readers.nsys.metrics import counters_of, read_counters, read_generic_metrics
from nvprobe.readers.nsys.missing import missing_of
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.nvtx import Annotations, read_annotations
from nvprobe.readers.nsys.payloads import decode_payloads, read_payload_fields
from nvprobe.readers.nsys.processes import Gpus, ProcessIndex
from nvprobe.readers.nsys.python_stacks import PythonStacks, set_apart
from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Rows, StringPool, Tables
from nvprobe.readers.nsys.versions import (
    CALLCHAINS,
    LONGEST_TIME,
    OLDEST,
    OS_STACKS,
    PYTHON_BACKTRACES,
    PYTHON_SAMPLES,
    SAMPLE_STACKS,
)
from nvprobe.trace import (
    NO_NAME,
    NO_PAYLOAD,
    OPEN,
    Calls,
    Column,
    Devices,
    Processes,
    Ranges,
    Source,
    Threads,
    Trace,
)

_LOST = re.compile(r"(\d+)\D{0,40}?\b(?:lost|dropped)\b|\b(?:lost|dropped)\b\D{0,40}?(\d+)", re.I)
_VERSIONS = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def assemble(tables: Tables, source: Source) -> Trace:
    """Everything the export holds in the one vocabulary, and in words what it lacks."""
    events = ExportRows.read(tables)
    set_apart(events, tables)
    pool = StringPool()
    index = ProcessIndex.found(events, tables, pool)
    generic = read_generic_metrics(events, tables, pool)
    gpus = Gpus.found(index, tables, pool, None if generic is None else generic.type)
    names = Names(events, tables, pool, index.thread_names)
    sampled, of_calls = (
        PythonStacks.read(events, index, tables, pool, table)
        for table in (PYTHON_SAMPLES, PYTHON_BACKTRACES)
    )
    decoded = decode_payloads(events, tables, pool)
    strings = pool.freeze()
    export = Export(events, index, gpus, names)
    noted = read_annotations(export, strings, decoded)
    export.release("NVTX_EVENTS")
    diagnostics = _diagnostics(tables.read("DIAGNOSTIC_EVENT"))
    trace = Trace(
        strings=strings,
        sources=(_source(source, tables, diagnostics),),
        processes=_processes(index, pool),
        threads=_threads(index, names, noted),
        devices=Devices(id=gpus.ids, name=pool.rows(gpus.names), **gpus.limits),
        **_host(export, noted),
        counters=counters_of(generic, gpus, pool) or read_counters(export, tables),
        python_samples=sampled.samples,
        python_stacks=sampled.chains(pool),
        backtraces=of_calls.samples,
        backtrace_stacks=of_calls.chains(pool),
        payload_fields=read_payload_fields(tables, names),
        domains=_texts(strings, noted.domains),
        diagnostics=diagnostics,
        origin_ns=_first(tables.read("TARGET_INFO_SESSION_START_TIME"), "utcEpochNs"),
    )
    trace = dataclasses.replace(trace, **_gpu(export, trace.calls))
    start, end = _window(trace, _first(tables.read("ANALYSIS_DETAILS"), "duration"))
    warnings = (*events.warnings, *_too_old(trace.sources[0]), *_left_open(noted))
    trace = dataclasses.replace(trace, start_ns=start, end_ns=end, warnings=warnings)
    return dataclasses.replace(trace, missing=missing_of(trace))


def _host(export: Export, noted: Annotations) -> dict[str, Any]:
    """The tables of the host, by their names in a Trace."""
    calls, libraries = read_calls(export), read_library_calls(export)
    return {
        "calls": calls,
        "callchains": read_callchains(export, CALLCHAINS),
        "ranges": _joined_ranges(noted.ranges, libraries),
        "spans": noted.spans,
        "marks": noted.marks,
        "payloads": noted.payloads,
        "overheads": read_overheads(export),
        "os_calls": read_os_calls(export),
        "os_stacks": read_callchains(export, OS_STACKS),
        "samples": read_samples(export),
        "sample_stacks": read_callchains(export, SAMPLE_STACKS),
        "schedule": read_schedule(export),
    }


def _gpu(export: Export, calls: Calls) -> dict[str, Any]:
    """The tables of the GPU, by their names in a Trace."""
    geometry = read_geometry(export)  # before the ops, which let go of the kernels
    ops = read_ops(export)
    return {
        "ops": ops,
        "geometry": geometry,
        "syncs": by_context(read_syncs(export), ops),
        "graph_nodes": read_graph_nodes(export),
        "memory": read_memory(export, calls),
        "cuda_events": by_context(read_cuda_events(export), ops),
        "page_faults": read_page_faults(export),
    }


def _joined_ranges(noted: Ranges, libraries: list[Ranges]) -> Ranges:
    """Annotations, and the calls of traced libraries (without payload) after them."""
    parts: list[Mapping[str, Column | None]] = []
    for part in (noted, *libraries):
        if part.recorded:
            none = np.full(len(part), NO_PAYLOAD) if noted.payload is not None else None
            parts.append({"payload": none, **part.columns()})
    return Ranges.joined(parts) if libraries else noted


def _processes(index: ProcessIndex, pool: StringPool) -> Processes:
    return Processes(
        key=index.keys,
        pid=index.pids,
        name=pool.rows(index.process_names),
        rank=index.ranks,
    )


def _threads(index: ProcessIndex, names: Names, noted: Annotations) -> Threads:
    """Threads; a name the program gave by NVTX stands before the operating system's."""
    name = names.by_id(index.thread_names)
    if noted.thread_names is not None:
        threads, given = noted.thread_names
        name[threads] = given
    return Threads(process=index.thread_process, tid=index.thread_ids, name=name)


def _texts(strings: pa.StringArray, rows: Column | None) -> tuple[str, ...]:
    if rows is None:
        return ()
    distinct = dict.fromkeys(rows.tolist())
    return tuple(strings[row].as_py() for row in distinct if row != NO_NAME)


def _source(source: Source, tables: Tables, diagnostics: tuple[tuple[int, str], ...]) -> Source:
    """``source`` with what the export says of its writer and of its losses."""
    version = None
    for table in _VERSIONS:
        if (rows := tables.read(table)) is not None and version is None:
            pairs = zip(
                rows.texts("name").to_pylist(), rows.texts("value").to_pylist(), strict=True
            )
            version = dict(pairs).get("EXPORT_PRODUCT_VERSION")
    lost = [int(m[1] or m[2]) for _, text in diagnostics for m in _LOST.finditer(text)]
    return msgspec.structs.replace(
        source, product_version=version, lost_events=sum(lost) if lost else None
    )


def _too_old(source: Source) -> list[str]:
    """A warning where the export is of an nsys that is not supported."""
    found = re.match(r"(20\d\d)\.(\d+)", source.product_version or "")
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return []
    oldest = ".".join(map(str, OLDEST))
    return [
        f"written by nsys {source.product_version}, and nvprobe supports {oldest} and newer: what "
        "older versions recorded otherwise is missing"
    ]


def _diagnostics(rows: Rows | None) -> tuple[tuple[int, str], ...]:
    """The capture's own messages, each once, in order."""
    if rows is None:
        return ()
    texts = (text or "" for text in rows.texts("text").to_pylist())
    return tuple(Counter(zip(rows.ints("severity", 0).tolist(), texts, strict=True)))


def _first(rows: Rows | None, column: str) -> int | None:
    """The first value of a column of a one-row table."""
    if rows is None or not len(rows):
        return None
    value = int(rows.ints(column, UNKNOWN)[0])
    return None if value == UNKNOWN else value


def _window(trace: Trace, duration: int | None) -> tuple[int, int]:
    """Begin and end of the capture.

    Times count from the begin of the capture, and ``duration`` is its length (start and stop
    times of the same table count from elsewhere). Work may end after the capture was stopped.
    """
    ends = [0, duration if duration is not None and duration <= LONGEST_TIME else 0]
    for table in (trace.calls, trace.ops, trace.ranges, trace.spans, trace.syncs):
        if len(table):
            end = table.end
            closed = end[end != OPEN]
            ends += [int(closed.max())] if len(closed) else []
            ends.append(int(table.start.max()))
    if len(trace.marks):
        ends.append(int(trace.marks.time.max()))
    return 0, max(ends)


def _left_open(noted: Annotations) -> list[str]:
    """How many ranges and spans were never closed, in words."""
    out = []
    for what, table in (("range", noted.ranges), ("start/end range", noted.spans)):
        count = int(np.count_nonzero(table.end == OPEN))
        if count:
            were, ends = (
                ("was", "it counts as open") if count == 1 else ("were", "they count as open")
            )
            plural = "" if count == 1 else "s"
            out.append(f"{count} {what}{plural} {were} never closed; {ends} to the capture's end")
    return out
