"""Several torch traces: cycles and processes of one run are one Trace, anything else is refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.errors import InputError, UsageError
from nvprobe.instrumentation.allocator import COLUMNS as READING
from nvprobe.merging.clock import thread_rows
from nvprobe.merging.load import load
from nvprobe.merging.overlay import _devices, merged
from nvprobe.report.document import to_dict
from nvprobe.trace import Clock, Devices, MemoryEvents, Ops, Processes, Threads, Trace

SECOND = 1_000_000_000
CONVOLUTION = "cudnn_convolution"
BASE = 1_790_857_026 * SECOND


def _trace(pid: int = 7, at_us: int = 0, step: int = 1, rank: int | None = None) -> dict[str, Any]:
    """A step of 1 ms that launches two kernels, 100 µs of them and 200 µs between them."""

    def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
        where = {"pid": pid, "tid": pid} | more
        return {"ph": "X", "cat": cat, "name": name, "ts": at_us + ts, "dur": dur, **where}

    def kernel(name: str, ts: float, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation, "device": 0, "stream": 7, "context": 1}
        return event("kernel", name, ts, 50, pid=0, tid=7, args=args)

    events = [
        event("user_annotation", f"ProfilerStep#{step}", 1000, 1000),
        event("cpu_op", "aten::mm", 1100, 50, args={"External id": 1, "Input Dims": [[2, 3]]}),
        event("cuda_runtime", "cudaLaunchKernel", 1110, 10, args={"correlation": 1}),
        event("cuda_runtime", "cudaLaunchKernel", 1300, 10, args={"correlation": 2}),
        kernel("gemm", 1200, 1),
        kernel(f"other{step}", 1450, 2),
    ]
    head: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": BASE}
    if rank is not None:
        head["distributedInfo"] = {"rank": rank, "world_size": 4}
    return {**head, "traceEvents": events}


def _write(path: Path, **about: Any) -> Path:
    path.write_text(json.dumps(_trace(**about)))
    return path


def test_cycles_of_a_profiler_are_one_trace(tmp_path: Path) -> None:
    """The time between them was not recorded: no device idles there, no host works."""
    first = _write(tmp_path / "a.json", step=1)
    second = _write(tmp_path / "b.json", step=9, at_us=5_000_000)
    trace = load(second, first)
    assert trace.processes.pid.tolist() == [7, 7]
    assert trace.unrecorded == ((2_000_000, 5_001_000_000),)  # from one step to the next
    found = to_dict(analyze(attribute(trace)))
    assert [source["file"] for source in found["sources"]] == ["a.json", "b.json"]
    assert found["clock"] == {"kind": "single", "offset_ns": None, "matched_share": None}
    (device,) = found["devices"]
    assert (device["ops"], device["busy_ns"], device["idle_ns"]) == (4, 200_000, 400_000)
    assert device["window_ns"] == 600_000
    assert found["idle"]["total_ns"] == 400_000 == sum(found["idle"]["causes"].values())
    assert [step["index"] for step in found["steps"]] == [1, 9]
    assert [step["idle_ns"] for step in found["steps"]] == [200_000, 200_000]
    assert [(p["ops"], p["gpu_ns"]) for p in found["ledger"]["by_process"]] == [(2, 100_000)] * 2
    (operator,) = found["operators"]
    assert (operator["calls"], operator["shapes"]) == (2, [[2, 3]])
    assert sum(host["host_ns"] for host in found["host"]) == 2 * 180_000


def test_processes_at_the_same_time_are_one_trace(tmp_path: Path) -> None:
    """On one device: what runs together is busy once, and nothing is unrecorded."""
    traces = [_write(tmp_path / f"{pid}.json", pid=pid, at_us=pid) for pid in (10, 20)]
    trace = load(*traces)
    assert trace.unrecorded == ()
    assert trace.threads.tid.tolist() == [10, 20]
    found = to_dict(analyze(attribute(trace)))
    (device,) = found["devices"]
    assert device["busy_ns"] == 2 * 60_000
    assert device["idle_ns"] == 190_000
    assert {p["pid"] for p in found["processes"]} == {10, 20}
    assert found["ledger"]["methods"]["launch"]["ops"] == 4


def test_every_cycle_keeps_the_arguments_of_its_operators(tmp_path: Path) -> None:
    """They are rows of the file's own strings: a convolution is nothing without its stride."""
    files = []
    for n, name in enumerate(("a.json", "b.json")):
        trace = _trace(at_us=n * 5_000_000, step=n)
        args = {"External id": 1, "Input Dims": [[1, 2, 8, 8], [4, 2, 3, 3]],
                "Concrete Inputs": ["", "", "[1, 1]", f"[{n + 1}]", "[1, 1]"]}  # fmt: skip
        trace["traceEvents"][1] |= {"name": f"aten::{CONVOLUTION}", "args": args}
        trace["traceEvents"].insert(0, trace["traceEvents"][0] | {"name": f"only in {name}"})
        files.append(tmp_path / name)
        files[n].write_text(json.dumps(trace))
    found = to_dict(analyze(attribute(load(*files))))
    flops = [
        row["work"] and row["work"]["flops"]
        for row in found["ranges"]
        if row["path"].endswith(CONVOLUTION)
    ]
    assert flops == [2 * 64 * 4 * 2 * 9, 2 * 16 * 4 * 2 * 9]


def test_readings_of_the_allocator_reach_the_steps_of_every_cycle(tmp_path: Path) -> None:
    """The sidecar is the process's, not that of its first trace."""
    edges = (1_000, 2_000, 5_001_000, 5_002_000)
    rows = [
        [0, 0, BASE + 1000 * edge + 20, 100 * n, 900, 500, 900, 0, 0, 0, 0]
        for n, edge in enumerate(edges)
    ]
    lines = [
        {"kind": "header", "schema": "nvprobe.sidecar/1", "pid": 7, "rank": 0},
        {"kind": "allocator", "columns": READING, "rows": rows},
    ]
    sidecar = tmp_path / "sidecar.0.7.jsonl"
    sidecar.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    traces = [_write(tmp_path / f"{n}.json", step=n, at_us=n * 5_000_000) for n in range(2)]
    found = to_dict(analyze(attribute(load(*traces, sidecar))))["memory"]["allocator"]
    assert [(step["index"], step["growth_bytes"]) for step in found["steps"]] == [
        (0, 100),
        (1, 100),
    ]
    (device,) = found["devices"]
    assert (device["readings"], device["steps"]) == (4, 2)


def test_times_that_cannot_be_stay_so(tmp_path: Path) -> None:
    broken = _trace(at_us=5_000_000, step=2)
    broken["traceEvents"][-1]["ts"] = 0
    (tmp_path / "b.json").write_text(json.dumps(broken))
    trace = load(_write(tmp_path / "a.json"), tmp_path / "b.json")
    assert trace.ops.start[3] == 0
    assert int(attribute(trace).valid.sum()) == 3


def test_what_is_not_of_one_run_is_refused(tmp_path: Path) -> None:
    a, b = _write(tmp_path / "a.json"), _write(tmp_path / "b.json")
    with pytest.raises(
        UsageError, match=r"a\.json and b\.json record the same process at the same"
    ):
        load(a, b)
    other = _write(tmp_path / "c.json", pid=8, at_us=9_000_000)
    with pytest.raises(UsageError, match=r"a\.json, c\.json: several captures at once; give one"):
        load(a, other)
    ranks = [_write(tmp_path / f"{n}.json", pid=n + 1, rank=n) for n in (0, 1)]
    with pytest.raises(UsageError, match=r"0\.json, 1\.json: traces of ranks 0, 1; give those of"):
        load(*ranks)


def test_a_folder_of_traces(tmp_path: Path) -> None:
    """As tensorboard's handler leaves it; a packed copy and other files count for nothing."""
    name = "host_7.{}.pt.trace.json"
    _write(tmp_path / name.format(1), step=1)
    packed = json.dumps(_trace(step=2, at_us=5_000_000)).encode()
    (tmp_path / f"{name.format(2)}.gz").write_bytes(gzip.compress(packed))
    (tmp_path / name.format(2)).write_bytes(packed)
    (tmp_path / "events.json").write_text("[]")
    (tmp_path / ".hidden.trace.json").write_text("no")
    trace = load(tmp_path)
    assert [source.file for source in trace.sources] == [name.format(1), f"{name.format(2)}.gz"]


def test_traces_of_any_name_are_found_in_a_folder(tmp_path: Path) -> None:
    """By what they begin with; an execution trace or settings beside them are none."""
    _write(tmp_path / "before.json", step=1)
    packed = json.dumps(_trace(step=2, at_us=5_000_000)).encode()
    (tmp_path / "later.json.gz").write_bytes(gzip.compress(packed))
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8bno")
    trace = load(tmp_path)
    assert [source.file for source in trace.sources] == ["before.json", "later.json.gz"]
    _write(tmp_path / "rank0.json")
    (tmp_path / "execution_trace_rank0.json").write_text('{"schema": "1.1", "nodes": []}')
    assert [source.file for source in load(tmp_path).sources] == ["rank0.json"]


def test_a_damaged_trace_alone_in_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(InputError, match=r"^rank0\.json: no events"):
        load(tmp_path)


@pytest.mark.parametrize("nothing", [b"", b"\x1f\x8bno", b"\0" * 4096])
def test_a_trace_that_got_lost_is_not_passed_over(tmp_path: Path, nothing: bytes) -> None:
    """Else the totals of a run would silently be those of the rest of it."""
    _write(tmp_path / "trace_1.json", step=1)
    (tmp_path / "trace_2.json").write_bytes(nothing)
    with pytest.raises(InputError, match=r"^trace_2\.json: "):
        load(tmp_path)


def test_ranks_in_a_folder_are_told(tmp_path: Path) -> None:
    for rank in (3, 1, 2):
        _write(tmp_path / f"rank-{rank}.json", pid=rank, rank=rank)
    trace = load(tmp_path)
    assert [source.file for source in trace.sources] == ["rank-1.json"]
    (note,) = trace.warnings
    assert re.search(r"only rank 1 is analyzed; traces of ranks 2, 3 lie beside it", note)


def test_what_a_profile_lacks_of_a_process_is_that_process_s(tmp_path: Path) -> None:
    """A thread that used no CUDA, and allocations: not of the profile's first process."""
    both = load(*(_write(tmp_path / f"{pid}.json", pid=pid, at_us=pid) for pid in (10, 20)))
    profile = dataclasses.replace(both, memory=MemoryEvents.absent())
    more = _trace(pid=20, at_us=20)
    where = {"pid": 20, "tid": 99, "ts": 1200}
    arguments = {"Device Type": 1, "Device Id": 0, "Bytes": 8, "Total Allocated": 8}
    more["traceEvents"] += [
        {"ph": "X", "cat": "user_annotation", "name": "loader", "dur": 100, **where},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "args": arguments, **where},
    ]
    (tmp_path / "more.json").write_text(json.dumps(more))
    torch = load(tmp_path / "more.json")
    threads = thread_rows(profile, torch)
    assert sorted(threads.tolist()) == [-1, 1]
    trace = merged(
        profile, torch, threads, lambda _, times: times, Clock("shared", (0, 0), None), 0
    )
    assert trace.threads.process.tolist() == [0, 1, 1]
    added = trace.ranges.thread == 2
    assert trace.ranges.process[added].tolist() == [1]
    assert trace.memory.process.tolist() == [1]
    assert {row["pid"] for row in to_dict(analyze(attribute(trace)))["processes"]} == {10, 20}


def test_memory_lies_on_the_gpu_that_its_process_ran_on() -> None:
    """torch's device 0 is the first that CUDA_VISIBLE_DEVICES leaves, nsys's the machine's."""
    profile = load_ops(process=[0, 0, 1, 1], device=[3, 3, 0, 1])
    process, ordinal = np.array([0, 0, 1, 1, 1]), np.array([0, -1, 0, 1, 2])
    assert _devices(profile, process, ordinal).tolist() == [3, -1, 0, 1, -1]
    assert _devices(profile, np.zeros(2, int), np.array([0, 1])).tolist() == [-1, -1]


def load_ops(process: list[int], device: list[int]) -> Trace:
    """A trace with these ops and nothing else."""
    rows = np.zeros(len(process), np.int64)
    names = {field.name: rows for field in dataclasses.fields(Ops)}
    ops = Ops(**{**names, "process": np.array(process), "device": np.array(device)})
    numbers = np.arange(max(device) + 1)
    gpus = Devices(**{field.name: numbers for field in dataclasses.fields(Devices)})
    strings = pa.array([], pa.string())
    return Trace(strings, (), Processes.empty(), Threads.empty(), gpus, ops=ops)


def test_names_of_files_cannot_drive_the_terminal(tmp_path: Path) -> None:
    empty = tmp_path / "run\x1b[2J"
    empty.mkdir()
    (empty / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"^run\\x1b\[2J: no report and no trace"):
        load(empty)


def test_a_launched_folder_is_one_run(tmp_path: Path) -> None:
    """Also processes that followed each other, as a script that trains twice starts them."""
    (tmp_path / "run.json").write_text("{}")
    _write(tmp_path / "trace.0.7.json", pid=7)
    _write(tmp_path / "trace.0.8.json", pid=8, at_us=9_000_000)
    _write(tmp_path / "trace.1.9.json", pid=9)
    trace = load(tmp_path)
    assert trace.processes.pid.tolist() == [7, 8]
    assert len(trace.unrecorded) == 1
    assert "ranks 1 lie beside it" in trace.warnings[0]


def test_a_real_trace_beside_itself_later(corpus: Path, tmp_path: Path) -> None:
    """Every figure doubles: nothing of one cycle leaks into the other."""
    source = corpus / "kineto/h200/eager.json.gz"
    text = gzip.decompress(source.read_bytes()).decode()
    shifted = re.sub(
        r'"baseTimeNanoseconds": (\d+)',
        lambda m: m[0][: -len(m[1])] + str(int(m[1]) + 60 * SECOND),
        text,
    )
    (tmp_path / "later.json").write_text(shifted)
    one = to_dict(analyze(attribute(load(source))))
    two = to_dict(analyze(attribute(load(source, tmp_path / "later.json"))))
    for key in ("ops", "gpu_ns", "methods", "unresolved"):
        assert _doubled(one["ledger"][key]) == two["ledger"][key], key
    assert _doubled(one["idle"]["causes"]) == two["idle"]["causes"]
    quantities = ("calls", "wall_ns", "ops", "gpu_ns", "gpu_busy_ns", "sync_ns", "idle_ns")
    _double(one["ranges"], two["ranges"], ("path",), quantities)
    _double(one["operators"], two["operators"], ("name", "shapes"), ("calls", "cpu_ns", "gpu_ns"))
    assert [2 * m["gpu_ns"] for m in one["kernels"]] == [m["gpu_ns"] for m in two["kernels"]]
    assert np.array_equal(
        [d["idle_ns"] * 2 for d in one["devices"]], [two["devices"][0]["idle_ns"]]
    )


def _double(one: Any, two: Any, key: tuple[str, ...], quantities: tuple[str, ...]) -> None:
    """The rows of two lists by a key: each quantity of the second is twice that of the first."""
    by_key = [
        {tuple(str(row[k]) for k in key): [row[q] for q in quantities] for row in rows}
        for rows in (one, two)
    ]
    assert {found: [2 * v for v in row] for found, row in by_key[0].items()} == by_key[1]


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _doubled(inner) for key, inner in value.items() if key != "threads"}
    return 2 * value


def test_cycles_beside_a_profile(corpus: Path, tmp_path: Path) -> None:
    """A real torch trace cut in two between its steps gives the owners that the whole one gives."""
    profile, source = corpus / "nsys/h200/eager_kcpu.sqlite", "kineto/h200/eager_kcpu.json.gz"
    text = json.loads(gzip.decompress((corpus / source).read_bytes()))
    timed = [event for event in text["traceEvents"] if event["ph"] == "X"]
    others = [event for event in text["traceEvents"] if event["ph"] not in ("X", "i")]
    middle = next(event["ts"] for event in timed if event["name"] == "step 6") - 10
    parts = {
        "a": [event for event in timed if event["ts"] + event["dur"] <= middle],
        "b": [event for event in timed if event["ts"] >= middle],
    }
    for name, part in parts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**text, "traceEvents": others + part}))
    whole = attribute(load(profile, corpus / source))
    parted = attribute(load(profile, tmp_path / "a.json", tmp_path / "b.json"))
    owners = [
        [texts[owner] if owner >= 0 else None for owner in found.owner.tolist()]
        for found, texts in ((one, one.paths.texts()) for one in (whole, parted))
    ]
    assert len(owners[0]) == 668
    assert owners[0] == owners[1]
    assert parted.trace.clock == whole.trace.clock
    assert parted.trace.unrecorded == ()
