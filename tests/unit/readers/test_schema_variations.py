"""Every variation of nsys exports that is known (docs/inputs.md), by small exports with real DDL.

What the corpus covers with real files is in test_corpus_counts; here each item of the table stands
alone, so that a change of the loader tells which one it broke.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvprobe.readers import load
from nvprobe.trace import OPEN, OpKind, Trace
from tests.unit.readers.exports import DDL, PROCESS, THREAD, kernel, launch, pushed, strings, write

NAMES = strings("cudaLaunchKernel_v7000", "void gemm<float>(int)", "cudaStreamSynchronize_v3020")
BASE: dict[str, list[Any]] = {
    "StringIds": NAMES,
    "NVTX_EVENTS": [pushed("step", 100, 900)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 200, 210)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 400)],
}
META = "name TEXT NOT NULL, value TEXT"
VERSION = {"name": "EXPORT_PRODUCT_VERSION", "value": "2022.1.3.3"}


def _load(tmp_path: Path, tables: dict[str, Any] | None = None, ddl: Any = None) -> Trace:
    return load(write(tmp_path / "x.sqlite", BASE | (tables or {}), ddl))


def _sound(trace: Trace) -> None:
    """What every one of these exports holds."""
    assert trace.text(int(trace.ops.name[0])) == "void gemm<float>(int)"
    assert trace.text(int(trace.calls.name[0])) == "cudaLaunchKernel"
    assert (trace.ops.start[0], trace.ops.end[0]) == (300, 400)
    assert trace.ops.process[0] == trace.calls.process[0] == trace.ranges.process[0] == 0


# --- metadata ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "version"),
    [(None, None), ("EXPORT_META_DATA", "2022.1.3.3"), ("META_DATA_EXPORT", "2022.1.3.3")],
)
def test_metadata(tmp_path: Path, table: str | None, version: str | None) -> None:
    trace = _load(tmp_path, {table: [VERSION]} if table else {}, {"EXPORT_META_DATA": META})
    _sound(trace)
    assert trace.sources[0].product_version == version


def test_metadata_of_the_capture_is_not_the_exports(tmp_path: Path) -> None:
    rows = {"META_DATA_CAPTURE": [{"name": "EXPORT_PRODUCT_VERSION", "value": "1.0"}]}
    trace = _load(tmp_path, rows | {"META_DATA_EXPORT": [VERSION]}, {"META_DATA_CAPTURE": META})
    assert trace.sources[0].product_version == "2022.1.3.3"


def test_metadata_that_is_no_utf8(tmp_path: Path) -> None:
    rows = [VERSION, {"name": b"EXPORT_\xff", "value": b"\xfe\xff"}]
    trace = _load(tmp_path, {"META_DATA_EXPORT": rows}, {"META_DATA_EXPORT": "name, value"})
    assert trace.sources[0].product_version == "2022.1.3.3"


# --- NVTX -------------------------------------------------------------------------------------

_2020 = DDL["NVTX_EVENTS"]
_2024 = f"{_2020}, binaryData TEXT"
_NO_TEXT_ID = _2020.replace("textId INTEGER, ", "")
_NO_PAYLOAD = _2020.split(", uint64Value")[0]


@pytest.mark.parametrize("ddl", [_2020, _2024, _NO_PAYLOAD, _NO_TEXT_ID], ids=str.__len__)
def test_columns_of_nvtx(tmp_path: Path, ddl: str) -> None:
    _sound(_load(tmp_path, ddl={"NVTX_EVENTS": ddl}))


def test_types_of_nvtx(tmp_path: Path) -> None:
    def event(kind: int, **more: Any) -> dict[str, Any]:
        return {"start": 5, "eventType": kind, "globalTid": THREAD, "text": f"t{kind}", **more}

    rows = [
        event(59, end=9),
        event(60, end=9, endGlobalTid=THREAD, rangeId=7),
        event(34),
        event(33, category=1),
        event(75, domainId=1),
        event(76, domainId=1, text=None),
        event(39),
        event(70, end=9),
        event(71, end=9),
        event(12345),
    ]
    trace = _load(tmp_path, {"NVTX_EVENTS": rows})
    assert trace.texts(trace.ranges.name) == ["t59", "t70"]
    assert trace.texts(trace.spans.name) == ["t60", "t71"]
    assert trace.texts(trace.marks.name) == ["t34"]
    assert trace.domains == ("t75",)
    assert trace.texts(trace.threads.name) == ["t39"]


def test_open_ranges(tmp_path: Path) -> None:
    trace = _load(tmp_path, {"NVTX_EVENTS": [pushed("a", 5, None)]})
    assert trace.ranges.end.tolist() == [OPEN]


@pytest.mark.parametrize("suffix", ["", "_V2", "_V3", "_V10"])
@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"])
def test_layout_suffixes(tmp_path: Path, table: str, suffix: str) -> None:
    tables = {(f"{name}{suffix}" if name == table else name): rows for name, rows in BASE.items()}
    ddl = {f"{table}{suffix}": DDL[table]}
    tables.setdefault("ANALYSIS_DETAILS", [])
    _sound(load(write(tmp_path / "x.sqlite", tables, ddl)))


def test_enumerations_are_not_needed(tmp_path: Path) -> None:
    """None up to 2022.2, up to 63 tables later; what they say is known or not used."""
    rows = {"ENUM_NSYS_EVENT_TYPE": [{"id": 59, "name": "Something", "label": "else"}]}
    _sound(_load(tmp_path, rows, {"ENUM_NSYS_EVENT_TYPE": "id INTEGER, name TEXT, label TEXT"}))


# --- CUDA -------------------------------------------------------------------------------------

_KERNEL = DDL["CUPTI_ACTIVITY_KIND_KERNEL"]
_NEWEST = (
    "sharedMemoryLimitConfig INTEGER, qmdBulkReleaseDone INTEGER, qmdPreexitDone INTEGER, "
    "qmdLastCtaDone INTEGER, graphId INTEGER, clusterX INTEGER, clusterY INTEGER, "
    "clusterZ INTEGER, tensorSizeMinusOneElements TEXT NOT NULL"
)


@pytest.mark.parametrize(
    "ddl",
    [
        _KERNEL.replace(", mangledName INTEGER", "").replace(", greenContextId INTEGER", ""),
        _KERNEL.replace(", greenContextId INTEGER", ""),
        _KERNEL,
        f"{_KERNEL}, {_NEWEST}",
        _KERNEL.replace(", graphNodeId INTEGER", ""),
        _KERNEL.replace("deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, ",
                        "contextId INTEGER NOT NULL, deviceId INTEGER NOT NULL, "),
    ],
    ids=["2020", "2022", "2023.4", "2025.5", "no-graphs", "other-order"],
)  # fmt: skip
def test_columns_of_kernels(tmp_path: Path, ddl: str) -> None:
    trace = _load(tmp_path, ddl={"CUPTI_ACTIVITY_KIND_KERNEL": ddl})
    _sound(trace)
    assert trace.ops.graph_node.tolist() == [0]


def test_calls_without_call_chains(tmp_path: Path) -> None:
    ddl = DDL["CUPTI_ACTIVITY_KIND_RUNTIME"].replace(", callchainId INTEGER", "")
    trace = _load(tmp_path, ddl={"CUPTI_ACTIVITY_KIND_RUNTIME": ddl})
    _sound(trace)
    assert trace.calls.callchain is None


def test_several_calls_share_a_correlation(tmp_path: Path) -> None:
    rows = [launch(1, 200, 210), launch(1, 202, 208)]
    trace = _load(tmp_path, {"CUPTI_ACTIVITY_KIND_RUNTIME": rows})
    assert trace.calls.correlation.tolist() == [1, 1]


def test_driver_calls_in_a_table_of_their_own(tmp_path: Path) -> None:
    table = "CUPTI_ACTIVITY_KIND_DRIVER"
    ddl = {table: DDL["CUPTI_ACTIVITY_KIND_RUNTIME"]}
    trace = _load(tmp_path, {table: [launch(1, 203, 206)]}, ddl)
    assert len(trace.calls) == 2


_SYNC = DDL["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]


@pytest.mark.parametrize(
    ("ddl", "joined"),
    [
        (_SYNC, None),
        (_SYNC.replace("streamId", "greenContextId INTEGER, streamId"), None),
        (f"{_SYNC}, deprecatedSyncType INTEGER, eventSyncId INTEGER", [5]),
    ],
    ids=["2020", "2023.4", "2025.1"],
)
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_synchronisation_goes_by_the_call(
    tmp_path: Path, ddl: str, joined: list[int] | None, kind: int
) -> None:
    row = {"start": 500, "end": 600, "syncType": kind, "correlationId": 2, "globalPid": PROCESS,
           "streamId": 7, **({"eventSyncId": 5} if joined else {})}  # fmt: skip
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    calls = [launch(1, 200, 210), launch(2, 490, 610, name=3)]
    trace = _load(tmp_path, {table: [row], "CUPTI_ACTIVITY_KIND_RUNTIME": calls}, {table: ddl})
    assert trace.syncs.correlation.tolist() == [2]
    assert trace.text(int(trace.calls.name[1])) == "cudaStreamSynchronize"
    found = None if trace.syncs.event_sync is None else trace.syncs.event_sync.tolist()
    assert found == joined


# --- graphs -----------------------------------------------------------------------------------

_NODE = {"start": 50, "end": 50, "globalTid": THREAD, "graphNodeId": 7, "originalGraphNodeId": 3}


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])
def test_graph_nodes(tmp_path: Path, table: str) -> None:
    trace = _load(tmp_path, {table: [_NODE]}, {table: DDL["CUDA_GRAPH_EVENTS"]})
    assert trace.graph_nodes.node.tolist() == [7]
    assert trace.graph_nodes.origin.tolist() == [3]


def test_later_graph_events_are_no_nodes(tmp_path: Path) -> None:
    ddl = (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
        "globalTid INTEGER, nameId INTEGER NOT NULL, graphId INTEGER, originalGraphId INTEGER, "
        "graphExecId INTEGER"
    )
    rows = {"CUDA_GRAPH_EVENTS": [{"start": 5, "globalTid": THREAD, "graphId": 1}]}
    assert not _load(tmp_path, rows, {"CUDA_GRAPH_EVENTS": ddl}).graph_nodes.recorded


def test_whole_graphs(tmp_path: Path) -> None:
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    ddl = (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
        "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
        "correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL, "
        "graphExecId INTEGER NOT NULL"
    )
    row = {"start": 500, "end": 700, "globalPid": PROCESS, "correlationId": 9, "graphExecId": 2}
    trace = _load(tmp_path, {table: [row]}, {table: ddl})
    assert trace.ops.kind.tolist() == [OpKind.KERNEL, OpKind.GRAPH]
    assert trace.text(int(trace.ops.name[1])) == "CUDA graph 2"


# --- session and devices ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "origin"),
    [
        (None, None),
        ("utcEpochNs INTEGER, utcTime TEXT, localTime TEXT", 1795955284894720198),
        ("utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER",
         1795955284894720198),
        ("utcTime TEXT", None),
    ],
    ids=["2020", "2022", "2025.6", "no-number"],
)  # fmt: skip
def test_session_start(tmp_path: Path, ddl: str | None, origin: int | None) -> None:
    table = "TARGET_INFO_SESSION_START_TIME"
    row = {"utcTime": "2026-11-29T12:28:04"} | ({"utcEpochNs": origin} if origin else {})
    trace = _load(tmp_path, {table: [row]} if ddl else {}, {table: ddl or ""})
    assert trace.origin_ns == origin


_GPU_2020 = (
    "vmId INTEGER NOT NULL, name TEXT NOT NULL, pciBusId TEXT, coreClockRate INTEGER NOT NULL, "
    "globalMemorySize INTEGER NOT NULL, numMultiprocessors INTEGER NOT NULL, "
    "computeCapabilityMajor INTEGER NOT NULL, deviceId INTEGER NOT NULL, pid INTEGER"
)
_INFO_2020 = "vmId INTEGER NOT NULL, deviceId INTEGER NOT NULL, name TEXT, busLocation TEXT"


def test_devices_of_2020_are_known_by_their_bus(tmp_path: Path) -> None:
    """Ordinal 0 of the process is the second GPU of the machine."""
    rows = {
        "TARGET_INFO_CUDA_GPU": [
            {"name": "RTX", "pciBusId": "0000:2D:00.0", "coreClockRate": 1_770_000,
             "globalMemorySize": 48_601, "numMultiprocessors": 72, "deviceId": 0, "pid": 4001},
        ],
        "TARGET_INFO_GPU": [
            {"deviceId": 0, "name": "RTX", "busLocation": "0000:15:00.0"},
            {"deviceId": 1, "name": "RTX", "busLocation": "0000:2D:00.0"},
        ],
    }  # fmt: skip
    trace = _load(
        tmp_path, rows, {"TARGET_INFO_CUDA_GPU": _GPU_2020, "TARGET_INFO_GPU": _INFO_2020}
    )
    _sound(trace)
    assert trace.devices.id[trace.ops.device].tolist() == [1]
    assert trace.devices.clock_hz[0] == 1_770_000_000
    assert trace.devices.memory_bytes[0] == 48_601 * 2**20


def test_devices_since_2022(tmp_path: Path) -> None:
    rows = {"TARGET_INFO_GPU": [{"id": 0, "name": "H200", "smCount": 132, "computeMajor": 9}]}
    trace = _load(tmp_path, rows)
    assert trace.texts(trace.devices.name) == ["H200"]
    assert trace.devices.sm_count.tolist() == [132]
    assert trace.devices.max_warps_per_sm.tolist() == [-1]


def test_devices_since_2025(tmp_path: Path) -> None:
    rows = {
        "TARGET_INFO_GPU": [{"id": i, "name": "H200"} for i in range(8)],
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 5, "cudaId": 0, "pid": 4001}],
    }
    trace = _load(tmp_path, rows)
    assert trace.devices.id[trace.ops.device].tolist() == [5]


def test_a_device_map_without_the_gpu(tmp_path: Path) -> None:
    rows = {"TARGET_INFO_CUDA_DEVICE": [{"gpuId": None, "cudaId": 0, "pid": 4001}]}
    trace = _load(tmp_path, rows)
    assert trace.devices.id.tolist() == [0]


# --- the user, and what is left out -----------------------------------------------------------


def test_user_edits(tmp_path: Path) -> None:
    ddl = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": DDL["CUPTI_ACTIVITY_KIND_RUNTIME"] + ", name TEXT",
        "cudaAPIStats": "nameId INTEGER, num INTEGER",
        "odd 'name;": "x",
    }
    trace = _load(tmp_path, {"cudaAPIStats": [{"nameId": 1}], "odd 'name;": []}, ddl)
    _sound(trace)


@pytest.mark.parametrize("table", [*BASE, "PROCESSES", "ThreadNames", "ANALYSIS_DETAILS"])
def test_any_table_may_be_absent_or_empty(tmp_path: Path, table: str) -> None:
    marker = {"META_DATA_EXPORT": [VERSION]}
    without = {name: rows for name, rows in BASE.items() if name != table}
    load(write(tmp_path / "absent.sqlite", without | marker))
    load(write(tmp_path / "empty.sqlite", without | marker | {table: []}))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (table, item.split()[0])
        for table in BASE
        for item in DDL[table].split(", ")
        if item.split()[0] not in ("id", "value")
    ],
)
def test_any_column_may_be_absent(tmp_path: Path, table: str, column: str) -> None:
    items = [item for item in DDL[table].split(", ") if item.split()[0] != column]
    rows = [{k: v for k, v in row.items() if k != column} for row in BASE[table]]
    _load(tmp_path, {table: rows}, {table: ", ".join(items)})


def test_a_lazy_export_and_a_full_one_say_the_same(tmp_path: Path) -> None:
    from tests.unit.readers.same import differences

    lazy = load(write(tmp_path / "lazy.sqlite", BASE | {"META_DATA_EXPORT": []}))
    everything = {table: BASE.get(table, []) for table in DDL}
    full = load(write(tmp_path / "full.sqlite", everything))
    absent = {"syncs.(recorded)", "graph_nodes.(recorded)"}
    assert set(differences(lazy, full)) <= absent


@pytest.mark.parametrize(("version", "warned"), [("2019.5.2.16", True), ("2020.1.1.1", False)])
def test_an_export_older_than_supported_is_read_with_a_warning(
    tmp_path: Path, version: str, warned: bool
) -> None:
    rows = {"META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": version}]}
    trace = load(write(tmp_path / "x.sqlite", BASE | rows))
    assert trace.sources[0].product_version == version
    assert any("supports 2020.1 and newer" in text for text in trace.warnings) == warned
