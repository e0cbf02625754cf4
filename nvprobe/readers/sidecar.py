"""Sidecars (docs/sidecar.md) merged into the Trace of the profile they were written beside.

A sidecar is matched to its process by pid, then by rank; a single one to a single process. Its unix
times are brought onto the profile's clock by the marks ``nvprobe clock <unix ns>`` that stand in
both, else by the profile's own origin.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from nvprobe.readers import sidecar_kinds as kinds
from nvprobe.readers.sidecar_kinds import SidecarFile
from nvprobe.trace import NO_NAME, NO_PAYLOAD, NO_ROW, OPEN, Column, Ranges, Source, Threads, Trace
from nvprobe.trace.sidecar import (
    AllocatorSamples,
    CaptureRanges,
    CompileSpan,
    ModuleCalls,
    Place,
    Sidecar,
    SidecarSteps,
)

_AS_WRITTEN = {"breaks": "graph_break", "recompiles": "recompile"}
"""Fields of `Sidecar` that hold lines of one kind as they are."""
_CLOCK_MARK = "nvprobe clock "


def merge_sidecars(trace: Trace, files: Sequence[SidecarFile]) -> Trace:
    """The Trace with ``sidecar`` filled in; files that belong to no process are reported."""
    merger = _Merger(trace)
    for file in files:
        merger.add(file, _processes_of(trace, file, alone=len(files) == 1))
    return merger.trace()


def _processes_of(trace: Trace, file: SidecarFile, *, alone: bool) -> list[int]:
    """Rows of the process that wrote the file: one, but of several torch traces one each."""
    header = file.header
    assert header is not None
    for value, wanted in ((header.pid, trace.processes.pid), (header.rank, trace.processes.rank)):
        rows = np.flatnonzero(wanted == (-2 if value is None else value))
        if len(rows) == 1 or (len(rows) and wanted is trace.processes.pid):
            return [int(row) for row in rows]
    return [0] if alone and len(trace.processes) == 1 else []


class _Merger:
    """Collects the tables of several files."""

    def __init__(self, original: Trace) -> None:
        self.original = original
        self.names: dict[str, int] = {}
        self.texts: list[str] = []
        self.threads = _ThreadRows(original.threads)
        self.rank = original.processes.rank.copy()
        self.modules: list[ModuleCalls] = [ModuleCalls.empty()]
        self.captures: list[CaptureRanges] = [CaptureRanges.empty()]
        self.allocator: list[AllocatorSamples] = []
        self.steps: list[SidecarSteps] = [SidecarSteps.empty()]
        self.parts: dict[str, list[Any]] = defaultdict(list)
        self.sources: list[Source] = []
        self.warnings: list[str] = []

    def add(self, file: SidecarFile, rows: list[int]) -> None:
        """Take over one file for the rows of its process."""
        header = file.header
        assert header is not None
        self.warnings += file.warnings
        if not rows:
            self.warnings.append(
                f"{file.file}: its process {header.pid} is not in the profile; left out"
            )
            return
        facts = {name: text for one in file.lines["torch"] for name, text in one.facts.items()}
        self.sources.append(Source("sidecar", file.file, header.nvprobe, None, facts))
        for process in rows:
            if header.rank is not None and 0 <= header.rank < 1 << 31 and self.rank[process] < 0:
                self.rank[process] = header.rank
            self._owners(file, process, self._shift(process))
        self._events(file, rows[0], self._shift(rows[0]))
        if file.malformed:
            self.warnings.append(
                f"{file.file}: {file.malformed} lines or rows are not as the format has them "
                "(docs/sidecar.md); left out"
            )

    def _owners(self, file: SidecarFile, process: int, shift: int | None) -> None:
        """What says to whom work belongs: modules, steps, captures, kernels of graphs."""
        lines = file.lines
        self.modules.append(self._modules(lines["module"], process, shift))
        if shift is not None:
            self.steps.append(_steps(lines["step"], process, shift))
        self.captures += [
            self._capture(line, process, shift)
            for line in lines["cudagraph"]
            if line.event == "capture"
        ]
        self.parts["manifests"] += [
            structs.replace(line, process=process) for line in lines["graph"]
        ]

    def _events(self, file: SidecarFile, process: int, shift: int | None) -> None:
        """What happened, each once."""
        lines, parts = file.lines, self.parts
        if lines["allocator"] and shift is not None:
            self.allocator.append(_readings(self.original, lines["allocator"], process, shift))
        for part, kind in _AS_WRITTEN.items():
            parts[part] += [structs.replace(line, process=process) for line in lines[kind]]
        parts["compile_spans"] += _compile_spans(lines["compile_span"], process, shift)
        syncs = (structs.replace(line, process=process) for line in lines["sync"])
        parts["syncs"] += {one.source: one for one in syncs}.values()  # the last counts highest
        parts["places"] += _places(lines["place"], process)
        parts["objects"] += [structs.replace(one, process=process) for one in lines["object"]]
        parts["monotonic"] += [
            line.mark_ns[1] + shift - line.perf_ns
            for line in lines["clock"]
            if shift is not None and line.mark_ns and line.perf_ns
        ]
        parts["roots"] += [root.name for root in lines["root"]]

    def trace(self) -> Trace:
        """The original with everything added."""
        whole, steps = self.original, SidecarSteps.joined([one.columns() for one in self.steps])
        parts: dict[str, Any] = {name: tuple(values) for name, values in self.parts.items()}
        sidecar = Sidecar(
            modules=ModuleCalls.joined([one.columns() for one in self.modules]),
            steps=steps,
            captures=CaptureRanges.joined([one.columns() for one in self.captures]),
            allocator=AllocatorSamples.joined([one.columns() for one in self.allocator]),
            **parts,
        )
        strings = pa.concat_arrays([whole.strings, pa.array(self.texts, pa.string())])
        return dataclasses.replace(
            whole,
            strings=strings,
            ranges=_numbered(whole, steps),
            processes=whole.processes.with_columns(rank=self.rank),
            threads=self.threads.table(),
            sidecar=sidecar,
            sources=(*whole.sources, *self.sources),
            warnings=(*whole.warnings, *self.warnings),
        )

    def _name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.original.strings) + len(self.texts)
            self.texts.append(text)
        return self.names[text]

    def _shift(self, process: int) -> int | None:
        """What added to unix ns gives the trace's time; None where nothing gives it."""
        marked = _marked_shift(self.original, process)
        if marked is not None:
            return marked
        origin = self.original.origin_ns
        return -origin if origin else None

    def _modules(self, rows: list[kinds.ModuleRow], process: int, shift: int | None) -> ModuleCalls:
        return ModuleCalls(
            process=np.full(len(rows), process),
            thread=self.threads.rows(process, (row.thread for row in rows)),
            module=np.array([self._name(row.module) for row in rows], np.int32),
            first_sequence=np.array([row.first_seq for row in rows], np.int64),
            last_sequence=np.array([row.last_seq for row in rows], np.int64),
            start=_shifted([row.start_ns for row in rows], shift),
            end=_shifted([row.end_ns for row in rows], shift),
        )

    def _capture(self, line: kinds.Capture, process: int, shift: int | None) -> CaptureRanges:
        ranges, end = line.ranges, line.end_ns or 0
        named = [NO_NAME if r.category is None else self._name(r.category) for r in ranges]
        thread = self.threads.rows(process, [line.thread])
        return CaptureRanges(
            process=np.full(len(ranges), process),
            thread=np.repeat(thread, len(ranges)),
            capture=np.full(len(ranges), line.id),
            depth=np.array([r.depth for r in ranges], np.int64),
            start=_shifted([r.start_ns for r in ranges], shift),
            end=_shifted([end if r.end_ns is None else r.end_ns for r in ranges], shift),
            name=np.array([self._name(r.name) for r in ranges], np.int32),
            category=np.array(named, np.int32),
        )


class _ThreadRows:
    """Thread rows by (process, tid); unknown threads get rows of their own."""

    def __init__(self, threads: Threads) -> None:
        self.known = threads
        pairs = zip(threads.process.tolist(), threads.tid.tolist(), strict=True)
        self.row = {pair: row for row, pair in enumerate(pairs)}

    def rows(self, process: int, tids: Iterable[Any]) -> Column:
        """int32 rows."""
        pairs = ((process, int(tid)) for tid in tids)
        return np.array([self.row.setdefault(pair, len(self.row)) for pair in pairs], np.int32)

    def table(self) -> Threads:
        """The threads of the profile, then those only the sidecars know."""
        added = list(self.row)[len(self.known) :]
        names = np.full(len(added), NO_NAME, np.int32)
        return Threads(
            process=np.append(self.known.process, [p for p, _ in added]),
            tid=np.append(self.known.tid, [tid for _, tid in added]),
            name=np.append(self.known.name, names),
        )


def _marked_shift(trace: Trace, process: int) -> int | None:
    """Median of (recorded time, minus the time it names) over the marks of the clock.

    A mark is written at the nanoseconds it names or a little later, never before.
    """
    shifts = []
    for table, when in ((trace.marks, "time"), (trace.ranges, "start")):
        names = np.unique(table.name[table.process == process])
        named = {int(n): trace.text(int(n)) or "" for n in names if n >= 0}
        clock = {n: t for n, t in named.items() if t.startswith(_CLOCK_MARK)}
        rows = np.flatnonzero((table.process == process) & np.isin(table.name, list(clock)))
        for row in rows.tolist():
            unix = clock[int(table.name[row])].removeprefix(_CLOCK_MARK)
            if unix.isdigit():
                shifts.append(int(getattr(table, when)[row]) - int(unix))
    return sorted(shifts)[len(shifts) // 2] if shifts else None


def without_clock_marks(trace: Trace) -> Trace:
    """The Trace without the ranges that are marks of the clock: torch traces have no others."""
    texts = pc.starts_with(trace.strings, _CLOCK_MARK).to_numpy(zero_copy_only=False)
    marks = np.flatnonzero(np.asarray(texts, bool))
    kept = ~np.isin(trace.ranges.name, marks)
    if kept.all():
        return trace
    kept_or_none = np.append(kept, True)  # the last one stands for NO_ROW
    row = np.append(np.cumsum(kept) - 1, NO_ROW)
    operators = trace.operators.take(kept_or_none[trace.operators.range])
    payloads = trace.payloads.take(kept_or_none[trace.payloads.range])
    return dataclasses.replace(
        trace,
        ranges=trace.ranges.take(kept),
        operators=operators.with_columns(range=row[operators.range]),
        payloads=payloads.with_columns(range=row[payloads.range]),
    )


def _shifted(times: list[int], shift: int | None) -> Column:
    """Times on the trace's clock; -1 where no clock joins them."""
    return np.full(len(times), -1) if shift is None else np.array(times, np.int64) + shift


def _compile_spans(lines: list[CompileSpan], process: int, shift: int | None) -> list[CompileSpan]:
    """Compilations on the trace's clock; none where no clock joins them."""
    return [
        structs.replace(line, process=process, start=line.start + shift, end=line.end + shift)
        for line in lines
        if shift is not None and line.start and line.end
    ]


def _places(rows: list[Place], process: int) -> list[Place]:
    """The places of one process, in the order they were met, each with its highest count."""
    found: dict[tuple[object, ...], Place] = {}
    for row in rows:
        key = (row.name, row.category, row.role, row.source, row.stack, row.detail)
        known = found.get(key)
        if known is None or row.count > known.count:
            found[key] = structs.replace(row, process=process)
    return list(found.values())


_COUNTED = (
    "allocated", "reserved", "peak_allocated", "peak_reserved", "retries", "device_allocs",
    "device_frees", "out_of_memory",
)  # fmt: skip


def _readings(
    trace: Trace, rows: list[kinds.AllocatorRow], process: int, shift: int
) -> AllocatorSamples:
    """Readings on the trace's clock. torch numbers the devices that a process sees from 0.

    They are the devices that the process used, in order, where as many were sampled as used.
    """
    ordinal = np.array([row.device for row in rows], np.int64).astype(np.int32)
    used = np.unique(trace.ops.device[trace.ops.process == process])
    used, sampled = used[used >= 0], np.unique(ordinal)
    known = len(used) == len(sampled)
    counted = {
        name: [-1 if (n := getattr(row, name)) is None else n for row in rows] for name in _COUNTED
    }
    return AllocatorSamples(
        process=np.full(len(rows), process),
        device=used[np.searchsorted(sampled, ordinal)] if known else np.full(len(rows), NO_ROW),
        ordinal=ordinal,
        time=np.array([row.time_ns for row in rows], np.int64) + shift,
        **{name: np.array(values, np.int64) for name, values in counted.items()},
    )


def _steps(rows: list[kinds.StepRow], process: int, shift: int) -> SidecarSteps:
    """The steps of one process by time, without waits that found no batch."""
    rows = [one for one in rows if one.source != "exhausted"]
    numbers = [
        [one.step, one.start_ns, one.end_ns, one.source not in (None, "call", "loop")]
        for one in rows
    ]
    times = np.array(numbers, np.int64).reshape(-1, 4)
    times = times[np.argsort(times[:, 1], kind="stable")]
    return SidecarSteps(
        process=np.full(len(times), process),
        index=times[:, 0],
        start=times[:, 1] + shift,
        end=times[:, 2] + shift,
        found=times[:, 3] != 0,
    )


def _numbered(trace: Trace, steps: SidecarSteps) -> Ranges:
    """The ranges of a trace without payloads, those named ``step`` with their number as payload."""
    ranges = trace.ranges
    if ranges.payload is not None or not len(steps):
        return ranges
    names = [name for name in np.unique(ranges.name).tolist() if trace.text(name) == "step"]
    named = np.isin(ranges.name, names) & (ranges.end != OPEN)
    payload = np.full(len(ranges), NO_PAYLOAD, np.int64)
    for process in np.unique(steps.process).tolist():
        one = steps.take(steps.process == process)
        rows = np.flatnonzero(named & (ranges.process == process))
        middle = ranges.start[rows] + (ranges.end[rows] - ranges.start[rows]) // 2
        at = np.searchsorted(one.start, middle, side="right") - 1
        inside = (at >= 0) & (middle < one.end[at])
        payload[rows[inside]] = one.index[at[inside]]
    if (payload == NO_PAYLOAD).all():
        return ranges
    return dataclasses.replace(ranges, payload=payload)
