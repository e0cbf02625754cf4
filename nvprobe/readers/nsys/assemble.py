"""From the tables of an nsys export, SQLite or columnar, to a Trace."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.callchains import read_callchains
from nvprobe.readers.nsys.device import (
    counters_of,
    read_counters,
    read_cuda_events,
    read_memory,
    read_page_faults,
    read_payload_fields,
)
from nvprobe.readers.nsys.event_rows import (
    CALLCHAINS,
    OS_STACKS,
    PYTHON_BACKTRACES,
    PYTHON_SAMPLES,
    SAMPLE_STACKS,
    UNKNOWN,
    Frames,
)
from nvprobe.readers.nsys.gpu import (
    by_context,
    read_calls,
    read_geometry,
    read_graph_nodes,
    read_ops,
    read_overheads,
    read_syncs,
)
from nvprobe.readers.nsys.host import (
    read_library_calls,
    read_os_calls,
    read_samples,
    read_schedule,
)
from nvprobe.readers.nsys.metrics import read_generic_metrics
from nvprobe.readers.nsys.missing import missing_of
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.nvtx import Annotations, read_annotations
from nvprobe.readers.nsys.payloads import decode_payloads
from nvprobe.readers.nsys.processes import Gpus, People
from nvprobe.readers.nsys.python_stacks import PythonStacks, set_apart
from nvprobe.readers.nsys.strings import StringPool
from nvprobe.readers.nsys.tables import Rows, Tables
from nvprobe.readers.nsys.versions import LONGEST_TIME
from nvprobe.trace import (
    NO_NAME,
    NO_PAYLOAD,
    OPEN,
    Column,
    Devices,
    Processes,
    Ranges,
    Source,
    Threads,
    Trace,
)

__all__ = ["assemble"]

_LOST = re.compile(r"(\d+)\D{0,40}?\b(?:lost|dropped)\b|\b(?:lost|dropped)\b\D{0,40}?(\d+)", re.I)
_VERSIONS = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def assemble(tables: Tables, source: Source) -> Trace:
    """Everything the export holds in the one vocabulary, and in words what it lacks."""
    frames = Frames.read(tables)
    set_apart(frames, tables)
    pool = StringPool()
    people = People.found(frames, tables, pool)
    generic = read_generic_metrics(frames, tables, pool)
    gpus = Gpus.found(people, tables, pool, None if generic is None else generic.type)
    names = Names(frames, tables, pool, people.thread_names)
    python = PythonStacks.read(frames, people, tables, pool, PYTHON_SAMPLES)
    behind = PythonStacks.read(frames, people, tables, pool, PYTHON_BACKTRACES)
    decoded = decode_payloads(frames, tables, pool)
    strings = pool.freeze()
    noted = read_annotations(frames, people, names, strings, decoded)
    frames.release("NVTX_EVENTS")
    calls = read_calls(frames, people, names)
    libraries = read_library_calls(frames, people, names)
    geometry = read_geometry(frames)  # before the ops, which let go of the kernels
    ops = read_ops(frames, people, gpus, names)
    diagnostics = _diagnostics(tables.read("DIAGNOSTIC_EVENT"))
    trace = Trace(
        strings=strings,
        sources=(_source(source, tables, diagnostics),),
        processes=_processes(people, pool),
        threads=_threads(people, names, noted),
        devices=Devices(id=gpus.ids, name=pool.rows(gpus.names), **gpus.limits),
        calls=calls,
        callchains=read_callchains(frames, names, CALLCHAINS),
        ops=ops,
        geometry=geometry,
        ranges=_joined_ranges(noted.ranges, libraries),
        spans=noted.spans,
        marks=noted.marks,
        syncs=by_context(read_syncs(frames, people, gpus), ops),
        graph_nodes=read_graph_nodes(frames, people),
        overheads=read_overheads(frames, people, names),
        memory=read_memory(frames, people, gpus, calls),
        counters=counters_of(generic, gpus, pool) or read_counters(frames, gpus, names, tables),
        cuda_events=by_context(read_cuda_events(frames, people, gpus), ops),
        os_calls=read_os_calls(frames, people, names),
        os_stacks=read_callchains(frames, names, OS_STACKS),
        samples=read_samples(frames, people),
        sample_stacks=read_callchains(frames, names, SAMPLE_STACKS),
        python_samples=python.samples,
        python_stacks=python.chains(pool),
        backtraces=behind.samples,
        backtrace_stacks=behind.chains(pool),
        schedule=read_schedule(frames, people),
        page_faults=read_page_faults(frames, people, gpus),
        payload_fields=read_payload_fields(tables, names),
        payloads=noted.payloads,
        domains=_texts(strings, noted.domains),
        diagnostics=diagnostics,
        origin_ns=_first(tables.read("TARGET_INFO_SESSION_START_TIME"), "utcEpochNs"),
    )
    start, end = _window(trace, _first(tables.read("ANALYSIS_DETAILS"), "duration"))
    trace = dataclasses.replace(
        trace, start_ns=start, end_ns=end, warnings=(*frames.warnings, *_left_open(noted))
    )
    return dataclasses.replace(trace, missing=missing_of(trace))


def _joined_ranges(noted: Ranges, libraries: list[Ranges]) -> Ranges:
    """Annotations, and the calls of traced libraries after them."""
    if not libraries:
        return noted
    parts = [part for part in (noted, *libraries) if part.recorded]
    columns = {}
    for spec in dataclasses.fields(Ranges):
        values = [getattr(part, spec.name) for part in parts]
        if spec.name == "payload" and any(value is not None for value in values):
            values = [
                np.full(len(part), NO_PAYLOAD, np.int64) if value is None else value
                for part, value in zip(parts, values, strict=True)
            ]
        columns[spec.name] = None if values[0] is None else np.concatenate(values)
    return Ranges(**columns)  # type: ignore[arg-type]


def _processes(people: People, pool: StringPool) -> Processes:
    return Processes(
        key=people.keys,
        pid=people.pids,
        name=pool.rows(people.process_names),
        rank=people.ranks,
    )


def _threads(people: People, names: Names, noted: Annotations) -> Threads:
    """Threads; a name the program gave by NVTX stands before the operating system's."""
    name = names.by_id(people.thread_names)
    if noted.thread_names is not None:
        threads, given = noted.thread_names
        name[threads] = given
    return Threads(process=people.thread_process, tid=people.thread_ids, name=name)


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
    return dataclasses.replace(
        source, product_version=version, lost_events=sum(lost) if lost else None
    )


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
