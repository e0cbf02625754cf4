"""Sidecars become tables of the Trace they were written beside, on its clock."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from nvprobe.attribution import attribute
from nvprobe.errors import InputError
from nvprobe.instrumentation.allocator import COLUMNS
from nvprobe.instrumentation.objects import COLUMNS as OBJECT_COLUMNS
from nvprobe.merging.load import load
from nvprobe.readers.sidecar import merge_sidecars
from nvprobe.readers.sidecar_kinds import LINES, ROWS, CaptureRange, read_sidecar
from nvprobe.trace import (
    NO_PAYLOAD,
    OPEN,
    Devices,
    Marks,
    Ops,
    Processes,
    Ranges,
    Source,
    Threads,
    Trace,
)
from nvprobe.trace.sidecar import ManifestKernel, ManifestNode, ModuleObject, Reason
from tests.conftest import ROOT

HEADER = {"kind": "header", "schema": "nvprobe.sidecar/1", "nvprobe": "1", "pid": 70, "rank": 2}
FIELDS = [one.name for one in dataclasses.fields(Ops) if one.name != "device"]
ORIGIN = 1_700_000_000_000_000_000


def trace(*, mark_at: int | None = None, pid: int = 70) -> Trace:
    one = np.zeros(1, np.int32)
    names = ["nvprobe clock 1700000000000005000"]
    mark = Marks.absent()
    if mark_at is not None:
        mark = Marks(
            process=one, thread=one, time=one + mark_at, name=one, domain=one, category=one
        )
    return Trace(
        strings=pa.array(names, pa.string()),
        sources=(Source("nsys-sqlite", "r.sqlite", None, None, {}),),
        processes=Processes(key=one, pid=one + pid, name=one - 1, rank=one - 1),
        threads=Threads(process=one, tid=one + 70, name=one - 1),
        devices=Devices.empty(),
        marks=mark,
        origin_ns=ORIGIN,
    )


def write(folder: Path, *lines: dict[str, Any], more: str = "") -> Path:
    path = folder / "sidecar.2.70.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + more)
    return path


MODULES = {
    "kind": "module",
    "columns": ["module", "thread", "first_seq", "last_seq", "start_ns", "end_ns"],
    "rows": [
        ["fwd:lin1", 70, 12, 15, ORIGIN + 100, ORIGIN + 300],
        ["fwd:lin2", 71, 15, 17, ORIGIN, 0],
    ],
}


def test_rows_come_with_threads_names_and_the_profiles_clock(tmp_path: Path) -> None:
    merged = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, MODULES, MODULES))])
    calls = merged.sidecar.modules
    assert merged.texts(calls.module) == ["fwd:lin1", "fwd:lin2"] * 2
    assert merged.threads.tid[calls.thread].tolist() == [70, 71] * 2
    assert calls.start[:1].tolist() == [100]
    assert calls.last_sequence.tolist() == [15, 17] * 2
    assert merged.processes.rank.tolist() == [2]
    assert [source.kind for source in merged.sources] == ["nsys-sqlite", "sidecar"]


def test_marks_of_the_clock_correct_the_origin(tmp_path: Path) -> None:
    merged = merge_sidecars(trace(mark_at=5040), [read_sidecar(write(tmp_path, HEADER, MODULES))])
    assert merged.sidecar.modules.start[0] == 140


STEPS = {
    "kind": "step",
    "columns": ["step", "thread", "start_ns", "end_ns", "data_ns", "source"],
    "rows": [
        [17, 70, ORIGIN + 200, ORIGIN + 290, 0, "loop"],
        [16, 70, ORIGIN + 100, ORIGIN + 199, 0, "loop"],
        [18, 70],
        7,
    ],
}


def with_ranges(*, payload: list[int] | None) -> Trace:
    """``step`` before the first, in two steps and in the gap between them; ``body``; open ones."""
    start = np.array([10, 101, 150, 201, 195, 210])
    end = np.array([20, 198, 160, 289, 204, OPEN])
    zeros = np.zeros(6, np.int32)
    ranges = Ranges(
        process=zeros, thread=zeros, start=start, end=end, domain=zeros - 1, category=zeros - 1,
        name=np.array([1, 1, 2, 1, 1, 1], np.int32), source=zeros,
        payload=None if payload is None else np.array(payload),
    )  # fmt: skip
    names = pa.array(["nvprobe clock 1700000000000005000", "step", "body"], pa.string())
    return dataclasses.replace(trace(), strings=names, ranges=ranges)


def test_steps_of_a_torch_trace_get_the_numbers_of_the_sidecar(tmp_path: Path) -> None:
    file = read_sidecar(write(tmp_path, HEADER, STEPS))
    none = NO_PAYLOAD
    numbers = merge_sidecars(with_ranges(payload=None), [file]).ranges.payload
    assert numbers.tolist() == [none, 16, none, 17, none, none]
    own = [1, 2, 3, 4, 5, 6]
    assert merge_sidecars(with_ranges(payload=own), [file]).ranges.payload.tolist() == own
    assert merge_sidecars(with_ranges(payload=None), []).ranges.payload is None


def test_marks_of_the_clock_are_no_ranges_of_the_program(tmp_path: Path) -> None:
    """A torch trace has them as scopes; what refers to a later range still does."""
    about = {"ph": "X", "pid": 70, "tid": 70, "dur": 5}
    mark = {**about, "cat": "user_annotation", "name": "nvprobe clock 1700000000000005000"}
    work = {**about, "cat": "user_annotation", "name": "work", "ts": 10.0}
    add = {**about, "cat": "cpu_op", "name": "aten::add", "ts": 11.0, "dur": 2}
    place = tmp_path / "trace.json"
    events = [{**mark, "ts": 2.0}, work, {**add, "args": {"Sequence number": 7}}]
    place.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = load(place)
    assert found.texts(found.ranges.name) == ["work", "aten::add"]
    assert found.texts(found.ranges.name[found.operators.range]) == ["aten::add"]
    assert attribute(found).paths.texts() == ["work", "work/aten::add"]


def test_what_was_compiled_and_why_again(tmp_path: Path) -> None:
    node = {
        "fx": "mm",
        "op": "aten.mm",
        "module": ["blocks.0.fc1", "Linear"],
        "src": "t.py:3 f",
        "bwd": False,
        "seq_nr": 7,
        "from_node": ["x"],
    }
    graph = {
        "kind": "graph",
        "compile_id": "0/0",
        "phase": "fwd",
        "kernels": [{"name": "triton_0", "extern": False, "nodes": [node]}],
    }
    again = {
        "kind": "recompile",
        "compile_id": "0/1",
        "source": "t.py:3",
        "function": "f",
        "reasons": [{"failed": "0/0", "guard": "size mismatch", "source": None}],
    }
    broke = {"kind": "graph_break", "compile_id": "0/0", "reason": "print", "source": "t.py:4"}
    span = {
        "kind": "compile_span",
        "compile_id": "0/0",
        "phase": "bwd",
        "start_unix_ns": ORIGIN + 5,
        "end_unix_ns": ORIGIN + 9,
    }
    side = merge_sidecars(
        trace(), [read_sidecar(write(tmp_path, HEADER, graph, again, broke, span))]
    ).sidecar
    kernel = side.manifests[0].kernels[0]
    assert (kernel.name, kernel.nodes[0].module, kernel.nodes[0].recomputed) == (
        "triton_0",
        "blocks.0.fc1",
        True,
    )
    assert side.recompiles[0].guards == ("size mismatch",)
    assert side.breaks[0].source == "t.py:4"
    assert (side.compile_spans[0].start, side.compile_spans[0].end) == (5, 9)


def test_ranges_of_a_capture(tmp_path: Path) -> None:
    capture = {
        "kind": "cudagraph",
        "event": "capture",
        "id": 3,
        "thread": 70,
        "start_ns": ORIGIN,
        "end_ns": ORIGIN + 90,
        "columns": ["name", "depth", "start_ns", "end_ns"],
        "ranges": [["fwd:a", 0, ORIGIN + 1, ORIGIN + 50], ["fwd:b", 1, ORIGIN + 2, None]],
    }
    merged = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, capture))])
    ranges = merged.sidecar.captures
    assert merged.texts(ranges.name) == ["fwd:a", "fwd:b"]
    assert ranges.end.tolist() == [50, 90]
    assert ranges.capture.tolist() == [3, 3]


def test_a_cut_last_line_is_told(tmp_path: Path) -> None:
    file = read_sidecar(write(tmp_path, HEADER, MODULES, more='{"kind": "mod'))
    assert len(file.lines["module"]) == 2
    assert merge_sidecars(trace(), [file]).warnings == (
        "sidecar.2.70.jsonl: 1 incomplete lines of the sidecar are lost",
    )


def test_versions_are_facts_of_the_source(tmp_path: Path) -> None:
    line = {"kind": "torch", "version": "2.11.0+cu130", "cuda": "13.0", "driver": None}
    merged = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, line))])
    assert merged.sources[-1].notes == {"torch": "2.11.0+cu130", "CUDA of torch": "13.0"}


def test_another_process_is_left_out_and_told(tmp_path: Path) -> None:
    file = read_sidecar(write(tmp_path, HEADER, MODULES))
    merged = merge_sidecars(trace(pid=1), [file, file])
    assert len(merged.sidecar.modules) == 0
    assert "its process 70 is not in the profile" in merged.warnings[0]
    assert len(merge_sidecars(trace(pid=1), [file]).sidecar.modules) == 2  # one to one: the same


def test_not_a_sidecar(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^sidecar\.2\.70\.jsonl: not a sidecar of nvprobe"):
        read_sidecar(write(tmp_path, {"a": 1}))
    hostile = write(tmp_path, {"a": 1}).rename(tmp_path / "sidecar.\x1b[2J.jsonl")
    with pytest.raises(InputError, match=r"^sidecar\.\\x1b\[2J\.jsonl: not a sidecar"):
        read_sidecar(hostile)


def test_reads_what_the_annotating_side_writes(tmp_path: Path) -> None:
    from nvprobe.instrumentation import sidecar

    path = sidecar.open(tmp_path)
    assert path is not None
    columns = ("module", "thread", "first_seq", "last_seq", "start_ns", "end_ns")
    for row in range(300):
        sidecar.row("module", columns, ("fwd:m", 1, row, row + 1, ORIGIN, ORIGIN + row))
    sidecar.close()
    file = read_sidecar(path)
    assert [row.first_seq for row in file.lines["module"]] == list(range(300))
    assert file.warnings == []


def test_readings_of_the_allocator(tmp_path: Path) -> None:
    """Devices are those the process used, in order; a counter that is unknown is -1."""
    rows = [
        [0, 1, ORIGIN + 7, 11, 20, 15, 20, 2, None, None, 0],
        [0, 3, ORIGIN + 9, 12, 20, 15, 20, 2, 5, None, 0],
        [0, 3, ORIGIN + 9, 12, 20, 15, 20, 2, 5, "many", 0],
        [0, 3, ORIGIN + 9, 1 << 70, 20, 15, 20, 2, 5, 1, 0],
        [0, 1, "soon", 1, 20, 15, 20, 1, 1, 1, 0],
        [0, None, ORIGIN + 9, 1, 20, 15, 20, 1, 1, 1, 0],
    ]
    line = {"kind": "allocator", "columns": COLUMNS, "rows": rows}
    plain = trace()
    ops = Ops(**{name: np.array([0, 0, 0]) for name in FIELDS}, device=np.array([6, 2, 6]))
    for used, device in ((ops, [2, 6]), (Ops.absent(), [-1, -1])):
        known = dataclasses.replace(plain, ops=used)
        merged = merge_sidecars(known, [read_sidecar(write(tmp_path, HEADER, line))])
        found = merged.sidecar.allocator
        assert "4 lines or rows are not as the format has them" in merged.warnings[-1]
        assert found.device.tolist() == device
        assert found.ordinal.tolist() == [1, 3]
        assert found.time.tolist() == [7, 9]
        assert found.allocated.tolist() == [11, 12]
        assert found.device_allocs.tolist() == [-1, 5]
        assert found.device_frees.tolist() == [-1, -1]
    side = merge_sidecars(plain, [read_sidecar(write(tmp_path, HEADER, MODULES))]).sidecar
    assert not side.allocator.recorded


def test_places_have_one_row_a_position_with_its_highest_count(tmp_path: Path) -> None:
    columns = ["name", "category", "role", "source", "stack", "detail", "count"]
    wait = ["torch.cuda.Stream.wait_stream", None, "called", "t.py:3", ["t.py:3", "t.py:9"]]
    rows = [
        ["forward", "user", "entered", "t.py:5", None, None, 1],
        ["forward", "user", "entered", "t.py:5", None, None, 4],
        ["forward", "user", "entered", "t.py:8", None, None, 1],
        [*wait, "default", 2],
        ["no line", "user", "entered", None, None, None, 1],
        ["cut", "user"],
        "not a row",
    ]
    line = {"kind": "place", "columns": columns, "rows": rows}
    merged = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, line))])
    assert "3 lines or rows are not as the format has them" in merged.warnings[-1]
    found = merged.sidecar.places
    assert [(one.name, one.source, one.count) for one in found] == [
        ("forward", "t.py:5", 4),
        ("forward", "t.py:8", 1),
        ("torch.cuda.Stream.wait_stream", "t.py:3", 2),
    ]
    last = found[-1]
    assert (last.category, last.stack, last.detail) == (None, ("t.py:3", "t.py:9"), "default")
    assert {one.process for one in found} == {0}


def test_objects_are_read_with_the_process_they_are_in(tmp_path: Path) -> None:
    rows = [["Net", None, 0, True], ["cell", "Net", 1, None], ["Net", None, "2", None]]
    line = {"kind": "object", "columns": OBJECT_COLUMNS, "rows": rows}
    merged = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, line))])
    assert merged.sidecar.objects == (
        ModuleObject("Net", 0, trains=True, process=0),
        ModuleObject("cell", 1, root="Net", process=0),
    )
    assert "1 lines or rows are not as the format has them" in merged.warnings[-1]


def test_what_the_sampler_writes_is_what_is_read(tmp_path: Path) -> None:
    row = [ORIGIN + 7 if name == "time_ns" else 40 + at for at, name in enumerate(COLUMNS)]
    line = {"kind": "allocator", "columns": COLUMNS, "rows": [row]}
    side = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, line))]).sidecar
    read = {name: values.tolist() for name, values in side.allocator.columns().items()}
    told = {name: [value] for name, value in zip(COLUMNS, row, strict=True)}
    assert read.pop("device") == [-1]  # this trace has no GPU
    assert (read.pop("ordinal"), read.pop("time")) == (told.pop("device"), [7])
    assert read.pop("process") == [0]
    del told["steps"], told["time_ns"]
    assert read == told


STRANGE: list[Any] = [None, "x", -1, 1e308, 2**63, 2**80, [], {}, [1], {"a": 1}, True, [[None]]]


@pytest.mark.parametrize("seed", range(60))
def test_no_value_of_another_type_crashes(tmp_path: Path, seed: int) -> None:
    """Every kind of line, values at any depth replaced at random: a Trace, and a count."""
    rng = random.Random(seed)
    span = {"kind": "compile_span", "start_unix_ns": ORIGIN, "end_unix_ns": ORIGIN + 5}
    node = {"fx": "a", "op": "b", "module": ["m", "M"], "src": "f:1", "seq_nr": 3}
    capture = {
        "kind": "cudagraph", "event": "capture", "id": 1, "thread": 70, "start_ns": ORIGIN,
        "end_ns": ORIGIN + 9, "ranges": [["r", 0, ORIGIN, None, "module"]],
    }  # fmt: skip
    lines: list[dict[str, Any]] = [
        MODULES,
        {"kind": "step", "columns": ["step", "start_ns", "end_ns"], "rows": [[1, ORIGIN, 5]]},
        {"kind": "allocator", "columns": [*COLUMNS], "rows": [[0, 0, ORIGIN, *[1] * 8]]},
        {
            "kind": "place",
            "columns": ["name", "role", "source", "count"],
            "rows": [["a", "b", "c", 1]],
        },
        {"kind": "graph", "compile_id": "0/0", "kernels": [{"name": "k", "nodes": [node]}]},
        {"kind": "graph_break", "reason": "r", "source": "f:1", "stack": ["f:1"]},
        {"kind": "recompile", "compile_id": "0/1", "reasons": [{"guard": "g"}]},
        span,
        capture,
        {"kind": "sync", "source": "f:1", "stack": ["f:1"], "count": 2},
        {"kind": "root", "name": "Net"},
    ]
    lines = json.loads(json.dumps(lines))
    for _ in range(rng.randint(1, 8)):
        _spoil(rng, rng.choice(lines))
    found = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, *lines))])
    assert len(found.sidecar.modules) <= 2


def _spoil(rng: random.Random, value: Any) -> None:
    """Replace something inside an object or a list."""
    keys = [key for key in value if key != "kind"] if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    key = rng.choice(list(keys))
    if isinstance(value[key], (dict, list)) and value[key] and rng.random() < 0.7:
        _spoil(rng, value[key])
    else:
        value[key] = rng.choice(STRANGE)


def test_what_is_not_as_documented_is_counted(tmp_path: Path) -> None:
    rows = [*MODULES["rows"], ["fwd:x", "seventy", 1, 2, 3, 4], ["short"], 5]
    lines = [
        {**MODULES, "rows": rows},
        {"kind": "sync", "source": "f:1", "count": "often"},
        {"kind": "step", "columns": ["step", "start_ns", "end_ns"], "rows": [[1, "soon", 5]]},
    ]
    found = merge_sidecars(trace(), [read_sidecar(write(tmp_path, HEADER, *lines))])
    assert (len(found.sidecar.modules), found.sidecar.syncs) == (2, ())
    (warning,) = found.warnings
    assert warning.startswith("sidecar.2.70.jsonl: 5 lines or rows are not as the format has them")


def test_a_process_with_several_traces_has_its_modules_in_each(tmp_path: Path) -> None:
    """Cycles of a profiler: what says whom work belongs to counts for each, an event once."""
    two = np.zeros(2, np.int32)
    both = dataclasses.replace(
        trace(),
        processes=Processes(key=two, pid=two + 70, name=two - 1, rank=two - 1),
        threads=Threads(process=np.array([0, 1]), tid=two + 70, name=two - 1),
    )
    lines = [MODULES, {"kind": "sync", "source": "f:1", "count": 4}, {"kind": "sync", "count": []}]
    found = merge_sidecars(both, [read_sidecar(write(tmp_path, HEADER, *lines))])
    assert sorted(found.sidecar.modules.process.tolist()) == [0, 0, 1, 1]
    assert len(found.sidecar.syncs) == 1
    assert found.processes.rank.tolist() == [2, 2]
    assert "1 lines or rows" in found.warnings[0]
    wide = {**HEADER, "rank": 2**40}
    assert merge_sidecars(both, [read_sidecar(write(tmp_path, wide))]).processes.rank[0] == -1


@pytest.mark.parametrize("kind", [*LINES, *ROWS])
def test_what_is_read_is_documented(kind: str) -> None:
    """Each field of a kind's struct stands in the kind's own row of docs/sidecar.md."""
    text = (ROOT / "docs/sidecar.md").read_text("utf-8")
    documented = next(ln for ln in text.splitlines() if ln.startswith(f"| `{kind}` |"))
    assert ("**rows**" in documented) == (kind in ROWS)
    for field in set((LINES | ROWS)[kind].__struct_encode_fields__) - {"process"}:
        assert f"`{field}`" in documented, field


@pytest.mark.parametrize("part", [ManifestKernel, ManifestNode, Reason, CaptureRange])
def test_what_is_read_inside_of_a_line_is_documented(part: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs/sidecar.md").read_text("utf-8")
    for field in part.__struct_encode_fields__:
        assert re.search(rf"[`\[ ]{field}[`,\]]", text), field
