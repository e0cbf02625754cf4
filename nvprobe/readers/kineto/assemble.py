"""From collected columns to a Trace: one time zero, one vocabulary, and what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from nvprobe.readers.input_errors import base_name, counted, printable, shown
from nvprobe.readers.kineto.captures import Captured, captured_nodes, unknown_captures
from nvprobe.readers.kineto.collect import COUNTERS, Collector
from nvprobe.readers.kineto.events import (
    copy_of,
    geometry,
    graph_nodes,
    plain_call,
    repeated,
    short_kernel,
)
from nvprobe.readers.kineto.messages import messages
from nvprobe.readers.kineto.metadata import (
    HOSTED,
    Columns,
    device_table,
    document,
    identities,
    impossible_to_zero,
    integer,
    rank_of,
    time_zero,
)
from nvprobe.readers.kineto.missing import missing_parts
from nvprobe.readers.kineto.reader import Reading
from nvprobe.trace import (
    NO_DEVICE,
    NO_NAME,
    Calls,
    Column,
    Flows,
    Frames,
    GraphNodes,
    MemoryEvents,
    Operators,
    OpKind,
    Ops,
    Overheads,
    Processes,
    Ranges,
    RangeSource,
    Source,
    Syncs,
    Threads,
    Trace,
)

_RANGE_KINDS = (
    ("annotations", RangeSource.ANNOTATION),
    ("modules", RangeSource.MODULE),
    ("operators", RangeSource.OPERATOR),
)
_ONE_EVENT = {
    "ops": ("correlation", "stream", "device", "name", "end", "start"),
    "calls": ("correlation", "tid", "name", "end", "start"),
    "operators": ("external", "tid", "name", "end", "start"),
    "annotations": ("external", "tid", "name", "end", "start"),
}
"""What events with the same id (the first of each) must share to be the same event."""
_LIKELY_ONE_EVENT = {
    "annotations": ("pid", "tid", "name", "end", "start"),
    "modules": ("pid", "tid", "name", "end", "start"),
    "frames": ("pid", "tid", "name", "end", "start"),
    "overheads": ("pid", "tid", "name", "end", "start"),
    "syncs": ("device", "stream", "correlation", "name", "end", "start"),
    "memory": ("tid", "address", "change", "start"),
    "flows": ("tid", "id", "begins", "start"),
}
_SYNC_COLUMNS = ("context", "stream", "correlation", "start", "end", "event")
_VERSIONS = ("schemaVersion", "cupti_version", "cuda_runtime_version", "cuda_driver_version")


def assemble(path: Path, collector: Collector, reading: Reading) -> Trace:
    """The Trace of everything collected; takes the columns out of ``collector``."""
    return _Assembly(path, collector, reading).trace()


class _Assembly:
    """One file on its way to a Trace."""

    def __init__(self, path: Path, collector: Collector, reading: Reading) -> None:
        self.path = path
        self.collector = collector
        self.names = collector.names
        self.damage = reading.damage
        self.about = document(reading.head, reading.tail)
        kinds = (*HOSTED, "ops", "syncs", "window", "window_end")
        self.rows = {kind: collector.columns(kind) for kind in kinds}
        self.notes: list[str] = []
        self._drop_repeated()
        self._drop_untimed()
        self._report_unknown()
        self.zero = time_zero(self.rows)
        for columns in self.rows.values():
            impossible_to_zero(columns, self.zero)
        self.ids = identities(self.rows)
        ids = np.concatenate([self.rows["ops"]["device"], self.rows["syncs"]["device"]])
        self.device_ids = np.unique(ids[ids >= 0])

    def trace(self) -> Trace:
        """All tables, columns let go as soon as they are used; the strings last."""
        start, end = self._window()
        missing, source = (
            tuple(missing_parts(self.rows, self.collector, self.about)),
            self._source(),
        )
        flows, memory = self._flows(), self._memory()
        overheads = Overheads(**self._named("overheads"))
        stacks = self.collector.python_stacks
        frames = Frames(**self._named("frames")) if stacks else Frames.absent()
        self._let_go("flows", "memory", "overheads", "frames", "window", "window_end")
        ranges, operators = self._ranges()
        self._let_go("operators", "annotations", "modules")
        captured = self._captured()
        missing += unknown_captures(captured.node, captured.created)
        calls, ops, syncs = self._calls(), self._ops(captured.node), self._syncs()
        nodes = captured.table(calls.process, calls.thread, calls.start)
        devices = device_table(self.about, self.device_ids, self.names.__getitem__)
        return Trace(
            sources=(source,),
            processes=self._processes(),
            threads=self._threads(),
            devices=devices,
            calls=calls,
            ops=ops,
            geometry=geometry(self.rows["ops"]),
            messages=messages(self.rows["ops"]),
            ranges=ranges,
            operators=operators,
            syncs=syncs,
            graph_nodes=nodes if len(nodes) else GraphNodes.absent(),
            overheads=overheads,
            frames=frames,
            flows=flows,
            memory=memory,
            start_ns=start,
            end_ns=end,
            origin_ns=integer(self.about, "baseTimeNanoseconds", 0) + self.zero,
            warnings=(*self.damage.warnings(shown(self.path)), *self.notes),
            missing=missing,
            strings=self._strings(),
        )

    def _let_go(self, *kinds: str) -> None:
        for kind in kinds:
            del self.rows[kind]

    def _drop_repeated(self) -> None:
        """Events that stand in the file twice count once.

        An id in both proves it; where it is proved of some, it holds for what has no id too.
        """
        dropped = 0
        for kind, same in _ONE_EVENT.items():
            again = repeated(self.rows[kind], same)
            again &= self.rows[kind][same[0]] > 0
            dropped += self._keep(kind, ~again)
        for kind, same in _LIKELY_ONE_EVENT.items() if dropped else ():
            dropped += self._keep(kind, ~repeated(self.rows[kind], same))
        if dropped:
            self.notes.append(
                f"{shown(self.path)}: {counted(dropped, 'repeated event')} counted once"
            )

    def _drop_untimed(self) -> None:
        """Host events without a possible time can own nothing."""
        dropped = 0
        for kind in HOSTED:
            columns = self.rows[kind]
            possible = (columns["start"] > 0) & (columns["end"] >= columns["start"])
            dropped += self._keep(kind, possible)
        if dropped:
            self.notes.append(
                f"{shown(self.path)}: left out {counted(dropped, 'host event')} "
                "with impossible times"
            )

    def _report_unknown(self) -> None:
        unknown = self.collector.unknown
        if unknown:
            names = ", ".join(printable(name, 40) for name in sorted(unknown)[:4])
            more = ", …" if len(unknown) > 4 else ""
            self.notes.append(
                f"{shown(self.path)}: left out {counted(sum(unknown.values()), 'event')} of "
                f"categories that nvprobe does not know ({names}{more})"
            )

    def _keep(self, kind: str, kept: Column) -> int:
        dropped = len(kept) - int(kept.sum())
        if dropped:
            self.rows[kind] = {name: values[kept] for name, values in self.rows[kind].items()}
        return dropped

    def _renamed(self, codes: Column, rename: object) -> Column:
        """Name rows after ``rename`` of each distinct text."""
        texts = list(self.names)
        used, inverse = np.unique(codes, return_inverse=True)
        new = [self.names[rename(texts[code])] for code in used]  # type: ignore[operator]
        return np.array(new, np.int32)[inverse]

    def _hosted(self, kind: str) -> Columns:
        columns = self.rows[kind]
        return {
            "process": self.ids.processes(columns["pid"]),
            "thread": self.ids.threads(columns),
        }

    def _named(self, kind: str) -> Columns:
        taken = {name: self.rows[kind][name] for name in ("start", "end", "name")}
        return {**self._hosted(kind), **taken}

    def _ranges(self) -> tuple[Ranges, Operators]:
        parts = [(self._named(kind), source) for kind, source in _RANGE_KINDS]
        joined = {key: np.concatenate([part[key] for part, _ in parts]) for key in parts[0][0]}
        lengths = [len(part["start"]) for part, _ in parts]
        none = np.full(sum(lengths), NO_NAME, np.int32)
        ranges = Ranges(
            **joined,
            domain=none,
            category=none,
            source=np.repeat([int(source) for _, source in parts], lengths),
        )
        columns = self.rows["operators"]
        operators = Operators(
            range=np.arange(len(none) - lengths[-1], len(none)),
            sequence=columns["sequence"],
            external=columns["external"],
            forward_thread=columns["forward_thread"],
            shapes=self._json(columns["shapes"]),
            types=self._json(columns["types"]),
            arguments=self._json(columns["arguments"]),
        )
        return ranges, operators

    def _json(self, codes: Column) -> Column:
        texts = [text.decode(errors="replace") for text in self.collector.json]
        rows = np.array([*(self.names[text] for text in texts), NO_NAME], np.int32)
        return rows[codes]

    def _calls(self) -> Calls:
        taken = self._named("calls")
        taken["name"] = self._renamed(taken["name"], plain_call)
        return Calls(**taken, correlation=self.rows["calls"]["correlation"])

    def _captured(self) -> Captured:
        ops, calls, names = self.rows["ops"], self.rows["calls"], list(self.names)
        return captured_nodes(ops, calls, names, graph_nodes(ops, calls, names))

    def _ops(self, graph_node: Column) -> Ops:
        columns = self.rows["ops"]
        if self.collector.seen[COUNTERS] and not len(graph_node):
            return Ops.absent()
        texts = list(self.names)
        used, inverse = np.unique(columns["name"], return_inverse=True)
        copies = [copy_of(texts[code]) for code in used]
        names = [self.names[copy.name] for copy in copies]
        shorts = [self.names[short_kernel(copy.name)] for copy in copies]
        is_copy = columns["kind"] == OpKind.MEMCPY

        def of_copies(values: list[int]) -> Column:
            """Values of copies for every op, -1 for the others."""
            return np.where(is_copy, np.array(values, np.int64)[inverse], -1)

        name = np.array(names, np.int32)[inverse]
        is_kernel = columns["kind"] == OpKind.KERNEL
        return Ops(
            kind=columns["kind"],
            process=self._process_of_ops(),
            device=self._device_rows(columns["device"]),
            context=columns["context"],
            stream=columns["stream"],
            correlation=columns["correlation"],
            start=columns["start"],
            end=columns["end"],
            name=np.where(is_kernel, columns["name"], name),
            short_name=np.where(is_kernel, np.array(shorts, np.int32)[inverse], name),
            graph_node=graph_node,
            bytes=np.where(is_kernel, -1, columns["bytes"]),
            copy_kind=of_copies([copy.kind for copy in copies]),
            source_memory=of_copies([copy.source for copy in copies]),
            target_memory=of_copies([copy.target for copy in copies]),
        )

    def _process_of_ops(self) -> Column:
        """The process whose call has the correlation id; the first process where none has."""
        calls, ops = self.rows["calls"], self.rows["ops"]
        if len(self.ids.pids) == 1 or not len(calls["start"]):
            return np.zeros(len(ops["start"]), np.int32)
        order = np.argsort(calls["correlation"], kind="stable")
        known = calls["correlation"][order]
        at = np.searchsorted(known, ops["correlation"]).clip(0, len(known) - 1)
        process = self.ids.processes(calls["pid"])[order][at]
        return np.where(known[at] == ops["correlation"], process, 0).astype(np.int32)

    def _device_rows(self, ids: Column) -> Column:
        rows = np.searchsorted(self.device_ids, ids).astype(np.int32)
        return np.where(ids >= 0, rows, NO_DEVICE)

    def _syncs(self) -> Syncs:
        columns = self.rows["syncs"]
        return Syncs(
            process=np.zeros(len(columns["start"]), np.int32),
            device=self._device_rows(columns["device"]),
            **{key: columns[key] for key in _SYNC_COLUMNS},
            name=columns["name"],
        )

    def _flows(self) -> Flows:
        columns = self.rows["flows"]
        hosted = self._hosted("flows")
        begins, ends = (np.flatnonzero(columns["begins"] == side) for side in (True, False))
        begins = begins[np.argsort(columns["id"][begins], kind="stable")]
        known = columns["id"][begins]
        at = np.searchsorted(known, columns["id"][ends])
        found = at < len(known)
        found[found] = known[at[found]] == columns["id"][ends][found]
        begin, end = begins[at[found]], ends[found]
        return Flows(
            process=hosted["process"][begin],
            thread=hosted["thread"][begin],
            time=columns["start"][begin],
            end_thread=hosted["thread"][end],
            end_time=columns["start"][end],
        )

    def _memory(self) -> MemoryEvents:
        columns = self.rows["memory"]
        on_gpu = (columns["device_type"] > 0) & np.isin(columns["device_id"], self.device_ids)
        return MemoryEvents(
            **self._hosted("memory"),
            time=columns["start"],
            device=np.where(on_gpu, self._device_rows(columns["device_id"]), NO_DEVICE),
            address=columns["address"],
            bytes=columns["change"],
            allocated=columns["allocated"],
            reserved=columns["reserved"],
        )

    def _processes(self) -> Processes:
        known = self.collector.process_names
        pids = self.ids.pids
        names = [self.names[known[int(pid)]] if int(pid) in known else NO_NAME for pid in pids]
        alone = len(pids) == 1 and self.collector.label is None
        rank = rank_of(self.about, self.path) if alone else -1
        size = integer(self.about.get("distributedInfo"), "world_size")
        return Processes(
            key=pids,
            pid=pids,
            name=np.array(names, np.int32),
            rank=np.full(len(pids), rank),
            world_size=np.full(len(pids), size),
        )

    def _threads(self) -> Threads:
        known = self.collector.thread_names
        names = [self.names[known[int(t)]] if int(t) in known else NO_NAME for t in self.ids.tid]
        return Threads(process=self.ids.process, tid=self.ids.tid, name=np.array(names, np.int32))

    def _window(self) -> tuple[int, int]:
        """What the profiler says it recorded, and everything sound that lies outside of it."""
        spans = [c for kind, c in self.rows.items() if kind not in ("memory", "flows")]
        sound = [(c["start"] > 0) & (c["end"] >= c["start"]) for c in spans]
        starts = np.concatenate([c["start"][kept] for c, kept in zip(spans, sound, strict=True)])
        ends = np.concatenate([c["end"][kept] for c, kept in zip(spans, sound, strict=True)])
        return (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)

    def _source(self) -> Source:
        versions = {key: str(self.about[key])[:40] for key in _VERSIONS if key in self.about}
        if len(self.ids.pids) > 1 and self.damage.lost and not self.damage.documents:
            self.notes.append(
                f"{shown(self.path)}: several writers (processes) wrote into this one broken file; "
                "give each rank a file of its own"
            )
        return Source("torch-trace", base_name(self.path), None, self.damage.lost, versions)

    def _strings(self) -> pa.StringArray:
        try:
            return pa.array(list(self.names), pa.string())
        except UnicodeEncodeError:  # lone surrogates, written as escapes
            clean = [text.encode(errors="replace").decode() for text in self.names]
            return pa.array(clean, pa.string())
