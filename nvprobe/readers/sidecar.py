"""Sidecars (docs/sidecar.md) merged into the Trace of the profile they were written beside.

A sidecar is matched to its process by pid, then by rank; a single one to a single process. Its unix
times are brought onto the profile's clock by the marks ``nvprobe clock <unix ns>`` that stand in
both, else by the profile's own origin.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from nvprobe.readers.allocator import allocator_samples
from nvprobe.readers.sidecar_file import SidecarFile, is_whole, read_sidecar, whole
from nvprobe.readers.sidecar_lines import (
    MALFORMED,
    compile_spans,
    graph_break,
    manifest,
    recompile,
    sync,
    text_of,
)
from nvprobe.readers.sidecar_places import places
from nvprobe.readers.sidecar_steps import StepRows, numbered
from nvprobe.trace import NO_NAME, Column, Source, Threads, Trace
from nvprobe.trace.sidecar import (
    AllocatorSamples,
    CaptureRanges,
    ModuleCalls,
    Sidecar,
)

__all__ = ["SidecarFile", "merge_sidecars", "read_sidecar"]

T = TypeVar("T")

_CLOCK_MARK = "nvprobe clock "


def merge_sidecars(trace: Trace, files: Sequence[SidecarFile]) -> Trace:
    """The Trace with ``sidecar`` filled in; files that belong to no process are told."""
    merger = _Merger(trace)
    for file in files:
        merger.add(file, _processes_of(trace, file, alone=len(files) == 1))
    return merger.trace()


def _processes_of(trace: Trace, file: SidecarFile, *, alone: bool) -> list[int]:
    """Rows of the process that wrote the file: one, but of several torch traces one each."""
    for key, wanted in (("pid", trace.processes.pid), ("rank", trace.processes.rank)):
        value = file.header.get(key)
        rows = np.flatnonzero(wanted == (value if isinstance(value, int) else -2))
        if len(rows) == 1 or (len(rows) and key == "pid"):
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
        self.steps: list[StepRows] = []
        self.parts: dict[str, list[Any]] = defaultdict(list)
        self.sources: list[Source] = []
        self.warnings: list[str] = []
        self.strange = 0

    def add(self, file: SidecarFile, rows: list[int]) -> None:
        """Take over one file for the rows of its process."""
        self.warnings += file.warnings
        self.strange = file.strange
        if not rows:
            self.warnings.append(
                f"{file.file}: its process {file.header.get('pid')} is not in the profile; left out"
            )
            return
        version = file.header.get("nvprobe")
        self.sources.append(Source("sidecar", file.file, version and str(version)))
        rank = file.header.get("rank")
        for process in rows:
            if is_whole(rank) and 0 <= int(rank or 0) < 1 << 31 and self.rank[process] < 0:
                self.rank[process] = int(rank or 0)
        for later in rows[1:]:
            counted = self.strange
            self._owners(file, later, self._shift(later))
            self.strange = counted  # every row counts the same lines
        shift = self._shift(rows[0])
        self._owners(file, rows[0], shift)
        self._events(file, rows[0], shift)
        if self.strange:
            self.warnings.append(
                f"{file.file}: {self.strange} lines or rows are not as the format has them "
                "(docs/sidecar.md); left out"
            )

    def _owners(self, file: SidecarFile, process: int, shift: int | None) -> None:
        """What says whom work belongs to: modules, steps, captures, kernels of graphs."""
        self.modules.append(self._modules(file.modules, process, shift))
        if shift is not None and file.steps["step"]:
            times = (_shifted(file.steps[name], shift) for name in ("start_ns", "end_ns"))
            self.steps.append(StepRows(process, _integers(file.steps["step"]), *times))
        lines = file.lines
        captures = [line for line in lines["cudagraph"] if line.get("event") == "capture"]
        self.captures += self._each(captures, lambda line: self._capture(line, process, shift))
        self.parts["manifests"] += self._each(lines["graph"], lambda line: manifest(line, process))

    def _events(self, file: SidecarFile, process: int, shift: int | None) -> None:
        """What happened, each once."""
        if file.allocator and shift is not None:
            self.allocator.append(allocator_samples(self.original, file.allocator, process, shift))
        lines, parts = file.lines, self.parts
        parts["breaks"] += self._each(lines["graph_break"], lambda line: graph_break(line, process))
        parts["recompiles"] += self._each(lines["recompile"], lambda line: recompile(line, process))
        spans = self._each(lines["compile_span"], lambda line: compile_spans(line, process, shift))
        parts["compile_spans"] += [span for found in spans for span in found]
        syncs = self._each(lines["sync"], lambda line: sync(line, process))
        parts["syncs"] += {one.source: one for one in syncs}.values()  # the last counts highest
        parts["places"] += places(lines["place"], process)
        parts["roots"] += [text_of(line.get("name")) or "" for line in lines["root"]]

    def _each(self, lines: list[dict[str, Any]], convert: Callable[[dict[str, Any]], T]) -> list[T]:
        """Every line converted; one that cannot be is counted."""
        out = []
        for line in lines:
            try:
                out.append(convert(line))
            except MALFORMED:
                self.strange += 1
        return out

    def trace(self) -> Trace:
        """The original with everything added."""
        whole = self.original
        parts: dict[str, Any] = {name: tuple(values) for name, values in self.parts.items()}
        sidecar = Sidecar(
            modules=_joined(self.modules),
            captures=_joined(self.captures),
            allocator=_joined(self.allocator) if self.allocator else AllocatorSamples.absent(),
            **parts,
        )
        strings = pa.concat_arrays([whole.strings, pa.array(self.texts, pa.string())])
        processes = dataclasses.replace(whole.processes, rank=self.rank)
        return dataclasses.replace(
            whole,
            strings=strings,
            ranges=numbered(whole, self.steps),
            processes=processes,
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
        """What added to unix ns gives the trace's time; None where nothing tells."""
        marked = _marked_shift(self.original, process)
        if marked is not None:
            return marked
        origin = self.original.origin_ns
        return -origin if origin else None

    def _modules(
        self, columns: dict[str, list[Any]], process: int, shift: int | None
    ) -> ModuleCalls:
        names = [self._name(str(name)) for name in columns["module"]]
        return ModuleCalls(
            process=np.full(len(names), process),
            thread=self.threads.rows(process, columns["thread"]),
            module=np.array(names, np.int32),
            first_sequence=_integers(columns["first_seq"]),
            last_sequence=_integers(columns["last_seq"]),
            start=_shifted(columns["start_ns"], shift),
            end=_shifted(columns["end_ns"], shift),
        )

    def _capture(self, line: dict[str, Any], process: int, shift: int | None) -> CaptureRanges:
        ranges = [r for r in line.get("ranges", []) if isinstance(r, list) and len(r) >= 4]
        end = line.get("end_ns", 0)
        if not whole({"thread": 0, "id": 0, **line}, ("thread", "id")):
            raise ValueError("no thread or number")
        thread = self.threads.rows(process, [line.get("thread", 0)])
        return CaptureRanges(
            process=np.full(len(ranges), process),
            thread=np.repeat(thread, len(ranges)),
            capture=np.full(len(ranges), int(line.get("id", 0))),
            depth=_integers([r[1] for r in ranges]),
            start=_shifted([r[2] for r in ranges], shift),
            end=_shifted([end if r[3] is None else r[3] for r in ranges], shift),
            name=np.array([self._name(str(r[0])) for r in ranges], np.int32),
            category=np.array(
                [self._name(str(r[4])) if len(r) > 4 and r[4] else NO_NAME for r in ranges],
                np.int32,
            ),
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


def _integers(values: list[Any]) -> Column:
    return np.array([v if is_whole(v) else -1 for v in values], np.int64)


def _shifted(values: list[Any], shift: int | None) -> Column:
    """Times on the trace's clock; -1 where no clock joins them."""
    times = _integers(values)
    return np.full(len(times), -1) if shift is None else times + shift


def _joined(tables: list[Any]) -> Any:
    names = tables[0].columns()
    return type(tables[0])(
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in names}
    )
