"""Small synthetic nsys exports whose tables follow the real ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROCESS = (1 << 48) | (4001 << 24)
"""Serialized global id of process 4001; its threads are ``PROCESS | tid``."""
THREAD = PROCESS | 4001

DDL: dict[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, "
    "gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, "
    "dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, "
    "copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL",
    "CUDA_GRAPH_EVENTS": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL, "
    "graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, "
    "smCount INTEGER, clockRate INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, "
    "l2CacheSize INTEGER, computeMajor INTEGER, computeMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "ANALYSIS_DETAILS": "globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, "
    "startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT",
}

Row = Mapping[str, Any]


def write(
    path: Path, tables: Mapping[str, Sequence[Row]], ddl: Mapping[str, str] | None = None
) -> Path:
    """An export with these rows; columns not given are NULL, or 0 where NULL is not allowed."""
    layouts = {**DDL, **(ddl or {})}
    database = sqlite3.connect(path)
    for table, rows in tables.items():
        database.execute(f'CREATE TABLE "{table}" ({layouts[table]})')
        info = database.execute(f'PRAGMA table_info("{table}")').fetchall()
        for row in rows:
            full = {name: 0 for _, name, _, required, _, _ in info if required} | dict(row)
            names = ", ".join(f'"{name}"' for name in full)
            marks = ", ".join("?" * len(full))
            database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [*full.values()])
    database.commit()
    database.close()
    return path


def strings(*texts: str, first: int = 1) -> list[Row]:
    """Rows of StringIds with consecutive ids."""
    return [{"id": first + place, "value": text} for place, text in enumerate(texts)]


def pushed(text: str | None, start: Any, end: Any, **more: Any) -> Row:
    """A push/pop range of the main thread."""
    return {"text": text, "start": start, "end": end, "eventType": 59, "globalTid": THREAD, **more}


def launch(correlation: int, start: Any, end: Any, name: int = 1, **more: Any) -> Row:
    """A call of the main thread."""
    return {
        "start": start,
        "end": end,
        "globalTid": THREAD,
        "correlationId": correlation,
        "nameId": name,
        **more,
    }


def kernel(correlation: int, start: Any, end: Any, name: int = 2, **more: Any) -> Row:
    """A kernel of process 4001."""
    return {
        "start": start,
        "end": end,
        "globalPid": PROCESS,
        "correlationId": correlation,
        "streamId": 7,
        "demangledName": name,
        "shortName": name,
        **more,
    }


def texts(trace: Any, rows: Iterable[int]) -> list[str | None]:
    """The strings of name rows."""
    return [trace.text(int(row)) for row in rows]
