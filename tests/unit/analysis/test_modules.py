"""The table of modules, and the lines behind ops, from a small torch trace with frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvprobe.analysis import analyze
from nvprobe.analysis.waiting.code_lines import op_lines
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import to_dict


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


def launch(ts: float, correlation: int, dur: float, tid: int = 7) -> list[dict[str, Any]]:
    call = host("cuda_runtime", "cudaLaunchKernel", ts, 1.0, tid, correlation=correlation)
    kernel = {
        **host(
            "kernel", f"k{correlation}", ts + 5, dur, 0, device=0, stream=7, correlation=correlation
        ),
        "pid": 0,
    }
    return [call, kernel]


def seq(number: int, thread: int = 0) -> dict[str, int]:
    return {"Sequence number": number, "Fwd thread id": thread}


EVENTS = [
    host("python_function", "train.py(40): main", 50, 900),
    host("python_function", "net.py(12): forward", 100, 100),
    host("python_function", "torch/nn/functional.py(9): linear", 105, 50),
    host("python_function", "nn.Module: Linear_0", 101, 90),
    host("cpu_op", "aten::addmm", 110, 30, **seq(4), **{"Input Dims": [[2, 3]]}),
    *launch(115, 1, 10),
    host("python_function", "torch/_tensor.py(500): backward", 300, 200),
    host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 310, 40, 8, **seq(4, 1)),
    host("cpu_op", "AddmmBackward0", 312, 30, 8, **seq(4, 1)),
    *launch(315, 2, 20, 8),
    host(
        "cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 360, 20, 8
    ),
    *launch(365, 3, 5, 8),
]


def trace(folder: Path) -> Any:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return load(path)


def test_backward_ops_have_the_line_of_their_forward(tmp_path: Path) -> None:
    attribution = attribute(trace(tmp_path))
    lines = op_lines(attribution)
    assert [lines.text(row) for row in lines.line.tolist()] == ["net.py:12 (forward)"] * 3


def test_without_a_number_the_line_is_that_of_backward(tmp_path: Path) -> None:
    plain = [
        {**event, "args": {k: v for k, v in event["args"].items() if "Sequence" not in k}}
        for event in EVENTS
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": plain}))
    lines = op_lines(attribute(load(path)))
    assert [lines.text(row) for row in lines.line.tolist()] == [
        "net.py:12 (forward)",
        "train.py:40 (main)",
        "train.py:40 (main)",
    ]


def test_modules_split_into_forward_and_backward(tmp_path: Path) -> None:
    found = to_dict(analyze(attribute(trace(tmp_path))))
    assert found["modules"] == [
        {
            "module": "Linear_0",
            "forward_gpu_ns": 10_000,
            "backward_gpu_ns": 25_000,
            "recompute_gpu_ns": 0,
            "ops": 3,
            "sources": ["net.py:12 (forward)"],
        },
    ]
    assert found["ledger"]["modules"] == {
        "range": {"ops": 1, "gpu_ns": 10_000},
        "sequence": {"ops": 1, "gpu_ns": 20_000},
        "previous_node": {"ops": 1, "gpu_ns": 5_000},
    }


def test_operators_name_their_line(tmp_path: Path) -> None:
    rows = to_dict(analyze(attribute(trace(tmp_path))))["operators"]
    addmm = next(row for row in rows if row["name"] == "aten::addmm")
    assert (addmm["shapes"], addmm["gpu_ns"], addmm["source"]) == (
        [[2, 3]],
        10_000,
        "net.py:12 (forward)",
    )
    assert addmm["path"] == "Linear_0/aten::addmm"
