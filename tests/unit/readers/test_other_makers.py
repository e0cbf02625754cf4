"""Traces of AMD GPUs, of Kineto in 2026, and exports of nsys in 2026. Values worked out by hand."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.readers.kineto import load_kineto
from nvprobe.report.document import to_dict
from tests.unit.readers.exports import DDL, PROCESS, THREAD, kernel, launch, strings, write

Event = dict[str, Any]


def event(cat: str, name: str, ts: int, dur: int, **args: Any) -> Event:
    """An event of the host (pid 9) or, with a device, of the GPU."""
    pid, tid = (0, args["stream"]) if "device" in args else (9, 9)
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def analyzed(folder: Path, events: list[Event], **about: Any) -> dict[str, Any]:
    """The document of a torch trace."""
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": events}))
    return to_dict(analyze(attribute(load(file))))


def work(cat: str, name: str, ts: int, dur: int, correlation: int) -> Event:
    """GPU work of stream 3."""
    return event(cat, name, ts, dur, device=0, stream=3, correlation=correlation)


AMD = [{"id": 0, "name": "AMD Instinct MI300X", "warpSize": 64, "numSms": 304}]


def test_hip_waits_copies_and_allocates(tmp_path: Path) -> None:
    """Each gap of 100 µs has a cause of its own: a sync, an allocation, a blocking copy."""
    document = analyzed(
        tmp_path,
        [
            event("cuda_runtime", "hipModuleLaunchKernel", 95, 5, correlation=1),
            work("kernel", "Cijk_Ailk_Bljk_BBS_BH_MT64x64x32_MI16x16x16x1", 100, 100, 1),
            event("cuda_runtime", "hipStreamSynchronize", 101, 189),
            event("cuda_runtime", "hipHccModuleLaunchKernel", 290, 10, correlation=2),
            work("kernel", "vectorized_elementwise_kernel", 300, 100, 2),
            event("cuda_runtime", "hipMemAddressReserve", 400, 90),
            event("cuda_runtime", "hipExtLaunchKernel", 490, 10, correlation=3),
            work("kernel", "vectorized_elementwise_kernel", 500, 100, 3),
            event("cuda_runtime", "hipMemcpyWithStream", 690, 30, correlation=4),
            work("gpu_memcpy", "CopyHostToDevice", 700, 20, 4),
        ],
        deviceProperties=AMD,
    )
    causes = document["idle"]["causes"]
    # 200 to 300: 90 µs in the sync and 10 in the launch. 400 to 500: 90 allocating, 10 launching.
    # 600 to 700: 90 of the host, then 10 in a copy that blocks.
    assert causes["allocation"] == 90_000
    assert causes["sync"] == 90_000 + 10_000 + 10_000  # what was launched 100 µs late for the sync
    assert causes["launch_call"] + causes["host"] == 300_000 - 200_000
    assert document["overlap"]["classes"] == {"compute": 300_000, "copy_h2d": 20_000}
    (sync,) = [one for one in document["syncs"] if one["call"] == "hipStreamSynchronize"]
    assert sync["wait_ns"] == 189_000
    assert "nsys" not in json.dumps(document["findings"])


def test_copies_of_rocprofiler_have_directions(tmp_path: Path) -> None:
    document = analyzed(
        tmp_path,
        [
            event("cuda_runtime", "hipMemcpyAsync", 90, 5, correlation=1),
            work("gpu_memcpy", "MEMORY_COPY_HOST_TO_DEVICE", 100, 10, 1),
            event("cuda_runtime", "hipMemcpyAsync", 110, 5, correlation=2),
            work("gpu_memcpy", "MEMORY_COPY_DEVICE_TO_HOST", 120, 20, 2),
            event("cuda_runtime", "hipMemcpyPeerAsync", 140, 5, correlation=3),
            work("gpu_memcpy", "CopyDeviceToDevice2D", 150, 30, 3),
            event("cuda_runtime", "hipMemsetAsync", 180, 5, correlation=4),
            work("gpu_memset", "FillBuffer", 190, 5, 4),
        ],
        deviceProperties=AMD,
    )
    assert document["overlap"]["classes"] == {
        "copy_h2d": 10_000, "copy_d2h": 20_000, "copy_d2d": 30_000, "memset": 5_000,
    }  # fmt: skip


def test_kineto_of_2026_has_counters_and_syncs_on_rows_of_their_own(tmp_path: Path) -> None:
    """Neither is a process, a thread or an event that is not known."""
    counters = [
        {"ph": "M", "name": "process_name", "pid": "GPU 0 Counters", "tid": 0,
         "args": {"name": "GPU 0 Counters"}},
        *({"ph": "C", "cat": "gpu_counter", "name": "sm__cycles_active.avg.pct",
           "pid": "GPU 0 Counters", "tid": 0, "ts": ts, "args": {"value": 71.5}}
          for ts in range(100, 200, 10)),
    ]  # fmt: skip
    nccl = {
        "Collective name": '"allreduce"', "In msg nelems": 1024, "Out msg nelems": 1024,
        "dtype": "BFloat16", "Process Group Name": 'mesh "tp"', "Seq": 17, "Group size": 2,
        "Process Group Description": "mesh \\ tp",
    }  # fmt: skip
    events = [
        event("user_annotation", "ProfilerStep#1", 80, 150),
        event("cuda_runtime", "cudaLaunchKernelExC", 90, 5, correlation=1),
        {**work("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", 100, 50, 1)},
        event("cuda_runtime", "cudaStreamSynchronize", 110, 60, correlation=2),
        {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 900_003,
         "ts": 111, "dur": 58, "args": {"device": 0, "stream": 3, "correlation": 2,
                                        "cuda_sync_kind": "Stream Sync"}},
    ]  # fmt: skip
    events[2]["args"].update(nccl)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*counters, *events]}))
    trace = load_kineto(file)
    assert trace.warnings == ()
    assert (len(trace.processes), trace.threads.tid.tolist()) == (1, [9])
    assert (trace.syncs.stream.tolist(), len(trace.counters)) == ([3], 0)
    assert (trace.messages.bytes.tolist(), trace.messages.sequence.tolist()) == ([2048], [17])
    assert trace.texts(trace.messages.group) == ['mesh "tp"']
    document = to_dict(analyze(attribute(trace)))
    assert [one["wait_ns"] for one in document["syncs"]] == [60_000]


def test_what_is_broken_in_a_file_of_merged_ranks_counts_once(tmp_path: Path) -> None:
    """Two ranks, absolute times, an event that is not one and one of an unknown category each."""
    events = []
    for rank in (0, 1):
        for name, cat in (("cudaLaunchKernel", "cuda_runtime"), ("odd", "of_tomorrow")):
            one = event(cat, name, 0, 2, correlation=3)
            one |= {"pid": f"[TP0{rank}] 84", "ts": "WHEN"}
            events.append(json.dumps(one).replace('"WHEN"', "1712195495505543.168"))
        label = {"ph": "M", "name": "process_name", "pid": f"[TP0{rank}] 84", "tid": 0,
                 "args": {"name": "python"}}  # fmt: skip
        events.append(json.dumps(label))
    broken = '{"ph": "X", "cat": "kernel", "name": "k", "pid": "[TP00] 0", "ts": 1,,2, "dur": 1}'
    file = tmp_path / "merged.json"
    file.write_text('{"traceEvents": [' + ", ".join([*events[:2], broken, *events[2:]]) + "]}")
    trace = load(file)
    assert [one for one in trace.warnings if "broken" in one] == [
        "merged.json: lost 1 broken event that could not be read"
    ]
    assert sum(source.lost_events or 0 for source in trace.sources) == 1
    unknown = [one for one in trace.warnings if "of_tomorrow" in one]
    assert len(unknown) == 2  # each rank its own
    assert all("left out 1 event of" in one for one in unknown)
    assert len(trace.calls) == 2


def newer(path: Path, seed: int) -> Path:
    """An export of two replays and a kernel: rows in any order, tables and columns of 2026."""
    rows = {
        "StringIds": strings("cudaLaunchKernel_v7000", "gemm", "add"),
        "NVTX_EVENTS": [
            {"start": 10 * n, "end": 10 * n + 9, "eventType": 59, "text": text, "globalTid": THREAD,
             "domainId": 0}
            for n, text in enumerate(["load", "step 1", "step 2", "save"])
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(n, 10 * n + 2, 10 * n + 4) for n in range(1, 4)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {**kernel(n, 100 * n, 110 * n, 2), "graphId": 5, "clusterX": 1} for n in (1, 2, 3)
        ],
        "ENUM_CUDA_GRAPH_NODE_KIND": [{"id": 3, "name": "BATCH_MEM_OP", "label": "Batch"}],
        "PROCESSES": [{"globalPid": PROCESS, "pid": 4001, "name": "python3"}],
    }  # fmt: skip
    shuffled = random.Random(seed)
    for values in rows.values():
        shuffled.shuffle(values)
    layout = {
        "ENUM_CUDA_GRAPH_NODE_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
        "CUPTI_ACTIVITY_KIND_KERNEL": DDL["CUPTI_ACTIVITY_KIND_KERNEL"]
        + ", graphId INTEGER, clusterX INTEGER, qmdBulkReleaseUs REAL",
    }
    return write(path, rows, layout)


def test_rows_of_an_export_may_stand_in_any_order(tmp_path: Path) -> None:
    for seed in range(6):
        document = to_dict(analyze(attribute(load(newer(tmp_path / f"{seed}.sqlite", seed)))))
        found = {row["path"]: (row["calls"], row["gpu_ns"]) for row in document["ranges"]}
        assert found == {"load": (1, 0), "step": (2, 10 + 20), "save": (1, 30)}
        assert [step["index"] for step in document["steps"]] == [1, 2]
        assert document["ledger"]["ops"] == 3


def test_all_rows_of_real_exports_may(tmp_path: Path, corpus: Path) -> None:
    """The same quantities of every path, whatever order SQLite gives the rows in."""
    for name in ("h200/graph_node", "h200/prefetch_thread"):
        source, turned = corpus / "nsys" / f"{name}.sqlite", tmp_path / "turned.sqlite"
        turned.unlink(missing_ok=True)
        turned.write_bytes(source.read_bytes())
        with sqlite3.connect(turned) as database:
            for (table,) in database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            ).fetchall():
                database.execute(
                    f'CREATE TABLE turned AS SELECT * FROM "{table}" ORDER BY rowid DESC'
                )
                database.execute(f'DROP TABLE "{table}"')
                database.execute(f'ALTER TABLE turned RENAME TO "{table}"')
        one, other = (analyze(attribute(load(path))) for path in (source, turned))
        assert _quantities(one) == _quantities(other)
        assert one.ledger.total == other.ledger.total
        assert np.array_equal(one.devices.idle_ns, other.devices.idle_ns)


def _quantities(analysis: Any) -> dict[str, tuple[int, ...]]:
    table = analysis.ranges
    columns = (table.calls, table.wall_ns, table.gpu_ns, table.gpu_busy_ns, table.ops)
    texts = analysis.attribution.paths.texts()
    return {text: tuple(int(column[row]) for column in columns) for row, text in enumerate(texts)}
