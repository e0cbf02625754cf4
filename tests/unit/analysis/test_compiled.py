"""Compiled graphs from labels, ranges and sidecar: who, how long, why broken, why again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis.compiled import (
    CompiledGraph,
    _length_before,
    _short_reason,
    compiled_graphs,
)
from nvprobe.attribution import attribute
from nvprobe.attribution.modules import modules
from nvprobe.merging.load import load
from nvprobe.trace import Operators, Ranges

BASE = 1_700_000_000_000_000_000


def host(cat: str, name: str, ts: float, dur: float, tid: int = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 7,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def launch(
    ts: float, correlation: int, name: str, start: float, dur: float, tid: int = 7
) -> list[Any]:
    call = host("cuda_runtime", "cuLaunchKernel", ts, 1.0, tid, correlation=correlation)
    kernel = {
        **host("kernel", name, start, dur, 0, device=0, stream=7, correlation=correlation),
        "pid": 0,
    }
    return [call, kernel]


def graph(identity: str, key: str, ts: float, sequence: int) -> list[Any]:
    return [
        host("cpu_op", "TorchDynamo Cache Lookup", ts - 5, 3),
        host("cpu_op", f"Torch-Compiled Region: {identity}", ts, 40),
        host(
            "cpu_op",
            "CompiledFunction",
            ts + 2,
            30,
            **{"Sequence number": sequence, "Fwd thread id": 0},
        ),
        host("user_annotation", f"## Call CompiledFxGraph {key} ##", ts + 4, 20),
    ]


EVENTS = [
    *graph("0/0", "fa", 100, 11),
    *launch(106, 1, "triton_poi_0", 110, 10),
    *launch(110, 2, "sgemm", 125, 5),
    *graph("1/0", "fb", 200, 12),
    *launch(206, 3, "triton_poi_1", 230, 10),
    host("cpu_op", "autograd::engine::evaluate_function: CompiledFunctionBackward", 300, 60, 8),
    host(
        "cpu_op",
        "CompiledFunctionBackward",
        301,
        50,
        8,
        **{"Sequence number": 11, "Fwd thread id": 1},
    ),
    host("user_annotation", "## Call CompiledFxGraph fc ##", 305, 40, 8),
    *launch(310, 4, "triton_red_2", 320, 7, 8),
]
FRAME = host("python_function", "net.py(23): torch_dynamo_resume_in_forward_at_22", 190, 60)

SIDECAR = [
    {"kind": "header", "schema": "nvprobe.sidecar/1", "pid": 7, "nvprobe": "1"},
    {"kind": "graph_break", "compile_id": "0/0_1", "reason": "print", "source": "net.py:22"},
    {"kind": "recompile", "compile_id": "1/0", "reasons": [{"guard": "x.shape[0] == 8"}]},
    {
        "kind": "compile_span",
        "compile_id": "1/0",
        "phase": "fwd",
        "start_unix_ns": BASE + 150_000,
        "end_unix_ns": BASE + 180_000,
    },
]


def graphs(folder: Path, events: list[Any], *sidecar: dict[str, Any]) -> dict[Any, CompiledGraph]:
    document = {"baseTimeNanoseconds": BASE, "traceEvents": events}
    (folder / "trace.json").write_text(json.dumps(document))
    inputs = [folder / "trace.json"]
    if sidecar:
        (folder / "sidecar.0.7.jsonl").write_text("\n".join(map(json.dumps, sidecar)))
        inputs.append(folder / "sidecar.0.7.jsonl")
    attribution = attribute(load(*inputs))
    found = compiled_graphs(attribution, modules(attribution))
    return {(one.id, one.phase): one for one in found}


def test_forward_and_backward_apart_by_their_sequence_number(tmp_path: Path) -> None:
    found = graphs(tmp_path, EVENTS)
    assert list(found) == [("0/0", "fwd"), ("1/0", "fwd"), ("0/0", "bwd")]
    forward, backward = found["0/0", "fwd"], found["0/0", "bwd"]
    assert (forward.calls, forward.ops, forward.gpu_ns) == (1, 2, 15_000)
    assert forward.kernels["triton"] == {"ops": 1, "gpu_ns": 10_000}
    assert forward.kernels["library"] == {"ops": 1, "gpu_ns": 5_000}
    assert (backward.ops, backward.gpu_ns) == (1, 7_000)
    assert (forward.host_ns, forward.dispatch_ns, forward.guard_ns) == (20_000, 20_000, 3_000)
    assert (backward.host_ns, backward.dispatch_ns, backward.guard_ns) == (40_000, 10_000, None)
    assert forward.recompiles is None  # nothing told


def test_break_and_recompile_with_their_cost(tmp_path: Path) -> None:
    found = graphs(tmp_path, EVENTS, *SIDECAR)
    broken = found["0/0", "fwd"]
    assert (broken.break_reason, broken.break_source) == ("print", "net.py:22")
    # 130 to 230 µs the GPU waits; 30 µs of that go into compiling the graph that resumes.
    assert broken.break_idle_ns == 70_000
    again = found["1/0", "fwd"]
    assert (again.recompiles, again.recompile_reasons) == (1, ["x.shape[0] == 8"])
    assert again.compile_ns == 30_000
    assert (broken.recompiles, broken.recompile_reasons) == (0, [])
    assert again.break_idle_ns is None


def test_a_resuming_frame_tells_the_line_of_a_break(tmp_path: Path) -> None:
    found = graphs(tmp_path, [*EVENTS, FRAME])
    assert found["0/0", "fwd"].break_source == "net.py:22 forward"
    assert found["0/0", "fwd"].break_idle_ns == 100_000
    assert found["0/0", "fwd"].break_reason is None


def nested(*compilations: dict[str, Any]) -> list[Any]:
    """The graph that resumes runs inside the region of the one that broke, as torch does it."""
    return [
        host("cpu_op", "Torch-Compiled Region: 0/1", 100, 300),
        host("cpu_op", "CompiledFunction", 102, 30, **{"Sequence number": 11, "Fwd thread id": 0}),
        host("user_annotation", "## Call CompiledFxGraph fa ##", 104, 20),
        *launch(106, 1, "triton_poi_0", 110, 10),
        *compilations,
        *graph("1/1", "fb", 330, 12),
        *launch(336, 2, "triton_poi_1", 360, 10),
        host("python_function", "net.py(23): torch_dynamo_resume_in_forward_at_22", 140, 250),
    ]


def test_a_graph_that_resumes_inside_the_one_that_broke(tmp_path: Path) -> None:
    broken, after = graphs(tmp_path, nested()).values()
    assert (broken.id, broken.break_source) == ("0/1", "net.py:22 forward")
    assert broken.break_idle_ns == 240_000
    # The region less its own graph, less the other's region and look-up.
    assert broken.dispatch_ns == 300_000 - 20_000 - 40_000 - 3_000
    assert (after.break_source, after.dispatch_ns, after.guard_ns) == (None, 20_000, 3_000)
    assert (broken.compile_ns, broken.recompiles) == (None, None)


def test_compilations_that_torch_notes_itself(tmp_path: Path) -> None:
    note = "entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id={}"
    compilations = [
        host("cpu_op", "entire_frame_compile", 50, 40),
        host("user_annotation", note.format("0/1"), 51, 1),
        host("cpu_op", "entire_frame_compile", 150, 150),
        host("user_annotation", note.format("1/1"), 152, 1),
        host("cpu_op", "_compile.compile_inner (dynamo_timed)", 155, 140),
    ]
    broken, after = graphs(tmp_path, nested(*compilations)).values()
    assert (broken.compile_ns, broken.recompiles) == (40_000, 1)
    assert (after.compile_ns, after.recompiles) == (150_000, 1)
    # Compiling is neither what the break costs nor how the region is dispatched.
    assert broken.break_idle_ns == 240_000 - 150_000
    assert broken.dispatch_ns == 300_000 - 20_000 - 40_000 - 3_000 - 150_000


def test_a_break_without_work_on_the_gpu_has_no_idle_time(tmp_path: Path) -> None:
    events = [event for event in nested() if event["cat"] not in ("kernel", "cuda_runtime")]
    assert graphs(tmp_path, events)["0/1", "fwd"].break_source == "net.py:22 forward"
    assert graphs(tmp_path, events)["0/1", "fwd"].break_idle_ns is None


def test_ranges_of_nvprobe_win_over_labels(tmp_path: Path) -> None:
    own = host("user_annotation", "graph 7/0 fwd", 104.5, 15)
    found = graphs(tmp_path, [*EVENTS, own])
    assert list(found) == [("7/0", "fwd")]
    assert found["7/0", "fwd"].ops == 2


def test_cuda_graphs_inside(tmp_path: Path) -> None:
    replay = host("cuda_runtime", "cudaGraphLaunch", 108, 1, correlation=9)
    capture = host("cuda_runtime", "cudaStreamBeginCapture", 107, 0.5, correlation=8)
    found = graphs(tmp_path, [*EVENTS, replay, capture])
    assert found["0/0", "fwd"].cudagraph == {"recorded": 1, "replayed": 1}


def test_no_graphs(tmp_path: Path) -> None:
    assert graphs(tmp_path, launch(1, 1, "k", 2, 3)) == {}


def test_no_ranges_at_all(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": EVENTS}))
    trace = dataclasses.replace(
        load(tmp_path / "trace.json"), ranges=Ranges.absent(), operators=Operators.absent()
    )
    assert compiled_graphs(attribute(trace), None) == []


def test_a_long_reason_becomes_a_line() -> None:
    text = (
        "Encountered graph break when attempting to trace CALL\n\nCall to `f()`\n"
        "  Explanation: User-inserted\n  graph break.\n  Hint: Remove it.\n"
    )
    assert _short_reason(text) == "Call to `f()`: User-inserted graph break."
    assert _short_reason("print\n") == "print"


@pytest.mark.parametrize(("time", "length"), [(0, 0), (5, 0), (7, 2), (10, 5), (15, 5), (22, 7)])
def test_length_before(time: int, length: int) -> None:
    import numpy as np

    start, end = np.array([5, 20]), np.array([10, 25])
    assert _length_before(start, end, np.array([time])).tolist() == [length]
