"""Kernels, devices, steps and doubts on random traces, counted the slow way."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
from hypothesis import given

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.kernels.by_name import copies, kernels, suspect_ops
from nvprobe.analysis.model import FoundBy
from nvprobe.analysis.steps import span_rows, steps
from nvprobe.analysis.waiting.gaps import device_use
from nvprobe.attribution import attribute
from nvprobe.trace import Spans
from tests.analysis_oracle import AnalysisOracle
from tests.conftest import examples
from tests.oracle import STEP_WORDS
from tests.random_traces import traces
from tests.unit.analysis.scenes import ADD, Scene, analysis_of


@examples(40)
@given(traces())
def test_devices_are_busy_or_idle_between_first_and_last_op(trace):
    table, oracle = device_use(attribute(trace)), AnalysisOracle(trace)
    found = {
        int(device): (int(busy), int(idle), int(window))
        for device, busy, idle, window in zip(
            table.device, table.busy_ns, table.idle_ns, table.window_ns, strict=True
        )
    }
    expected = {}
    for device in {int(d) for d in trace.ops.device}:
        ops = [op for op in range(len(trace.ops)) if trace.ops.device[op] == device]
        times = [t for t in map(oracle.interval, ops) if t]
        if times:
            window = oracle.span(ops)
            expected[device] = (oracle.busy(ops), window - oracle.busy(ops), window)
    assert found == expected


@examples(40)
@given(traces())
def test_kernels_and_copies_hold_every_op_once(trace):
    attribution = attribute(trace)
    doubtful = suspect_ops(trace.ops, attribution.valid)
    work, moved = kernels(attribution, doubtful), copies(attribution)
    assert int(work.ops.sum() + moved.ops.sum()) == len(trace.ops)
    assert int(work.gpu_ns.sum() + moved.gpu_ns.sum()) == int(attribution.duration.sum())
    assert int(work.suspect_ops.sum()) <= int(doubtful.sum())
    trusted = (work.gpu_ns - work.suspect_ns).tolist()
    assert trusted == sorted(trusted, reverse=True)
    for row, kind in enumerate(work.kind.tolist()):
        mine = [op for op in range(len(trace.ops)) if trace.ops.kind[op] == kind]
        by_owner: dict[int, int] = {}
        for op in mine:
            owner = int(attribution.owner[op])
            by_owner[owner] = by_owner.get(owner, 0) + int(attribution.duration[op])
        assert work.top_path_ns[row] == max(by_owner.values())
        assert by_owner[int(work.top_path[row])] == work.top_path_ns[row]


@examples(40)
@given(traces())
def test_an_op_is_suspect_if_its_successor_comes_and_goes(trace):
    attribution = attribute(trace)
    found = suspect_ops(trace.ops, attribution.valid).tolist()
    ops = trace.ops
    rows = [
        op
        for op in range(len(ops))
        if attribution.valid[op] and ops.graph_node[op] == 0 and ops.kind[op] != 3
    ]
    for op in rows:
        key = (ops.process[op], ops.device[op])
        later = [o for o in rows if (ops.process[o], ops.device[o]) == key]
        later = [o for o in later if (ops.start[o], o) > (ops.start[op], op)]
        follower = min(later, key=lambda o: (ops.start[o], o), default=None)
        expected = (
            follower is not None
            and ops.start[op] < ops.start[follower] < ops.end[follower] < ops.end[op]
        )
        assert found[op] == expected


def is_step(name: str) -> bool:
    """A step word ends the name; an optimizer's ``step`` is a part of one."""
    if name.startswith("Optimizer."):
        return False
    return re.split(r"[^A-Za-z]", name)[-1].lower() in STEP_WORDS


@examples(40)
@given(traces(crossing=False))
def test_steps_own_what_was_called_for_in_them(trace):
    attribution, oracle = attribute(trace), AnalysisOracle(trace)
    table = steps(attribution, lost_launches(attribution))
    expected = {}
    for thread in oracle.oracle.initiating.values():
        for r in oracle.oracle.ranges:
            if r[0] != thread or not is_step(r[4]) or oracle.folded(r):
                continue
            above = [x for x in oracle.oracle.open_ranges(thread, r[1]) if x[3] != r[3]]
            order = (r[1], r[1] - r[2], r[3])
            if r[2] > r[1]:
                above = [x for x in above if (x[1], x[1] - x[2], x[3]) < order]
            if any(is_step(x[4]) for x in above):
                continue
            process = oracle.oracle.process[thread]
            ops = [
                op
                for op in range(len(trace.ops))
                if (call := oracle.call_of(op))
                and oracle.oracle.process[call[1]] == process
                and r[1] <= call[2] < r[2]
            ]
            expected[r[3]] = (r[2] - r[1], len(ops), oracle.gpu(ops), oracle.busy(ops))
    found = {
        int(table.range[row]): (
            int(table.wall_ns[row]),
            int(table.ops[row]),
            int(table.gpu_ns[row]),
            int(table.gpu_busy_ns[row]),
        )
        for row in range(len(table))
    }
    assert found == expected


def test_a_wait_that_found_no_batch_is_no_step():
    scene, number = Scene(), count()

    def fetch(*, exhausted: bool) -> None:
        scene.inside("data", lambda: scene.host(100_000))
        if exhausted:
            scene.inside("data exhausted", lambda: scene.host(1_000))
        else:
            scene.launch(ADD, 20_000)

    for exhausted in (False, False, True, False, True):  # two loops
        scene.inside(f"step {next(number)}", partial(fetch, exhausted=exhausted))
    table = analysis_of(scene).steps
    assert table.index.tolist() == [0, 1, 3]
    assert table.ops.tolist() == [1, 1, 1]
    assert (table.wall_ns > 100_000).all()
    starts = [start for start, _, name in scene.ranges if name.startswith("step")]
    assert table.start.tolist() == [starts[0], starts[1], starts[3]]


def test_data_that_is_exhausted_outside_of_steps_changes_nothing():
    scene = Scene()
    for index in range(2):
        scene.inside(f"step {index}", lambda: scene.launch(ADD, 20_000))
        scene.inside("data exhausted", lambda: scene.host(1_000))
    assert analysis_of(scene).steps.index.tolist() == [0, 1]


def test_parts_of_a_step_are_no_steps():
    scene = Scene()
    for _ in range(2):
        scene.inside("forward", lambda: scene.launch(ADD, 20_000))
        scene.inside("Optimizer.step#AdamW.step", lambda: scene.launch(ADD, 5_000))
        scene.inside("optimizer_step", lambda: scene.launch(ADD, 5_000))
    assert len(analysis_of(scene).steps) == 0
    scene.inside("my train step", lambda: scene.inside("optimizer_step", lambda: scene.host(10)))
    table = analysis_of(scene).steps
    assert table.start.tolist() == [scene.ranges[-2][0]]


def test_steps_with_numbers_in_the_middle_of_their_name():
    scene = Scene()
    for index in range(6):
        name = f"[engine] turn of step {40 + index}: {index % 4} requests"
        scene.inside(name, lambda: scene.launch(ADD, 20_000))
        scene.inside(f"after layer {index} of 6", lambda: scene.host(1_000))
    found = analysis_of(scene)
    assert found.steps.index.tolist() == [*range(40, 46)]
    assert set(found.steps.found_by.tolist()) == {FoundBy.NAME}
    assert "[engine] turn of step #: # requests" in found.attribution.names.names.to_pylist()


def test_steps_that_nest_in_each_other_are_a_recursion():
    scene = Scene()

    def call(depth: int, index: int) -> None:
        scene.launch(ADD, 20_000)
        if depth < 2:
            name = f"frame {2 * index + depth} of call"
            scene.inside(name, lambda: call(depth + 1, index))

    for index in range(5):
        call(0, index)
    found = analysis_of(scene)
    assert FoundBy.NAME not in found.steps.found_by.tolist()
    assert "frame # of call" in found.attribution.names.names.to_pylist()


def test_what_compiles_is_no_step():
    scene = Scene()
    name = "PythonWrapperCodegen.generate"
    compile_, inner = "_compile.compile_inner (dynamo_timed)", "GraphLowering.codegen"
    nested = partial(scene.inside, inner, lambda: scene.inside(name, lambda: scene.host(9_000)))
    scene.inside(compile_, nested)
    scene.launch(ADD, 20_000)
    assert len(analysis_of(scene).steps) == 0
    scene.inside(name, lambda: scene.launch(ADD, 20_000))  # not compiling: someone's own name
    scene.inside("decode 3", partial(scene.inside, compile_, nested))
    assert analysis_of(scene).steps.index.tolist() == [0, 3]


def test_the_span_that_opens_the_window_is_not_the_programs() -> None:
    scene = Scene()
    scene.launch(ADD, 1)
    trace = scene.trace()
    names = pa.array(["nvprobe.window", "mine"])
    zero = np.zeros(2, np.int64)
    spans = Spans(
        **{field.name: zero for field in dataclasses.fields(Spans)}
        | {"name": np.arange(2), "start": zero, "end": zero + 5}
    )
    rows = span_rows(dataclasses.replace(trace, strings=names, spans=spans))
    assert rows.name.tolist() == [1]
