"""What differs between versions of nsys: tables, columns and their types, ids of events.

Any table or column may be absent, and users add their own. So everything is looked up by name, read
as the type declared here whatever the file stores, and all else is ignored. docs/inputs.md says
which version has what. What readers allow for, by the version that writes it:

* 2020: tables of GPUs have other columns, in kHz and MiB (``processes``);
* 2020 to 2022: GPU metrics are JSON in ``GENERIC_EVENTS`` (``metrics``);
* 2022: nodes of CUDA graphs are in ``CUDA_GRAPH_EVENTS`` (``gpu``);
* older exports keep driver calls in a table of their own, newer ones with the runtime's (``host``);
* before 2025: a process's CUDA ordinals follow from PCI buses (``processes``);
* 2024.6 and later: payloads as bytes, in others as JSON (``payloads``);
* 2025 and 2026: Python stacks are NVTX marks (``python_stacks``);
* 2026: syncs and CUDA events may say device 0 whatever their context (``gpu.by_context``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

_TIMES = "start end"
_OP = f"{_TIMES} deviceId contextId streamId correlationId globalPid"

LIBRARIES = {
    "CUBLAS_EVENTS": "cuBLAS",
    "CUDNN_EVENTS": "cuDNN",
    "MPI_COLLECTIVES_EVENTS": "MPI",
    "MPI_P2P_EVENTS": "MPI",
    "MPI_START_WAIT_EVENTS": "MPI",
    "MPI_OTHER_EVENTS": "MPI",
    "UCP_EVENTS": "UCX",
    "UCP_SUBMIT_EVENTS": "UCX",
    "UCP_PROGRESS_EVENTS": "UCX",
}
"""Tables of calls of a traced library: they become ranges in a domain of this name."""

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
OPS = (
    KERNELS,
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
CALLCHAINS = "CUDA_CALLCHAINS"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
METRICS = "GPU_METRICS"
CPU_FAULTS, GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
OS_CALLS, OS_STACKS = "OSRT_API", "OSRT_CALLCHAINS"
SAMPLES, SAMPLE_STACKS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
PYTHON_SAMPLES, PYTHON_BACKTRACES = "PYTHON_SAMPLES", "PYTHON_BACKTRACES"
"""Not tables of an export: NVTX marks that are Python stacks (`python_stacks`)."""
SCHEDULE = "SCHED_EVENTS"

TIMES_OF = (
    *((table, ()) for table in (*OPS, CALLCHAINS, OS_STACKS, SAMPLE_STACKS, CUDA_EVENTS)),
    *((table, ("start", "end")) for table in (*CALLS, *OVERHEADS, SYNCS, OS_CALLS, GPU_FAULTS)),
    *((table, ("start",)) for table in ("NVTX_EVENTS", *LIBRARIES)),
    *((table, ("start",)) for table in ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")),
    *((table, ("start",)) for table in (SAMPLES, SCHEDULE, MEMORY, CPU_FAULTS)),
    (METRICS, ("timestamp",)),
)
"""Every event table, and the times without which its rows cannot be placed."""

COLUMNS: dict[str, str] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_OP} demangledName shortName graphNodeId gridX gridY gridZ "
    "blockX blockY blockZ registersPerThread staticSharedMemory dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_OP} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OP} bytes memKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_OP} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_TIMES} globalTid correlationId nameId callchainId",
    "CUPTI_ACTIVITY_KIND_DRIVER": f"{_TIMES} globalTid correlationId nameId callchainId",
    "CUDA_CALLCHAINS": "id symbol stackDepth",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_OP} eventId eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp deviceId contextId streamId correlationId "
    "globalPid eventId eventSyncId",
    "NVTX_EVENTS": f"{_TIMES} eventType category text globalTid endGlobalTid textId domainId "
    "int64Value uint64Value int32Value uint32Value binaryData "
    "jsonText jsonTextId",
    "CUDA_GRAPH_NODE_EVENTS": "start globalTid graphNodeId originalGraphNodeId",
    "CUDA_GRAPH_EVENTS": "start globalTid graphNodeId originalGraphNodeId",
    "PROFILER_OVERHEAD": f"{_TIMES} globalTid nameId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": f"{_TIMES} globalTid nameId",
    **dict.fromkeys(LIBRARIES, f"{_TIMES} globalTid nameId textId"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId address bytes memKind "
    "memoryOperationType correlationId",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "start globalPid address",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": f"{_TIMES} globalPid deviceId address numberOfPageFaults",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId metricId metricName",
    "GENERIC_EVENTS": "rawTimestamp timestamp typeId data",
    "GENERIC_EVENT_SOURCES": "sourceId nameId data",
    "GENERIC_EVENT_TYPES": "typeId sourceId",
    "OSRT_API": f"{_TIMES} globalTid nameId nestingLevel callchainId",
    "OSRT_CALLCHAINS": "id symbol stackDepth",
    "COMPOSITE_EVENTS": "id start cpu globalTid",
    "SAMPLING_CALLCHAINS": "id symbol stackDepth",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name type payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx flags type name arrayOrUnionDetail "
    "offset",
    "NVTX_PAYLOAD_ENUMS": "domainId schemaId size",
    "NVTX_PAYLOAD_ENUM_ENTRIES": "domainId schemaId name value isFlag",
    "MPI_RANKS": "globalTid rank",
    "StringIds": "id value",
    "ThreadNames": "nameId globalTid",
    "PROCESSES": "globalPid pid name",
    "TARGET_INFO_GPU": "id deviceId name busLocation smCount clockRate totalMemory "
    "memoryBandwidth l2CacheSize computeMajor computeMinor maxWarpsPerSm maxBlocksPerSm "
    "maxRegistersPerSm maxShmemPerSm",
    "TARGET_INFO_CUDA_GPU": "deviceId pid name pciBusId numMultiprocessors coreClockRate "
    "globalMemorySize l2CacheSize computeCapabilityMajor "
    "computeCapabilityMinor maxWarpsPerMultiprocessor maxBlocksPerMultiprocessor "
    "maxRegistersPerMultiprocessor maxSharedMemoryPerMultiprocessor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "ANALYSIS_DETAILS": "duration",
    "DIAGNOSTIC_EVENT": "severity text",
    "META_DATA_EXPORT": "name value",
    "EXPORT_META_DATA": "name value",
}
"""What is read of each table. A table may carry a suffix ``_V2``, ``_V3``, … of its layout."""

_TEXTS = frozenset(
    {"text", "value", "name", "data", "jsonText", "busLocation", "pciBusId", "metricName"}
)
_NUMBERS = frozenset({("GPU_METRICS", "value"), ("NVTX_PAYLOAD_ENUM_ENTRIES", "value")})
_BLOBS = frozenset({("NVTX_EVENTS", "binaryData")})
RARE = frozenset(("NVTX_EVENTS", column) for column in ("binaryData", "jsonText", "jsonTextId"))
"""Columns that most exports have and few fill."""

MARKERS = frozenset({"StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS"})
"""A database with none of these was not written by ``nsys export``."""

OLDEST = (2020, 1)
"""The oldest supported nsys: what an older one exported is read as far as its tables fit."""

LONGEST_TIME = 2**61
"""Times beyond ± this many nanoseconds (73 years) are impossible: sums of them would wrap."""


class Event(IntEnum):
    """``NVTX_EVENTS.eventType``; the second of a pair was imported from a text file (NVTXT)."""

    CATEGORY = 33
    MARK = 34
    THREAD_NAME = 39
    PUSH_POP = 59
    START_END = 60
    TEXT_CATEGORY = 64
    TEXT_MARK = 65
    TEXT_PUSH_POP = 70
    TEXT_START_END = 71
    DOMAIN_CREATE = 75
    DOMAIN_DESTROY = 76


COPY_NAMES = {
    1: "Memcpy HtoD",
    2: "Memcpy DtoH",
    3: "Memcpy HtoA",
    4: "Memcpy AtoH",
    5: "Memcpy AtoA",
    6: "Memcpy AtoD",
    7: "Memcpy DtoA",
    8: "Memcpy DtoD",
    9: "Memcpy HtoH",
    10: "Memcpy PtoP",
    11: "Unified memory copy HtoD",
    12: "Unified memory copy DtoH",
    13: "Unified memory copy DtoD",
}
"""Names of copies by CUPTI memcpy kind."""

CALL_SUFFIXES = r"(?:_v\d+|_ptsz|_ptds)+$"
"""ABI suffixes of CUDA calls (RE2): ``cudaLaunchKernel_ptsz_v7000`` → ``cudaLaunchKernel``."""


def event_columns(*columns: str) -> tuple[tuple[str, str], ...]:
    """(table, column) of the event tables that have one of these columns."""
    tables = [table for table, _ in TIMES_OF]
    return tuple((t, c) for t in tables for c in COLUMNS[t].split() if c in columns)


_LAYOUT = re.compile(r"_V(\d+)")


def is_text(table: str, column: str) -> bool:
    """Whether a column holds text."""
    return column in _TEXTS and (table, column) not in _NUMBERS


def is_blob(table: str, column: str) -> bool:
    """Whether a column holds bytes; what is neither bytes nor text is an integer."""
    return (table, column) in _BLOBS


def table_named(wanted: str, present: Iterable[str]) -> str | None:
    """The table that holds ``wanted``: itself, else the newest layout of it (``wanted_V3``)."""
    layouts = {}
    for name in present:
        if name == wanted:
            return name
        if name.startswith(wanted) and (match := _LAYOUT.fullmatch(name[len(wanted) :])):
            layouts[int(match[1])] = name
    return layouts[max(layouts)] if layouts else None
