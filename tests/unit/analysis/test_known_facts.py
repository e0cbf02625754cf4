"""Nothing is advised that the capture has already; what the profiler says of itself is shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers.kineto import load_kineto
from nvprobe.report.document import to_dict
from nvprobe.trace import DEFAULT_COSTS, Overheads, ProfilingCost, Source, Trace
from tests.unit.analysis.scenes import BF16_GEMM, Scene, loop


def document(trace: Trace) -> dict[str, Any]:
    """The analysis of a trace."""
    return to_dict(analyze(attribute(trace)))


def costly(trace: Trace, nodes_recorded: bool | None = None) -> Trace:
    """A trace whose profiler took half of it, of a run that recorded graphs by node or whole."""
    half = trace.end_ns // 2
    overheads = Overheads(process=[0], thread=[0], start=[0], end=[half], name=[0])
    profiling = ProfilingCost("nsys", None, None, DEFAULT_COSTS, nodes_recorded)
    return dataclasses.replace(trace, overheads=overheads, profiling=profiling)


def replays() -> Trace:
    """Three replays of a CUDA graph of four nodes."""
    scene = Scene()
    for _ in range(3):
        scene.replay(4, 20_000, 1_000)
    return scene.trace()


@pytest.mark.parametrize(
    ("kind", "nodes", "advised"),
    [
        ("nsys-sqlite", None, True),
        ("nsys-sqlite", True, True),
        ("nsys-sqlite", False, False),  # whole graphs, their nodes taken from a second run
        ("torch-trace", None, False),
    ],
)
def test_whole_graphs_are_advised_where_nodes_were_recorded(
    kind: str, nodes: bool | None, advised: bool
) -> None:
    trace = costly(
        dataclasses.replace(replays(), sources=(Source(kind, "x", None, None, {}),)), nodes
    )
    (cost,) = [one for one in document(trace)["findings"] if one["id"] == "profiler_cost"]
    assert any("--graphs-whole" in text for text in cost["try"]) is advised


def said(*messages: tuple[int, str]) -> list[str]:
    """Warnings of an analysis whose capture has these messages."""
    scene = loop(lambda scene: scene.launch(BF16_GEMM, 10_000) and None)
    trace = dataclasses.replace(scene.trace(), diagnostics=messages)
    return [one for one in document(trace)["warnings"] if one.startswith("the profiler said")]


def test_warnings_of_the_profiler_are_shown_once() -> None:
    assert said(
        (1, "Process 17 was launched."),
        (2, "Number of dropped CUPTI buffers: 12\n in process 4711"),
        (2, "Number of dropped CUPTI buffers: 7\n in process 4712"),
        (3, "Illegal driver"),
    ) == [
        "the profiler said: Number of dropped CUPTI buffers: 12 in process 4711 (and 1 alike)",
        "the profiler said: Illegal driver",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "No OpenGL events collected. Does the process use OpenGL?",
        "Not all CUDA events might have been collected.",
        "CUDA profiling might have not been started correctly.",
        "Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2. \nTry",
        "Scheduling information is absent. The thread activity is deduced based on OS runtime",
    ],
)
def test_what_stands_in_every_capture_is_not_shown(text: str) -> None:
    assert said((2, text)) == []


def torch_missing(folder: Path, **about: int) -> dict[str, str]:
    """What a trace with one operator lacks, and how to record it."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 9}
    file = folder / "trace.json"
    file.write_text(json.dumps({**about, "traceEvents": [event]}))
    return {one.what: one.how for one in load_kineto(file).missing}


def test_options_that_were_on_are_not_advised(tmp_path: Path) -> None:
    off = torch_missing(tmp_path, with_stack=0, record_shapes=0)
    assert off["operator shapes"] == "profile with record_shapes=True"
    assert off["source lines and modules"] == "profile with with_stack=True"
    on = torch_missing(tmp_path, with_stack=1, record_shapes=1)
    assert "operator shapes" not in on
    assert "verbose=True" in on["source lines and modules"]
    assert set(on) < set(off)
