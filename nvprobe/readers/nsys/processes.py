"""Who and where: processes, threads and GPUs of an nsys export as rows of the Trace's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Handle, Rows, StringPool, Tables
from nvprobe.readers.nsys.versions import (
    METRICS,
    PYTHON_BACKTRACES,
    PYTHON_SAMPLES,
    event_columns,
)
from nvprobe.trace import NO_DEVICE, Column

_TID_BITS = 24
_TID_MASK = (1 << _TID_BITS) - 1

_THREADED = (
    *event_columns("globalTid", "endGlobalTid"),
    *((table, "globalTid") for table in (PYTHON_SAMPLES, PYTHON_BACKTRACES)),
)
_DEVICED, _PROCESSED = (
    [table for table, _ in event_columns(column)] for column in ("deviceId", "globalPid")
)


def process_key(global_id: Column) -> Column:
    """What identifies a process within the file, for serialized global pids and tids alike."""
    return np.where(global_id == UNKNOWN, -1, global_id >> _TID_BITS)


@dataclass(frozen=True)
class ProcessIndex:
    """Processes (by key) and threads (by serialized global id), each sorted."""

    keys: Column
    pids: Column
    process_names: Handle
    ranks: Column
    """MPI rank of each process, -1 where it has none."""
    tids: Column
    thread_process: Column
    thread_names: Column
    """int64 string id from ``ThreadNames``, ``UNKNOWN`` where there is none."""
    exported: ExportRows

    @classmethod
    def found(cls, exported: ExportRows, tables: Tables, pool: StringPool) -> ProcessIndex:
        """All processes and threads with events, or listed in the file."""
        listed = tables.read("PROCESSES")
        named = tables.read("ThreadNames")
        tids = _union(
            [
                exported.encoded(table, column)[0]
                for table, column in _THREADED
                if table in exported.rows
            ]
            + ([named.ints("globalTid", UNKNOWN)] if named else [])
        )
        pids = _union(
            [
                exported.encoded(table, "globalPid")[0]
                for table in _PROCESSED
                if table in exported.rows
            ]
            + ([listed.ints("globalPid", UNKNOWN)] if listed else [])
        )
        tids = tids[tids != UNKNOWN] if not _lonely(exported, tids) else tids
        keys = np.unique(np.concatenate([process_key(tids), process_key(pids)]))
        if np.count_nonzero(keys >= 0) == 1:  # a NULL can only mean the one process there is
            keys = keys[keys >= 0]
        pid, names = _describe(keys, listed)
        return cls(
            keys=keys,
            pids=pid,
            process_names=pool.add(names),
            ranks=_ranks(keys, tables.read("MPI_RANKS")),
            tids=tids,
            thread_process=_place(keys, process_key(tids)),
            thread_names=_last(tids, named),
            exported=exported,
        )

    def process(self, table: str) -> Column:
        """int32 process row of each op or synchronization record of ``table``."""
        values, codes = self.exported.encoded(table, "globalPid")
        return _place(self.keys, process_key(values))[codes]

    def thread(self, table: str, column: str = "globalTid") -> Column:
        """int32 thread row of each row of ``table``, -1 where ``endGlobalTid`` is unknown."""
        values, codes = self.exported.encoded(table, column)
        return _place(self.tids, values)[codes]

    @property
    def thread_ids(self) -> Column:
        """The operating system's thread ids, -1 for the unknown thread."""
        return np.where(self.tids == UNKNOWN, -1, self.tids & _TID_MASK)


def _lonely(exported: ExportRows, tids: Column) -> bool:
    """Whether events without a thread exist, so that an unknown thread has to be a row."""
    columns = [(t, c) for t, c in _THREADED if t in exported.rows and c == "globalTid"]
    return any(UNKNOWN in exported.encoded(table, column)[0][:1] for table, column in columns)


def _union(parts: list[Column]) -> Column:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _place(ordered: Column, values: Column) -> Column:
    """int32 rows of ``values`` in ``ordered``; an unknown one is the only row or -1."""
    if len(ordered) == 1:
        return np.zeros(len(values), np.int32)
    place = np.searchsorted(ordered, values)
    place[place == len(ordered)] = 0
    known = ordered[place] == values if len(ordered) else np.zeros(len(values), bool)
    return np.where(known, place, -1).astype(np.int32)


def _describe(keys: Column, listed: Rows | None) -> tuple[Column, pa.Array]:
    """Operating system pid and name of each process; of a path its last part."""
    pids = np.where(keys < 0, -1, keys & _TID_MASK)
    names: list[str | None] = [None] * len(keys)
    if listed is not None:
        rows = _place(keys, process_key(listed.ints("globalPid", UNKNOWN)))
        texts, recorded = listed.texts("name").to_pylist(), listed.ints("pid", -1)
        for row, pid, name in zip(rows.tolist(), recorded.tolist(), texts, strict=True):
            if row >= 0:
                pids[row] = pid if pid >= 0 else pids[row]
                path = name is not None and name.startswith("/")
                names[row] = name.rpartition("/")[2] if path else name
    return pids, pa.array(names, pa.string())


def _ranks(keys: Column, ranked: Rows | None) -> Column:
    """The MPI rank that a thread of each process recorded."""
    ranks = np.full(len(keys), -1, np.int64)
    if ranked is not None:
        rows = _place(keys, process_key(ranked.ints("globalTid", UNKNOWN)))
        ranks[rows[rows >= 0]] = ranked.ints("rank", -1)[rows >= 0]
    return ranks


def _last(tids: Column, named: Rows | None) -> Column:
    """String id of the last name each thread was given."""
    ids = np.full(len(tids), UNKNOWN, np.int64)
    if named is not None and len(named):
        ids[_place(tids, named.ints("globalTid", UNKNOWN))] = named.ints("nameId", UNKNOWN)
    return ids


_LIMITS: Mapping[str, tuple[str, ...]] = {
    "sm_count": ("smCount", "numMultiprocessors"),
    "clock_hz": ("clockRate", "coreClockRate"),
    "memory_bytes": ("totalMemory", "globalMemorySize"),
    "bandwidth_bytes_s": ("memoryBandwidth",),
    "l2_bytes": ("l2CacheSize",),
    "compute_major": ("computeMajor", "computeCapabilityMajor"),
    "compute_minor": ("computeMinor", "computeCapabilityMinor"),
    "max_warps_per_sm": ("maxWarpsPerSm", "maxWarpsPerMultiprocessor"),
    "max_blocks_per_sm": ("maxBlocksPerSm", "maxBlocksPerMultiprocessor"),
    "max_registers_per_sm": ("maxRegistersPerSm", "maxRegistersPerMultiprocessor"),
    "max_shared_per_sm": ("maxShmemPerSm", "maxSharedMemoryPerMultiprocessor"),
}
"""Device limits and their columns in ``TARGET_INFO_GPU`` and (2020) ``TARGET_INFO_CUDA_GPU``."""

_UNITS = {"coreClockRate": 1000, "globalMemorySize": 1 << 20}
"""2020 counts in kHz and MiB; its bandwidth overflows 32 bits and is not read."""


@dataclass(frozen=True)
class Gpus:
    """Physical GPUs, and which of them an ordinal of a process is."""

    ids: Column
    names: Handle
    limits: dict[str, Column]
    ordinals: dict[tuple[int, int], int]
    """(pid, CUDA ordinal) → physical id, where the file has it."""
    index: ProcessIndex

    @classmethod
    def found(
        cls, index: ProcessIndex, tables: Tables, pool: StringPool, sampled: Column | None = None
    ) -> Gpus:
        """All GPUs that are described or used, or of these types of ``sampled`` metrics."""
        gpus, cuda = tables.read("TARGET_INFO_GPU"), tables.read("TARGET_INFO_CUDA_GPU")
        ordinals = _ordinals(tables.read("TARGET_INFO_CUDA_DEVICE"), gpus, cuda)
        described = [_describe_gpus(rows) for rows in (gpus, cuda) if rows is not None]
        used = {
            ordinals.get((pid, ordinal), ordinal)
            for pid, ordinal in _used(index)
            if ordinal != UNKNOWN
        } | _sampled(index.exported, sampled)
        known: dict[int, dict[str, object]] = {}
        for device, facts in (item for table in reversed(described) for item in table.items()):
            known.setdefault(device, {}).update(facts)
        ids = sorted(used | known.keys())
        facts_of = [known.get(device, {}) for device in ids]
        return cls(
            ids=np.array(ids, np.int64),
            names=pool.add(pa.array([facts.get("name") for facts in facts_of], pa.string())),
            limits={limit: _column(facts_of, limit) for limit in _LIMITS},
            ordinals=ordinals,
            index=index,
        )

    def device(self, table: str, processes: Column) -> Column:
        """int32 device row of each row of ``table``, ``NO_DEVICE`` where it has none."""
        values, codes = self.index.exported.encoded(table, "deviceId")
        if not len(codes):
            return np.empty(0, np.int32)
        pairs = processes.astype(np.int64) * len(values) + codes
        seen = np.unique(pairs)
        rows = np.array([self._row(int(pair), values) for pair in seen], np.int32)
        return rows[np.searchsorted(seen, pairs)]

    def _row(self, pair: int, ordinals: Column) -> int:
        process, place = divmod(pair, len(ordinals))
        ordinal = int(ordinals[place])
        if ordinal == UNKNOWN:
            return NO_DEVICE
        pid = int(self.index.pids[process]) if process >= 0 else -1
        return int(np.searchsorted(self.ids, self.ordinals.get((pid, ordinal), ordinal)))


def _used(index: ProcessIndex) -> set[tuple[int, int]]:
    """(pid, ordinal) pairs that events name; pids and ordinals are few."""
    pairs: set[tuple[int, int]] = set()
    for table, _ in index.exported.get(*_DEVICED):
        devices, codes = index.exported.encoded(table, "deviceId")
        if not len(devices):
            continue
        process = index.process(table)
        for pair in np.unique(process.astype(np.int64) * len(devices) + codes).tolist():
            row, place = divmod(pair, len(devices))
            pairs.add((int(index.pids[row]) if row >= 0 else -1, int(devices[place])))
    return pairs


def metric_devices(types: Column) -> Column:
    """Physical GPU of each metric type: its lowest byte."""
    devices: Column = types & 0xFF
    return devices


def _sampled(exported: ExportRows, types: Column | None) -> set[int]:
    """GPUs whose metrics were sampled."""
    if types is None:
        types = (
            exported.encoded(METRICS, "typeId")[0] if METRICS in exported.rows else np.empty(0, int)
        )
    return set(metric_devices(types).tolist())


def _ordinals(
    mapped: Rows | None, gpus: Rows | None, cuda: Rows | None
) -> dict[tuple[int, int], int]:
    """(pid, ordinal) → physical GPU: recorded since 2025, by PCI bus before."""
    if mapped is not None and len(mapped):
        triples = zip(
            mapped.ints("pid", -1).tolist(),
            mapped.ints("cudaId", -1).tolist(),
            mapped.ints("gpuId", -1).tolist(),
            strict=True,
        )
        return {(pid, ordinal): gpu for pid, ordinal, gpu in triples if gpu >= 0}
    if gpus is None or cuda is None:
        return {}
    at_bus = dict(zip(gpus.texts("busLocation").to_pylist(), _ids(gpus), strict=True))
    buses = cuda.texts("pciBusId").to_pylist()
    owners = zip(cuda.ints("pid", -1).tolist(), _ids(cuda), buses, strict=True)
    return {(pid, own): at_bus[bus] for pid, own, bus in owners if bus in at_bus and bus}


def _ids(rows: Rows) -> list[int]:
    return [int(i) for i in rows.ints("id" if rows.has("id") else "deviceId", -1).tolist()]


def _describe_gpus(rows: Rows) -> dict[int, dict[str, object]]:
    """Name and limits by device id; what the table does not have is left out."""
    columns: dict[str, list[object]] = {"name": rows.texts("name").to_pylist()}
    for limit, aliases in _LIMITS.items():
        for alias in aliases:
            if rows.has(alias):
                unit = _UNITS.get(alias, 1)
                columns[limit] = [v * unit if v >= 0 else -1 for v in rows.ints(alias, -1).tolist()]
    out: dict[int, dict[str, object]] = {}
    for place, device in enumerate(_ids(rows)):
        out.setdefault(device, {name: values[place] for name, values in columns.items()})
    return out


def _column(facts_of: list[dict[str, object]], limit: str) -> Column:
    return np.array([facts.get(limit, -1) for facts in facts_of], np.int64)
