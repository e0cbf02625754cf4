"""A step without its profiler: measured, estimated, and what is said of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis import Analysis
from nvprobe.analysis.profiler_cost import ProfilerCost, Records
from nvprobe.report.console.advice import _saving
from nvprobe.report.console.profiler import profiler
from nvprobe.report.document import to_dict
from nvprobe.trace import DEFAULT_COSTS, Marks, ProfilingCost, Source, StepTime
from tests.unit.analysis.scenes import ADD, Scene, analysis_of, loop

MS = 1_000_000


def body(scene: Scene) -> None:
    """10 launches, a call and a read; 1 ms of GPU work in 3 ms of the host's."""
    for _ in range(10):
        scene.launch(ADD, 100_000)
        scene.host(290_000)
    scene.call("cudaStreamIsCapturing", 10_000)
    scene.item()


def told(bare: StepTime | None, window: StepTime | None = None) -> ProfilingCost:
    return ProfilingCost("nsys", bare, window, DEFAULT_COSTS, None)


def cost_of(analysis: Analysis) -> ProfilerCost:
    assert analysis.profiler is not None
    return analysis.profiler


def line(analysis: Analysis) -> str:
    return profiler(analysis)


def test_what_was_recorded_in_a_step() -> None:
    cost = cost_of(analysis_of(loop(body)))
    assert cost.records == Records(3, 10, 1, 0, 0, 0, 0)  # the step itself is the range
    assert cost.records.host_ns(DEFAULT_COSTS) == 13 * 3_000 + 4_000
    assert (cost.source, cost.backend) == ("estimated", "nsys")


def test_an_estimate_is_the_step_that_findings_have() -> None:
    analysis = analysis_of(loop(body))
    cost = cost_of(analysis)
    assert cost.source == "estimated"
    (*_, found) = [one for one in analysis.findings or () if one.step_saving]
    assert found.step_saving is not None
    assert cost.unprofiled_ns == found.step_saving.step_ns < cost.profiled_ns
    assert cost.bounds_ns[0] < cost.unprofiled_ns <= cost.bounds_ns[1] <= cost.profiled_ns


def test_an_estimate_lies_between_no_cost_and_twice_of_it() -> None:
    analysis = analysis_of(loop(body, steps=2))  # too few to replay
    cost = cost_of(analysis)
    steps = analysis.steps
    assert cost.profiled_ns == np.median(np.diff(steps.start))
    assert cost.unprofiled_ns == cost.profiled_ns - 43_000
    assert cost.bounds_ns == (cost.profiled_ns - 86_000, cost.profiled_ns)
    assert "an estimated" in line(analysis)
    assert "(not measured)" in line(analysis)


def test_an_estimate_is_not_below_the_work_of_the_gpu() -> None:
    def busy(scene: Scene) -> None:
        for _ in range(100):
            scene.launch(ADD, 20_000)

    cost = cost_of(analysis_of(loop(busy)))
    assert cost.idle_ns is not None
    assert cost.bounds_ns[0] >= cost.profiled_ns - cost.idle_ns == 2 * MS


def test_marks_of_synchronizations_and_nodes_of_graphs_cost_too() -> None:
    def replays(scene: Scene) -> None:
        scene.replay(50, 10_000, 1_000)
        scene.host(MS)

    scene = loop(replays)
    trace = scene.trace()
    starts = [start for start, _end, name in scene.ranges if name.startswith("step")]
    texts = [*trace.strings.to_pylist(), "nvprobe", "sync"]
    zero = np.zeros(4, np.int64)
    changed: dict[str, object] = {
        "strings": pa.array(texts),
        "marks": Marks(zero, zero, np.array(starts) + 5, zero, zero + len(texts) - 2,
                       zero + len(texts) - 1),
    }  # fmt: skip
    cost = cost_of(analysis_of(scene, **changed))
    assert (cost.records.marks, cost.records.graph_nodes) == (1, 50)
    assert cost.records.gpu_ns(DEFAULT_COSTS) == 50 * 1_100
    assert "tracing 50 nodes of CUDA graphs one by one" in line(analysis_of(scene))
    whole = ProfilingCost("nsys", None, None, DEFAULT_COSTS, graph_nodes=False)
    assert "CUDA graphs" not in line(analysis_of(scene, profiling=whole)), "of another run"


def test_a_measured_step_and_the_idle_time_that_is_the_profilers() -> None:
    profiling = told(StepTime(2 * MS, 100_000, 10, 2), StepTime(3 * MS, None, 4, 1))
    analysis = analysis_of(loop(body), profiling=profiling)
    cost = cost_of(analysis)
    assert (cost.source, cost.profiled_ns, cost.unprofiled_ns) == ("measured", 3 * MS, 2 * MS)
    assert cost.bounds_ns == (1_900_000, 2_100_000)
    assert cost.idle_ns == 3 * MS - 1_001_000
    assert cost.profiler_idle_ns == MS
    assert line(analysis) == (
        "; 2.00 ms ± 100 µs unprofiled; 50% of its idle time (2.00 ms) is the profiler's"
    )


def test_the_step_with_the_profiler_is_of_the_steps_reported() -> None:
    """The window's own time has its warm-up."""
    profiling = told(StepTime(2 * MS, 100_000, 10, 2), StepTime(30 * MS, None, 9, 1))
    analysis = analysis_of(loop(body), profiling=profiling)
    assert cost_of(analysis).profiled_ns == np.median(np.diff(analysis.steps.start))


def test_what_nsys_adds_to_the_nodes_of_graphs_while_it_does_not_record_is_taken_out() -> None:
    def replays(scene: Scene) -> None:
        scene.replay(500, 1_000, 1_000)
        scene.host(2 * MS)

    bare, window = StepTime(2 * MS, 10_000, 10, 2), StepTime(3 * MS, None, 5, 1)
    by_node = ProfilingCost("nsys", bare, window, DEFAULT_COSTS, graph_nodes=True)
    cost = cost_of(analysis_of(loop(replays), profiling=by_node))
    most = 500 * round(DEFAULT_COSTS.ready_node_ns)
    assert cost.unprofiled_ns == 2 * MS - most // 2
    assert cost.bounds_ns == (2 * MS - most - 10_000, 2 * MS + 10_000)
    torch = ProfilingCost("torch", bare, window, DEFAULT_COSTS, graph_nodes=None)
    assert cost_of(analysis_of(loop(replays), profiling=torch)).unprofiled_ns == 2 * MS


def test_nodes_that_tracing_makes_longer_than_the_whole_step_hide_nothing() -> None:
    """Ten replays of 300 of the smallest kernels: recorded, their busy time alone is longer than
    the step outside the window."""

    def replays(scene: Scene) -> None:
        scene.replay(3_000, 1_079, 1_417)
        scene.host(1_000)

    bare, window = StepTime(3_051_000, 10_000, 10, 2), StepTime(4_251_000, None, 5, 1)
    by_node = ProfilingCost("nsys", bare, window, DEFAULT_COSTS, graph_nodes=True)
    cost = cost_of(analysis_of(loop(replays), profiling=by_node))
    assert cost.profiled_ns - (cost.idle_ns or 0) > bare.step_ns
    most = round(3_000 * DEFAULT_COSTS.ready_node_ns)
    assert cost.unprofiled_ns == bare.step_ns - most // 2
    assert cost.bounds_ns == (bare.step_ns - most - 10_000, bare.step_ns + 10_000)


def test_the_profiler_causes_no_more_idle_time_than_there_is() -> None:
    profiling = told(StepTime(MS // 2, 1_000, 10, 2), StepTime(3 * MS, None, 5, 1))
    cost = cost_of(analysis_of(loop(body), profiling=profiling))
    assert cost.profiler_idle_ns == cost.idle_ns


def test_a_difference_below_the_spread_is_not_called_one() -> None:
    profiling = told(StepTime(2_900_000, 200_000, 10, 2), StepTime(3 * MS, None, 5, 1))
    text = line(analysis_of(loop(body), profiling=profiling))
    assert text.endswith("unprofiled: profiling costs less than steps vary by")


def test_the_unprofiled_step_varies_by_its_own_spread_not_by_that_of_the_window() -> None:
    profiling = told(StepTime(2 * MS, 100_000, 10, 2), StepTime(3 * MS, 2 * MS, 5, 1))
    analysis = analysis_of(loop(body), profiling=profiling)
    assert cost_of(analysis).bounds_ns == (1_900_000, 2_100_000)
    assert line(analysis) == (
        "; 2.00 ms ± 100 µs unprofiled: profiling costs less than steps vary by"
    )


def test_a_step_that_may_be_off_by_its_own_length_is_not_known() -> None:
    profiling = told(StepTime(MS, 2 * MS, 5, 1), StepTime(9 * MS, 10_000, 5, 1))
    analysis = analysis_of(loop(body), profiling=profiling)
    assert line(analysis) == "; unprofiled not known: 1.00 ms may be off by 200%"


def test_a_window_that_is_faster_says_that_steps_vary_by_more() -> None:
    profiling = told(StepTime(3_100_000, None, 5, 1), StepTime(3 * MS, None, 5, 1))
    text = line(analysis_of(loop(body), profiling=profiling))
    assert text == "; 3.10 ms unprofiled: profiling costs less than steps vary by"


def test_without_steps_there_is_no_cost_of_a_step() -> None:
    scene = Scene()
    body(scene)
    analysis = analysis_of(scene)
    assert analysis.profiler is None
    assert not profiler(analysis)
    assert to_dict(analysis)["profiler"] is None


def test_the_json_says_the_same() -> None:
    profiling = told(StepTime(2 * MS, 100_000, 10, 2), StepTime(3 * MS, None, 5, 1))
    row = to_dict(analysis_of(loop(body), profiling=profiling))["profiler"]
    assert row["unprofiled_step_ns"] == 2 * MS
    assert row["unprofiled_bounds_ns"] == [1_900_000, 2_100_000]
    assert row["records"]["launches"] == 10
    assert row["costs"]["source"] == "default"


@pytest.mark.parametrize(
    ("profiling", "kind", "expected"),
    [
        (None, "nsys-sqlite", "up to 3.00 ms of 12.0 ms (25.0% at most)"),
        (told(StepTime(2 * MS, 1, 10, 2)), "nsys-sqlite",
         "up to 25.0% of a step: up to 500 µs of 2.00 ms unprofiled"),
        (None, "torch-trace", "up to 25.0% of a step"),
        (told(StepTime(2 * MS, 1, 10, 2)), "torch-trace",
         "up to 25.0% of a step: up to 500 µs of 2.00 ms unprofiled"),
    ],
)  # fmt: skip
def test_no_saving_is_promised_in_milliseconds_that_the_profiler_made(
    profiling: ProfilingCost | None, kind: str, expected: str
) -> None:
    analysis = analysis_of(
        loop(body), profiling=profiling, sources=(Source(kind, "scene", None, None, {}),)
    )
    assert _saving((0, 3 * MS), 12 * MS, analysis.profiler) == expected


def test_the_window_of_a_gpu_bound_loop_is_what_the_gpu_takes() -> None:
    def behind(scene: Scene) -> None:
        for _ in range(10):
            scene.launch(ADD, 800_000)

    analysis = analysis_of(loop(behind))
    assert cost_of(analysis).profiled_ns == pytest.approx(8 * MS, rel=0.01)
