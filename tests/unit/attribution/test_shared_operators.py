"""Operators that the profile (emit_nvtx) and the torch trace both have count once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nvprobe.merging.overlay import merged
from nvprobe.readers.kineto import load_kineto
from nvprobe.trace import Clock, Trace
from tests.unit.analysis.scenes import ADD, Scene
from tests.unit.test_kineto import document, event, write

CLOCK = Clock("sequence", None, 1.0)


def profile(*names: str) -> Trace:
    scene = Scene()
    scene.launch(ADD, 1_000)
    for name in names:
        scene.inside(name, lambda: scene.host(10_000))
    return scene.trace()


def torch(folder: Path, *names: str) -> Trace:
    events = [
        event(
            "cpu_op" if "::" in name else "user_annotation",
            name,
            f"{1_000_000 + 20 * row}.000",
            "10.000",
            **{"External id": 50 + row, "Sequence number": 900 + row, "Input Dims": [[row]]},
        )
        for row, name in enumerate(names)
    ]
    return load_kineto(write(folder, document(*events)))


def joined(ours: Trace, theirs: Trace) -> Trace:
    threads = np.zeros(len(theirs.threads), np.int32)
    return merged(ours, theirs, threads, lambda _, times: times + 1_000_000, CLOCK, 0)


def names_of(trace: Trace) -> list[str]:
    return [str(text).partition(", ")[0] for text in trace.texts(trace.ranges.name)]


def test_the_operators_of_the_profile_stay_and_take_the_shapes_of_the_trace(tmp_path: Path) -> None:
    ours = profile("aten::mm, seq = 4, op_id = 7", "Adam.step, op_id = 8", "aten::mm, op_id = 9")
    theirs = torch(tmp_path, "aten::mm", "Adam.step", "aten::mm", "aten::add")
    trace = joined(ours, theirs)
    assert names_of(trace) == ["aten::mm", "Adam.step", "aten::mm", "aten::add"]
    table = trace.operators
    order = np.argsort(table.range)
    assert table.range[order].tolist() == [0, 2, 3]
    assert table.sequence[order].tolist() == [4, -1, 903]
    assert table.external[order].tolist() == [7, 9, 53]
    assert trace.texts(table.shapes[order]) == ["[[0]]", "[[2]]", "[[3]]"]


def test_where_they_ran_not_as_often_no_shapes_go_over(tmp_path: Path) -> None:
    trace = joined(
        profile("aten::mm, op_id = 7"), torch(tmp_path, "aten::mm", "aten::mm", "aten::add")
    )
    assert names_of(trace) == ["aten::mm", "aten::add"]
    assert trace.operators.range.tolist() == [1]


def test_a_range_of_the_program_is_no_operator_of_torch(tmp_path: Path) -> None:
    trace = joined(profile("aten::mm", "data"), torch(tmp_path, "aten::mm", "data", "data"))
    assert names_of(trace) == ["aten::mm", "data", "data", "data", "aten::mm"]
