"""Tables beyond kernels, calls and ranges: memory, events, OS calls, samples, libraries, …"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from nvprobe.readers import load
from nvprobe.trace import NO_DEVICE, NO_ROW, OPEN
from tests.unit.readers.exports import (
    PROCESS,
    THREAD,
    kernel,
    launch,
    pushed,
    strings,
    texts,
    write,
)

NAMES = strings("cudaMalloc_v3020", "kernel", "MPI_Allreduce", "cublasSgemm", "read", "main", "f")
LIBRARY = "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER, size INTEGER"
DDL = {
    "MPI_COLLECTIVES_EVENTS": LIBRARY,
    "CUBLAS_EVENTS": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, nameId INTEGER NOT NULL",
    "MPI_RANKS": "globalTid INTEGER NOT NULL, rank INTEGER NOT NULL",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT NULL, "
    "pc INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, "
    "memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp INTEGER, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER, eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "OSRT_API": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, "
    "nestingLevel INTEGER, callchainId INTEGER NOT NULL",
    "OSRT_CALLCHAINS": "id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL, "
    "stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth)",
    "COMPOSITE_EVENTS": "id INTEGER NOT NULL PRIMARY KEY, start INTEGER NOT NULL, cpu INTEGER, "
    "threadState INTEGER, globalTid INTEGER, cpuCycles INTEGER NOT NULL",
    "SCHED_EVENTS": "start INTEGER NOT NULL, cpu INTEGER NOT NULL, isSchedIn INTEGER NOT NULL, "
    "globalTid INTEGER",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, "
    "address INTEGER NOT NULL, originalFaultPc INTEGER",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL, address INTEGER NOT NULL, "
    "numberOfPageFaults INTEGER NOT NULL, faultAccessType INTEGER NOT NULL",
    "GPU_METRICS": "rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER NOT NULL, "
    "metricId INTEGER NOT NULL, value INTEGER NOT NULL",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, "
    "typeName TEXT NOT NULL, metricId INTEGER NOT NULL, metricName TEXT NOT NULL",
    "NVTX_PAYLOAD_SCHEMAS": "domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, "
    "idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, offset INTEGER",
}


def _load(tmp_path: Path, **tables: list[dict]):
    base = {
        "StringIds": NAMES,
        "NVTX_EVENTS": [pushed("step", 1, 90)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(7, 10, 20)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(8, 30, 40)],
    }
    return load(write(tmp_path / "x.sqlite", base | tables, DDL))


def test_absent_tables_are_none(tmp_path: Path) -> None:
    trace = _load(tmp_path)
    for table in ("memory", "counters", "cuda_events", "os_calls", "os_stacks", "samples",
                  "sample_stacks", "schedule", "page_faults", "payload_fields"):  # fmt: skip
        assert table not in trace.recorded


def test_library_calls_are_ranges_of_their_domain(tmp_path: Path) -> None:
    trace = _load(
        tmp_path,
        MPI_COLLECTIVES_EVENTS=[{"start": 5, "globalTid": THREAD, "textId": 3}],
        CUBLAS_EVENTS=[{"start": 6, "end": 9, "globalTid": THREAD, "nameId": 4}],
        MPI_RANKS=[{"globalTid": THREAD, "rank": 3}],
    )
    assert texts(trace, trace.ranges.name) == ["step", "cublasSgemm", "MPI_Allreduce"]
    assert texts(trace, trace.ranges.domain) == [None, "cuBLAS", "MPI"]
    assert trace.ranges.end.tolist() == [90, 9, OPEN]
    assert trace.processes.rank.tolist() == [3]


def test_library_calls_alone_are_ranges(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        {"StringIds": NAMES, "MPI_COLLECTIVES_EVENTS": [{"start": 5, "end": 6, "textId": 3,
                                                          "globalTid": THREAD}]},
        DDL,
    )  # fmt: skip
    trace = load(path)
    assert texts(trace, trace.ranges.name) == ["MPI_Allreduce"]


def test_memory_knows_its_thread_sign_and_side(tmp_path: Path) -> None:
    event = {"globalPid": PROCESS, "address": 64, "bytes": 100, "memKind": 2}
    trace = _load(
        tmp_path,
        CUDA_GPU_MEMORY_USAGE_EVENTS=[
            {**event, "start": 15, "correlationId": 7},
            {**event, "start": 50, "memoryOperationType": 1, "correlationId": 99},
            {**event, "start": 60, "memKind": 1},
        ],
    )
    assert trace.memory.bytes.tolist() == [100, -100, 100]
    assert trace.memory.thread.tolist() == [0, NO_ROW, NO_ROW]
    assert trace.memory.device.tolist() == [0, 0, NO_DEVICE]


def test_events_os_calls_samples_and_scheduling(tmp_path: Path) -> None:
    worker = PROCESS | 4009
    trace = _load(
        tmp_path,
        CUPTI_ACTIVITY_KIND_CUDA_EVENT=[
            {"timestamp": 0, "streamId": 7, "globalPid": PROCESS, "eventId": 3},
            {"timestamp": 44, "streamId": 7, "globalPid": PROCESS, "eventId": 3, "eventSyncId": 5},
        ],
        OSRT_API=[
            {"start": 1, "end": 4, "globalTid": worker, "nameId": 5, "nestingLevel": 1,
             "callchainId": 2}
        ],
        OSRT_CALLCHAINS=[
            {"id": 2, "stackDepth": 1, "symbol": 6},
            {"id": 2, "stackDepth": 0, "symbol": 7},
        ],
        COMPOSITE_EVENTS=[{"id": 11, "start": 33, "cpu": 3, "globalTid": worker}],
        SCHED_EVENTS=[
            {"start": 3, "cpu": 3, "isSchedIn": 1, "globalTid": worker},
            {"start": 9, "cpu": 3, "isSchedIn": 0, "globalTid": worker},
        ],
    )  # fmt: skip
    assert trace.samples.recorded
    assert trace.cuda_events.time.tolist() == [-1, 44]
    assert trace.cuda_events.event_sync.tolist() == [-1, 5]
    assert texts(trace, trace.os_calls.name) == ["read"]
    assert trace.threads.tid[trace.os_calls.thread].tolist() == [4009]
    assert texts(trace, trace.os_stacks.symbol) == ["f", "main"]
    assert trace.samples.stack.tolist() == [11]
    assert trace.schedule.running.tolist() == [True, False]


def test_page_faults_of_both_sides(tmp_path: Path) -> None:
    trace = _load(
        tmp_path,
        CUDA_UM_CPU_PAGE_FAULT_EVENTS=[{"start": 5, "globalPid": PROCESS, "address": 1}],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[
            {"start": 7, "end": 9, "globalPid": PROCESS, "address": 2, "numberOfPageFaults": 4}
        ],
    )
    assert trace.page_faults.device.tolist() == [NO_DEVICE, 0]
    assert trace.page_faults.end.tolist() == [5, 9]
    assert trace.page_faults.count.tolist() == [1, 4]


def test_metrics_of_two_gpus(tmp_path: Path) -> None:
    first, second = 281479271677952, 281479271677952 + 1
    names = [(first, 0, "SMs Active"), (second, 0, "SMs Active"), (second, 1, "DRAM")]
    trace = _load(
        tmp_path,
        GPU_METRICS=[
            {"timestamp": 5, "typeId": second, "metricId": 1, "value": 70},
            {"timestamp": 5, "typeId": first, "metricId": 0, "value": 12},
            {"timestamp": 9, "typeId": first, "metricId": 8, "value": 1},
            {"timestamp": None, "typeId": first, "metricId": 0, "value": 1},
        ],
        TARGET_INFO_GPU_METRICS=[
            {"typeId": t, "metricId": m, "metricName": name, "typeName": ""} for t, m, name in names
        ],
    )
    assert trace.devices.id[trace.counters.device].tolist() == [1, 0, 0]
    assert texts(trace, trace.counters.metric) == ["DRAM", "SMs Active", None]
    assert trace.counters.value.tolist() == [70, 12, 1]


def test_payload_schemas(tmp_path: Path) -> None:
    trace = _load(
        tmp_path,
        NVTX_PAYLOAD_SCHEMAS=[{"domainId": 1, "schemaId": 2**40, "name": "Sizes"}],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[
            {"domainId": 1, "schemaId": 2**40, "idx": 0, "name": "bytes", "type": 18, "offset": 8},
            {"domainId": 1, "schemaId": 9, "idx": 0},
        ],
    )
    fields = trace.payload_fields
    assert fields is not None
    assert texts(trace, fields.schema_name) == ["Sizes", None]
    assert texts(trace, fields.name) == ["bytes", None]
    assert fields.offset.tolist() == [8, 0]


def test_real_captures_have_them(corpus: Path) -> None:
    emit = load(corpus / "nsys/h200/eager_emit.sqlite")
    assert len(emit.memory) == 1036
    assert int(emit.memory.bytes.sum()) == 656_672_768 + 448_097 + 4
    assert int(np.count_nonzero(emit.memory.device == NO_DEVICE)) == 1
    chains = load(corpus / "nsys/h200/sync_callchains.sqlite")
    assert chains.samples.recorded
    assert (len(chains.samples), len(chains.schedule)) == (68, 112)
    assert len(chains.sample_stacks) == 423
    assert len(chains.payload_fields) == 14
    calls = load(corpus / "nsys/public/runtime_without_kernels.sqlite").os_calls
    with sqlite3.connect(corpus / "nsys/public/runtime_without_kernels.sqlite") as database:
        sql = "SELECT count(*), sum(end - start) FROM OSRT_API"
        assert (len(calls), int((calls.end - calls.start).sum())) == database.execute(
            sql
        ).fetchone()
    database.close()


def test_calls_without_a_launch_are_told_from_no_calls(tmp_path: Path) -> None:
    tables = {
        "StringIds": strings("cudaGetDeviceProperties_v12000"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 200, 210), launch(2, 300, 310)],
        "DIAGNOSTIC_EVENT": [
            {"severity": 2, "text": "No NVTX events collected. Does the process use NVTX?"},
            {"severity": 2, "text": "CUDA profiling might have not been started correctly."},
        ],
    }
    (why,) = [m.why for m in load(write(tmp_path / "x.sqlite", tables)).missing if "GPU" in m.what]
    assert why.startswith("2 CUDA calls were recorded, and none of them launches anything")
    assert "CUDA profiling might have not been started correctly" in why
    assert "NVTX" not in why
    del tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    (why,) = [m.why for m in load(write(tmp_path / "y.sqlite", tables)).missing if "GPU" in m.what]
    assert why.startswith("no CUDA activity was recorded")
