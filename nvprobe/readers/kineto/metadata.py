"""What stands around the events of a torch trace: device properties, versions, the rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nvprobe.readers.kineto.data_sheets import blocks_per_sm, clock_and_bandwidth
from nvprobe.trace import NO_NAME, Column, Devices

__all__ = ["device_table", "document", "integer", "rank_of"]

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
