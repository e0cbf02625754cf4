"""What a torch trace says around its events: devices, versions, rank, processes and threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nvprobe.trace import NO_NAME, Column, Devices

_KNOWN = (
    "schemaVersion",
    "baseTimeNanoseconds",
    "deviceProperties",
    "distributedInfo",
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
    "with_stack",
    "record_shapes",
    "profile_memory",
)
_SIMPLE_VALUE = rb'"%s"\s*:\s*(\d+|\[\s*(?:\{[^{}]*\}[\s,]*)+\]|\{[^{}]*\})'
_FILE_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[._-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def document(head: bytes, tail: bytes) -> dict[str, Any]:
    """The top-level keys besides the events; what is damaged is read key by key."""
    if not head.strip():
        return {}
    for end in (tail, b"}"):
        try:
            found = msgspec.json.decode(head + b"[]" + end)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(found, dict):
            return {str(key): value for key, value in found.items()}
    return _key_by_key(head + b" " + tail)


def _key_by_key(text: bytes) -> dict[str, Any]:
    """The numbers, and the flat objects, of the keys that matter."""
    found: dict[str, Any] = {}
    for key in _KNOWN:
        match = re.search(_SIMPLE_VALUE % key.encode(), text)
        if match:
            try:
                found[key] = msgspec.json.decode(match[1])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
    return found


def integer(values: Any, key: str, default: int = -1) -> int:
    """An integer of a metadata object, ``default`` where it is absent or something else."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else default


def rank_of(found: dict[str, Any], path: Path) -> int:
    """The rank that the file says, else the one its name says (``rank_3.json``), else -1."""
    rank = integer(found.get("distributedInfo"), "rank")
    if rank >= 0:
        return rank
    match = _FILE_RANK.search(path.name)
    return int(match[1]) if match else -1


def device_table(found: dict[str, Any], ids: Column, name: Callable[[str], int]) -> Devices:
    """One row for each device id that appears, with the properties the file has of it.

    Clock, bandwidth and blocks an SM stand in no file: they follow from the device's name and
    generation, where these are known.
    """
    listed = found.get("deviceProperties")
    known = {integer(one, "id"): one for one in listed} if isinstance(listed, list) else {}
    rows = [known.get(int(id_), {}) for id_ in ids]

    def of(*keys: str) -> Column:
        """The greatest of some properties, per device."""
        return np.array([max(integer(row, key) for key in keys) for row in rows], np.int64)

    names = [row.get("name") if isinstance(row, dict) else None for row in rows]
    major, minor, warps = of("computeMajor"), of("computeMinor"), of("warpSize")
    sheets = np.array([clock_and_bandwidth(n) for n in names], np.int64).reshape(-1, 2)
    blocks = [
        blocks_per_sm(n, int(warps[i]), int(major[i]), int(minor[i])) for i, n in enumerate(names)
    ]
    warp = np.maximum(warps, 1)
    threads = of("maxThreadsPerMultiprocessor")
    unknown = np.full(len(rows), -1, np.int64)
    return Devices(
        id=ids,
        name=np.array([name(n) if isinstance(n, str) and n else NO_NAME for n in names], np.int32),
        sm_count=of("numSms"),
        clock_hz=sheets[:, 0],
        memory_bytes=of("totalGlobalMem"),
        bandwidth_bytes_s=sheets[:, 1],
        l2_bytes=unknown,
        compute_major=major,
        compute_minor=minor,
        max_warps_per_sm=np.where(threads > 0, threads // warp, -1),
        max_blocks_per_sm=np.array(blocks, np.int64),
        max_registers_per_sm=of("regsPerMultiprocessor"),
        max_shared_per_sm=of("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),
    )


UNKNOWN = -1

_SHEETS: tuple[tuple[str, int, int], ...] = (
    (r"B200$", 1965, 8000),
    (r"GH200 120GB", 1980, 4023),
    (r"H200$", 1980, 4814),
    (r"H100 80GB HBM3", 1980, 3350),
    (r"H100 PCIe", 1755, 2039),
    (r"A100-SXM4-40GB", 1410, 1555),
    (r"A100-SXM4-80GB", 1410, 2039),
    (r"A100-PCIE-40GB", 1410, 1555),
    (r"A100 80GB PCIe", 1410, 1935),
    (r"A10G$", 1710, 600),
    (r"A10$", 1695, 600),
    (r"L40S$", 2520, 864),
    (r"L4$", 2040, 300),
    (r"T4$", 1590, 320),
    (r"V100-SXM2-(?:16|32)GB", 1530, 900),
    (r"V100-PCIE-(?:16|32)GB", 1380, 900),
)
"""(end of the name, MHz, GB/s)."""

_BLOCKS = {
    (6, 0): 32, (6, 1): 32, (7, 0): 32, (7, 2): 32, (7, 5): 16, (8, 0): 32, (8, 6): 16,
    (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32,
}  # fmt: skip
"""Most resident blocks of an SM by compute capability."""


def clock_and_bandwidth(name: object) -> tuple[int, int]:
    """(Hz, bytes/s) of a GPU by its name; ``UNKNOWN`` both for any other."""
    if isinstance(name, str):
        for pattern, megahertz, gigabytes in _SHEETS:
            if re.search(rf"^(?:NVIDIA |Tesla )?{pattern}", name):
                return megahertz * 10**6, gigabytes * 10**9
    return UNKNOWN, UNKNOWN


def blocks_per_sm(name: object, warp: int, major: int, minor: int) -> int:
    """Most resident blocks; AMD's GPUs have capabilities of the same numbers."""
    if not isinstance(name, str) or not name or re.search("AMD|Radeon|Instinct", name):
        return UNKNOWN
    return _BLOCKS.get((major, minor), UNKNOWN) if warp == 32 else UNKNOWN


HOSTED = ("operators", "annotations", "modules", "frames", "calls", "overheads", "memory", "flows")
"""Kinds of events that happen on a thread of the host."""
_SECOND = 1_000_000_000

Columns = dict[str, Column]


def time_zero(rows: dict[str, Columns]) -> int:
    """The last whole second before the first sound event: no event has time 0."""
    sound = (columns["start"][columns["end"] >= columns["start"]] for columns in rows.values())
    firsts = [int(start[start > 0].min()) for start in sound if (start > 0).any()]
    return (min(firsts, default=1) - 1) // _SECOND * _SECOND


def impossible_to_zero(columns: Columns, zero: int) -> None:
    """Shift to ``zero``; what has no time (0 or below) keeps the time 0."""
    unknown = columns["start"] <= 0
    for name in ("start", "end"):
        columns[name] = np.where(unknown, 0, columns[name] - zero)


@dataclass(frozen=True, slots=True)
class Identities:
    """Rows of the process and thread tables for the pids and tids of a file."""

    pids: Column
    """Distinct pids, the row order of the process table."""
    process: Column
    """Process row of each thread."""
    tid: Column
    """tid of each thread."""
    tids: Column
    """Distinct tids, sorted."""
    row: Column
    """Thread row of each (process, place among ``tids``), -1 where there is none."""

    def processes(self, pid: Column) -> Column:
        """Process row of each pid; what names an unknown one belongs to the first."""
        order = np.argsort(self.pids)
        at = np.searchsorted(self.pids[order], pid).clip(0, len(order) - 1)
        return np.where(self.pids[order][at] == pid, order[at], 0).astype(np.int32)

    def threads(self, columns: Columns) -> Column:
        """Thread row of each event."""
        place = np.searchsorted(self.tids, columns["tid"])
        return self.row[self.processes(columns["pid"]), place].astype(np.int32)


def identities(rows: dict[str, Columns]) -> Identities:
    """All processes and threads of the events of ``rows``.

    A trace is one process, unless several pids make CUDA calls (several traces in one file).
    The pid with the most calls, operators and annotations comes first.
    """
    calling = rows["calls"]["pid"]
    working = np.concatenate([rows["operators"]["pid"], rows["annotations"]["pid"], calling])
    pids, counts = np.unique(working, return_counts=True)
    pids = pids[np.argsort(-counts, kind="stable")]
    if len(np.unique(calling)) > 1:
        pids = pids[np.isin(pids, calling)]
    pids = pids[: max(len(np.unique(calling)), 1)] if len(pids) else np.zeros(1, np.int64)
    tids = np.unique(np.concatenate([rows[kind]["tid"] for kind in HOSTED]))
    ids = Identities(pids, pids, tids, tids, np.full((len(pids), max(len(tids), 1)), -1, np.int64))
    seen = np.zeros(ids.row.shape, bool)
    for kind in HOSTED:
        place = np.searchsorted(tids, rows[kind]["tid"])
        seen[ids.processes(rows[kind]["pid"]), place] = True
    process, place = np.nonzero(seen)
    ids.row[process, place] = np.arange(len(process))
    return Identities(pids, process, tids[place], tids, ids.row)
