"""Each rule on a scene with one cause; what looks alike and is none; ranking and verdict."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis import Analysis
from nvprobe.analysis.findings import NOTABLE
from nvprobe.analysis.memory import DeviceMemory
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.trace import Marks, MemoryEvents, Overheads
from nvprobe.trace.sidecar import (
    CaptureRanges,
    CompileSpan,
    GraphBreak,
    ModuleCalls,
    Reason,
    Recompile,
    Sidecar,
    SyncSource,
)  # fmt: skip
from tests.unit.analysis.scenes import (
    ADD,
    ALL_REDUCE,
    BF16_GEMM,
    CUSTOM,
    FP32_CONVOLUTION,
    FP32_GEMM,
    SOFTMAX,
    Scene,
    loop,
    unprofiled,
)  # fmt: skip
from tests.unit.analysis.scenes import (
    analysis_of as profiled_analysis_of,
)

MS, US = 1_000_000, 1_000


def ids(analysis: Analysis) -> list[str]:
    return [one.id for one in analysis.findings or ()]


def healthy(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(BF16_GEMM, 300 * US)


def sync_each_layer(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(BF16_GEMM, 100 * US)
        scene.item()
        scene.host(10 * US)


def slow_loader(scene: Scene) -> None:
    scene.inside("data", lambda: scene.host(5 * MS))
    scene.inside("forward", lambda: healthy(scene))


def pageable(scene: Scene) -> None:
    scene.inside("copy", lambda: _ignore(scene.upload(3 * MS, pageable=True)))
    scene.inside("forward", lambda: healthy(scene))


def pinned_on_the_compute_stream(scene: Scene) -> None:
    scene.inside("copy", lambda: _ignore(scene.upload(1 * MS, pageable=False)))
    scene.inside("forward", lambda: healthy(scene))


def figures_of_a_sharded_model(scene: Scene) -> None:
    """Short uploads, as long together as one copy that is worth a finding."""
    for _ in range(7):
        scene.upload(45 * US, pageable=False)
        scene.launch(BF16_GEMM, 1 * MS)


def waits_for_a_side_stream(scene: Scene) -> None:
    scene.wait_stream(13, 7)
    scene.inside("copy", lambda: _ignore(scene.upload(1 * MS, pageable=False, stream=13)))
    scene.wait_stream(7, 13)
    scene.inside("forward", lambda: healthy(scene))


def hidden_copy(scene: Scene) -> None:
    scene.upload(1 * MS, pageable=False, stream=13)
    scene.inside("forward", lambda: healthy(scene))


def tiny_kernels(scene: Scene) -> None:
    def body() -> None:
        for _ in range(40):
            scene.launch(CUSTOM, 2 * US, cost=6 * US)
            scene.host(2 * US)

    scene.inside("forward", body)


def host_work(scene: Scene) -> None:
    scene.host(3 * MS)
    healthy(scene)


def churn(scene: Scene) -> None:
    for _ in range(8):
        scene.call("cudaMalloc", 200 * US)
        scene.launch(BF16_GEMM, 100 * US)
    for _ in range(8):
        scene.call("cudaFree", 100 * US)


def fp32(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(FP32_GEMM, 300 * US)


def attention(scene: Scene) -> None:
    for _ in range(4):
        for name in (BF16_GEMM, ADD, SOFTMAX, BF16_GEMM):
            scene.launch(name, 150 * US)


def chain(scene: Scene) -> None:
    for _ in range(10):
        scene.launch(BF16_GEMM, 150 * US)
        for _ in range(5):
            scene.launch(ADD, 50 * US)


def exposed_all_reduce(scene: Scene) -> None:
    healthy(scene)
    scene.launch(ALL_REDUCE, 900 * US)


def hidden_all_reduce(scene: Scene) -> None:
    scene.launch(ALL_REDUCE, 900 * US, stream=20)
    healthy(scene)


def one_block(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(CUSTOM, 300 * US, grid=40)


def fp32_convolutions(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(FP32_CONVOLUTION, 300 * US)


def late_after_data(scene: Scene) -> None:
    """The host works for long after each wait for data; with data ready it would be ahead."""
    scene.inside("data", lambda: scene.host(9 * MS))
    scene.host(5 * MS)
    healthy(scene)


def a_block_on_each_sm(scene: Scene) -> None:
    """Sixteen blocks would fit on an SM: what that costs, only counters tell."""
    for _ in range(6):
        scene.launch(CUSTOM, 300 * US, grid=132)


def small_kernels_of_a_waiting_gpu(scene: Scene) -> None:
    scene.inside("data", lambda: scene.host(9 * MS))
    for _ in range(3):
        scene.launch(CUSTOM, 200 * US, grid=40)


def a_collective_of_few_blocks(scene: Scene) -> None:
    scene.launch(ALL_REDUCE, 1801 * US, stream=20, grid=20)
    healthy(scene)


def churn_of_a_pool(scene: Scene) -> None:
    """Memory of a stream's pool and pinned memory: not taken from the device's driver."""
    for _ in range(8):
        scene.call("cudaMallocAsync", 2 * US)
        scene.launch(BF16_GEMM, 300 * US)
        scene.call("cudaFreeAsync", 2 * US)
    scene.call("cudaHostAlloc", 20 * US)
    scene.call("cudaFreeHost", 20 * US)


def analysis_of(scene: Scene, **changes: object) -> Analysis:
    """The analysis of a scene that no profiler slows."""
    if any(name.startswith("step ") for _, _, name in scene.ranges):
        changes.setdefault("profiling", unprofiled(scene))
    return profiled_analysis_of(scene, **changes)


def held_by(*calls: str) -> Callable[[Scene], None]:
    """Each call takes 2 ms, in which the GPU runs out of work; six kernels of 100 µs follow."""

    def setup(scene: Scene) -> None:
        for call in calls:
            scene.call(call, 2 * MS)

    def body(scene: Scene) -> None:
        scene.inside("setup", lambda: setup(scene))
        for _ in range(6):
            scene.launch(BF16_GEMM, 100 * US)

    return body


def held_up_for_less(scene: Scene) -> None:
    """Half of the call the GPU works: the call may have waited for it, and is no reading."""
    scene.call("cudaHostAlloc", 900 * US)
    scene.launch(BF16_GEMM, 500 * US)


def rebuilt(call: str) -> Callable[[Scene], None]:
    def body(scene: Scene) -> None:
        scene.call(call, 900 * US)
        scene.replay(2, 100 * US, 0)

    return body


def waits_for_others(scene: Scene) -> None:
    """Half a millisecond after its call nothing runs, and nothing of this process is the cause."""
    scene.gpu_free[7] = scene.now + 500 * US
    scene.launch(BF16_GEMM, 300 * US)
    scene.now = scene.gpu_free[7] - 20 * US


def _ignore(_: int) -> None:
    return None


SCENES: list[tuple[Callable[[Scene], None], list[str], str]] = [
    (healthy, [], "GPU-bound, nothing found to gain"),
    (hidden_copy, [], "GPU-bound, nothing found to gain"),
    (hidden_all_reduce, [], "GPU-bound, nothing found to gain"),
    (sync_each_layer, ["implicit_sync"], "mostly GPU-bound, then held up by synchronization in"),
    (slow_loader, ["input_wait"], "waits for data in step/data"),
    (pageable, ["pageable_copy"], "bound by copies in step/copy"),
    (pinned_on_the_compute_stream, ["exposed_copy"], "bound by copies in step/copy"),
    (figures_of_a_sharded_model, [], "GPU-bound"),
    (waits_for_a_side_stream, ["exposed_copy"], "bound by copies in step/copy"),
    (tiny_kernels, ["launch_bound"], "launch-bound in step/forward"),
    (host_work, ["host_work"], "host-bound in step"),
    (churn, ["allocator"], "held up by allocation in step"),
    (fp32, ["fp32_gemm"], "GPU-bound"),
    (attention, ["unfused_attention"], "GPU-bound"),
    (chain, ["elementwise_chain"], "GPU-bound"),
    (exposed_all_reduce, ["exposed_communication"], "exposed communication in step"),
    (one_block, ["kernel_underfills"], "GPU-bound"),
    (fp32_convolutions, ["fp32_gemm"], "GPU-bound"),
    (late_after_data, ["input_wait"], "waits for data in step/data"),
    (a_block_on_each_sm, [], "GPU-bound, nothing found to gain"),
    (small_kernels_of_a_waiting_gpu, ["input_wait"], "waits for data in step/data"),
    (a_collective_of_few_blocks, [], "GPU-bound, nothing found to gain"),
    (churn_of_a_pool, [], "GPU-bound, nothing found to gain"),
    (held_by("cudaHostAlloc"), ["pinned_allocation"], "held up by allocation in step/setup"),
    (held_up_for_less, ["pinned_allocation"], "held up by allocation"),
    (held_by("cudaHostRegister"), ["pinned_allocation"], "held up by allocation in step/setup"),
    (held_by("cudaMallocAsync"), ["idle_allocation"], "held up by allocation in step/setup"),
    (
        held_by("cudaStreamCreateWithPriority"),
        ["idle_other_call"],
        "held up by calls that launch nothing in step/setup",
    ),
    (held_by("cudaGetDeviceProperties"), ["idle_other_call"], "held up by calls that launch"),
    (rebuilt("cudaGraphInstantiate"), ["graph_rebuilt"], "held up by calls that launch nothing"),
    (rebuilt("cudaGraphExecUpdate"), ["graph_rebuilt"], "held up by calls that launch nothing"),
    (waits_for_others, ["idle_device_wait"], "waits between queued work in step"),
]


def test_conversions_inside_of_convolutions_are_no_chain() -> None:
    """Nothing fuses into a library's call: bias alone stands between its conversions."""

    def convolutions(scene: Scene) -> None:
        for _ in range(10):
            scene.launch("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwc", 150 * US)
            scene.launch("void cudnn::ops::nhwcToNchwKernel<float>", 50 * US)
            scene.launch(ADD, 50 * US)
            scene.launch("void cudnn::ops::nchwToNhwcKernel<float>", 50 * US)
            scene.launch("void cudnn::ops::nchwToNhwcKernel<float>", 50 * US)

    found = [one.id for one in analysis_of(loop(convolutions)).findings]
    assert "elementwise_chain" not in found
    assert "layout_conversion" in found


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (("graph 0/0 fwd",), False),
        (("CompiledFunctionBackward", "graph 0/0 bwd", "cudagraph replay"), False),
        (("cudagraph replay",), True),  # of a graph that the program captured itself
    ],
)
def test_chains_of_compiled_graphs_are_not_to_be_compiled(
    around: tuple[str, ...], expected: bool
) -> None:
    def body(scene: Scene) -> None:
        inside = functools.partial(chain, scene)
        for name in reversed(around):
            inside = functools.partial(scene.inside, name, inside)
        inside()

    assert ("elementwise_chain" in ids(analysis_of(loop(body)))) is expected


@pytest.mark.parametrize(
    ("body", "found", "bound"), SCENES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_scene_has_its_cause_and_no_other(
    body: Callable[[Scene], None], found: list[str], bound: str
) -> None:
    analysis = analysis_of(loop(body))
    assert ids(analysis) == found
    assert analysis.verdict.startswith(bound)
    for one in analysis.findings or ():
        assert 0 <= one.saves_ns[0] <= one.saves_ns[1]
        assert one.saves_ns[1] >= NOTABLE * int(analysis.devices.window_ns.sum())


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        (sync_each_layer, lambda s: [s.launch(BF16_GEMM, 100 * US) for _ in range(6)]),
        (slow_loader, lambda s: s.inside("forward", lambda: healthy(s))),
        (pageable, lambda s: s.inside("forward", lambda: healthy(s))),
        (waits_for_a_side_stream, hidden_copy),
        (host_work, healthy),
        (churn, lambda s: [s.launch(BF16_GEMM, 100 * US) for _ in range(8)]),
    ],
)
def test_what_a_change_saves_lies_within_the_bound(
    slow: Callable[[Scene], None], fast: Callable[[Scene], object]
) -> None:
    """The scene after the advised change is shorter by something between low and high."""
    before, after = (analysis_of(loop(body)) for body in (slow, fast))
    saved = int(before.devices.window_ns.sum()) - int(after.devices.window_ns.sum())
    first = (before.findings or ())[0]
    if first.step_saving is None:  # no record says which stream waits for which: no model
        assert first.id == "exposed_copy"
        assert first.saves_ns[0] <= saved <= first.saves_ns[1] * 1.05
    else:
        share = 100 * saved / int(before.devices.window_ns.sum())
        assert first.step_saving.low <= share <= first.step_saving.high


@pytest.mark.parametrize(
    ("body", "call"),
    [
        (held_by("cudaHostAlloc"), "cudaHostAlloc"),
        (held_by("cudaEventCreate", "cudaFuncGetAttributes"), "cudaFuncGetAttributes"),
        (rebuilt("cuGraphInstantiateWithParams"), "cuGraphInstantiateWithParams"),
    ],
)
def test_idle_time_inside_a_call_names_it(body: Callable[[Scene], None], call: str) -> None:
    """Of two calls the second keeps the GPU waiting for longer: it still works in the first."""
    first = (analysis_of(loop(body)).findings or ())[0]
    assert first.evidence["call"] == call
    assert call in first.title
    assert first.evidence["calls"] in (4, 8)


def test_a_context_created_late_is_told_also_where_nothing_repeats() -> None:
    scene = Scene()
    for _ in range(2):
        scene.launch(BF16_GEMM, 100 * US)
        scene.inside("init", lambda: scene.call("cuDevicePrimaryCtxRetain", 9 * MS))
    scene.launch(BF16_GEMM, 100 * US)
    found = [one for one in analysis_of(scene).findings or () if one.id == "context_creation"]
    # From the end of each kernel to that of the call: 9 ms less what of the kernel it outlasts.
    assert found[0].evidence["idle_ns"] == 2 * (9 * MS - 101 * US)
    assert found[0].saves_ns[0] == 0


def test_graphs_that_are_captured_once_are_not_rebuilt() -> None:
    scene = Scene()
    for _ in range(5):
        scene.call("cudaGraphInstantiate", 900 * US)
    for index in range(6):
        scene.inside(f"step {index}", lambda: scene.replay(2, 1 * MS, 0))
    assert ids(analysis_of(scene)) == []


def marked(scene: Scene, mark: str) -> dict[str, object]:
    """A mark after each wait."""
    waits = [end for _, end, name in scene.calls if name == "cudaStreamSynchronize"]
    trace = scene.trace()
    zero = np.zeros(len(waits), np.int64)
    strings = pa.concat_arrays([trace.strings, pa.array([mark])])
    marks = Marks(zero, zero, np.array(waits) + 1, zero + len(trace.strings), zero - 1, zero - 1)
    return {"strings": strings, "marks": marks}


@pytest.mark.parametrize(("host_ns", "expected"), [(2 * MS, True), (200 * US, False)])
def test_host_work_between_replays_of_graphs(host_ns: int, expected: bool) -> None:
    def body(scene: Scene) -> None:
        scene.replay(20, 30 * US, 0)
        scene.host(host_ns)

    found = {one.id: one for one in analysis_of(loop(body, steps=6)).findings or ()}
    assert ("host_work" in found) is expected
    if expected:
        assert found["host_work"].evidence["launches_per_step"] == 1
        assert "launch_bound" not in found


def test_the_line_of_a_sync_is_named() -> None:
    scene = loop(sync_each_layer)
    first = (analysis_of(scene, **marked(scene, "sync train.py:31")).findings or ())[0]
    assert first.sources == ("train.py:31",)
    assert first.title.startswith("train.py:31")
    assert first.evidence["count"] == 24
    unknown = (analysis_of(scene).findings or ())[0]
    assert unknown.sources == ()
    assert "nvprobe launch marks it" in unknown.advice[0]
    assert unknown.advice[1:] == first.advice
    instrumented = (analysis_of(scene, sidecar=_sidecar()).findings or ())[0]
    assert "--python-backtraces" in instrumented.advice[0]


def _sidecar(**tables: object) -> Sidecar:
    return Sidecar(ModuleCalls.empty(), CaptureRanges.empty(), **tables)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("library", "advice"),
    [("tqdm/std.py:1424", "set_postfix"), ("logging/__init__.py:392", "log ")],
)
def test_a_progress_bar_that_reads_values_has_the_line_that_called_it(
    library: str, advice: str
) -> None:
    scene = loop(sync_each_layer)
    seldom = SyncSource(source=library, stack=(library, "eval.py:7"), count=1)
    often = SyncSource(source=library, stack=(library, "tqdm/utils.py:3", "train.py:31"), count=24)
    known = _sidecar(syncs=(seldom, often))
    first = (analysis_of(scene, **marked(scene, f"sync {library}"), sidecar=known).findings or ())[
        0
    ]
    assert first.id == "implicit_sync"
    assert list(zip(first.sources, first.roles, strict=True)) == [
        (library, "line"),
        ("train.py:31", "from"),
    ]
    assert [one.startswith(advice) for one in first.advice] == [True]
    plain = (analysis_of(scene, **marked(scene, "sync train.py:31"), sidecar=known).findings or ())[
        0
    ]
    assert plain.sources == ("train.py:31",)
    assert not plain.advice[0].startswith(advice)


def broken_graphs(scene: Scene) -> None:
    def forward() -> None:
        for graph in range(4):
            scene.inside(f"graph {graph}/0 fwd", lambda: _ignore(scene.launch(ADD, 20 * US)))
            scene.host(100 * US)

    scene.inside("forward", forward)


def test_a_graph_break_is_told_only_with_its_reason() -> None:
    scene = loop(broken_graphs)
    assert "graph_break" not in ids(analysis_of(scene))
    breaks = (GraphBreak("0/0", "print\n is not traced", "model.py:27", "forward", process=0),) * 3
    analysis = analysis_of(scene, sidecar=_sidecar(breaks=breaks))
    first = (analysis.findings or ())[0]
    assert (first.id, first.sources) == ("graph_break", ("model.py:27",))
    assert first.evidence["reason"] == "print is not traced"
    assert "launch_bound" not in ids(analysis)  # the same idle is not told twice


def compiling(scene: Scene) -> None:
    scene.inside("Torch-Compiled Region: 0/0", lambda: scene.host(0))
    scene.call("cuModuleLoadData", 2 * MS)
    healthy(scene)


def test_ranges_of_torch_tell_that_it_compiles() -> None:
    def body(scene: Scene) -> None:
        scene.inside("_compile.compile_inner (dynamo_timed)", lambda: scene.host(2 * MS))
        healthy(scene)

    analysis = analysis_of(loop(body))
    assert ids(analysis) == ["compile_in_window"]
    finding = (analysis.findings or ())[0]
    assert finding.title.startswith("torch.compile runs inside the captured window")
    assert not any("CUDA_MODULE_LOADING" in way for way in finding.advice)


def test_recompiles_and_a_first_compile_are_told_apart() -> None:
    scene = loop(compiling)
    analysis = analysis_of(scene)
    assert ids(analysis) == ["compile_in_window"]
    assert (analysis.findings or ())[0].title.startswith("Kernels are loaded or compiled inside")
    again = (
        Recompile("0/1", "model.py:9", "f", (Reason("size mismatch at index 0"),), process=0),
    ) * 3
    spans = tuple(CompileSpan("0/1", "fwd", s, e, "model.py:9", "f", process=0)
                  for s, e, name in scene.calls if name == "cuModuleLoadData")  # fmt: skip
    analysis = analysis_of(scene, sidecar=_sidecar(recompiles=again, compile_spans=spans))
    first = (analysis.findings or ())[0]
    assert (first.id, first.sources) == ("recompile", ("model.py:9",))
    assert first.evidence["recompiles"] == 3


@pytest.mark.parametrize(
    ("body", "switch"), [(fp32, "float32_matmul"), (fp32_convolutions, "cudnn")]
)
def test_each_library_has_its_switch_for_tf32(body: Callable[[Scene], None], switch: str) -> None:
    (one,) = analysis_of(loop(body)).findings or ()
    assert switch in one.advice[0]


def paused(scene: Scene, pause: int) -> None:
    scene.host(pause)
    scene.inside("h2d", lambda: scene.upload(10 * US, pageable=False))
    for _ in range(5):
        tiny_kernels(scene)


def test_a_long_pause_is_not_promised_to_who_launches_faster() -> None:
    """Batches made by the training loop itself: the launches around it are slow, too."""
    analysis = analysis_of(loop(lambda scene: paused(scene, 2 * MS), steps=5))
    found = {one.id: one for one in analysis.findings or ()}
    assert set(found) == {"host_work", "launch_bound"}
    pause, launches = found["host_work"], found["launch_bound"]
    assert pause.title.startswith("The GPU waits 2.0")
    assert pause.title.endswith("per step for the host's own work in step, before step/h2d")
    # The first step's pause lies before the first op: no idle time.
    assert (pause.evidence["steps"], pause.evidence["pauses"]) == (4, 4)
    assert pause.step_saving is not None
    assert launches.step_saving is not None
    step = launches.step_saving.step_ns
    assert launches.step_saving.mid / 100 * step < step - 2 * MS  # none of the pauses
    assert pause.step_saving.mid / 100 * step == pytest.approx(2 * MS, rel=0.1)


def test_gaps_with_a_cause_of_their_own_are_no_pauses() -> None:
    """Memory from the driver takes as long in every step, and another kernel comes after it."""

    def body(scene: Scene) -> None:
        paused(scene, 3 * MS)
        for _ in range(2):
            scene.host(100 * US)  # let the GPU run dry
            scene.call("cudaMalloc", 3 * MS)
            scene.inside("grow", lambda: _ignore(scene.launch(BF16_GEMM, 10 * US)))

    found = {one.id: one for one in analysis_of(loop(body, steps=5)).findings or ()}
    pause = found["host_work"]
    assert pause.title.endswith("own work in step, before step/h2d")
    assert (pause.evidence["steps"], pause.evidence["pauses"]) == (4, 4)


def found_idle(analysis: Analysis) -> int:
    """ns of idle time in which the host launches or does something else."""
    assert analysis.waits is not None
    idle = analysis.waits.idle
    return int(idle.ns[np.isin(idle.cause, (Cause.HOST, Cause.LAUNCH_CALL))].sum())


def test_a_pause_before_all_launches_stays() -> None:
    analysis = analysis_of(loop(lambda scene: paused(scene, 1 * MS), steps=5))
    assert ids(analysis) == ["launch_bound", "host_work"]
    saving = (analysis.findings or ())[0].step_saving
    assert saving is not None
    assert saving.mid / 100 * saving.step_ns < min(
        found_idle(analysis) / 5, saving.step_ns - 1 * MS
    )


def test_a_pause_that_comes_once_is_no_pattern() -> None:
    pauses = iter((0, 0, 30 * MS, 0, 0))
    analysis = analysis_of(loop(lambda scene: paused(scene, next(pauses)), steps=5))
    assert ids(analysis) == ["launch_bound"]
    saving = (analysis.findings or ())[0].step_saving
    assert saving is not None
    assert saving.step_ns < 3 * MS


def test_a_kernel_launched_once_is_no_pattern() -> None:
    def twice(scene: Scene) -> None:
        scene.launch(CUSTOM, 300 * US, grid=1)

    assert ids(analysis_of(loop(twice, steps=2))) == []
    assert ids(analysis_of(loop(twice, steps=3))) == ["kernel_underfills"]


def test_one_step_may_be_start_up() -> None:
    assert ids(analysis_of(loop(tiny_kernels, steps=1))) == []
    assert analysis_of(loop(tiny_kernels, steps=1)).verdict.startswith("unclear")
    assert ids(analysis_of(loop(sync_each_layer, steps=1))) == []


def test_lost_launches_leave_no_verdict() -> None:
    scene = loop(tiny_kernels)
    for _ in range(9):
        scene.call("cudaLaunchKernel", 1000)
    analysis = analysis_of(scene)
    assert analysis.verdict.startswith("unclear: 9 launches left no GPU record")
    assert ids(analysis) == []


def test_gaps_inside_graph_replays() -> None:
    def replay(scene: Scene) -> None:
        scene.replay(30, 2 * US, gap=4 * US)
        scene.host(100 * US)

    analysis = analysis_of(loop(replay))
    assert "graph_gaps" in ids(analysis)
    gaps = next(one for one in analysis.findings or () if one.id == "graph_gaps")
    assert any("torch.compile" in line for line in gaps.advice)
    assert gaps.evidence["replays"] == 4
    assert gaps.evidence["idle_inside_ns"] == 4 * 29 * 4 * US


def test_replays_of_a_compiled_graph_are_not_to_be_compiled_before_capture() -> None:
    def replay(scene: Scene) -> None:
        scene.inside("graph 0/0 fwd", lambda: scene.replay(30, 2 * US, gap=4 * US))
        scene.host(100 * US)

    found = analysis_of(loop(replay)).findings or ()
    gaps = next(one for one in found if one.id == "graph_gaps")
    assert gaps.advice == ("larger batches in a graph, pooled by batch size",)


def test_memory_near_the_limit_and_a_costly_profiler() -> None:
    scene = loop(healthy)
    trace = scene.trace()
    capacity = int(trace.devices.memory_bytes[0])
    one = np.zeros(1, np.int64)
    full = int(capacity * 0.95)
    events = MemoryEvents(one, one, one + 2000, one, one, one + full, one + full, one + full)
    overheads = Overheads(one, one, one + 1000, one + 3 * MS, one)
    analysis = analysis_of(scene, memory=events, overheads=overheads)
    assert sorted(ids(analysis)) == ["memory_near_limit", "profiler_cost"]
    assert all(found.severity == "info" for found in analysis.findings or ())
    assert isinstance(analysis.memory.devices if analysis.memory else None, DeviceMemory)


def test_what_saves_most_stands_first() -> None:
    def both(scene: Scene) -> None:
        slow_loader(scene)
        for _ in range(2):
            scene.launch(FP32_GEMM, 300 * US)

    analysis = analysis_of(loop(both))
    assert ids(analysis) == ["input_wait", "fp32_gemm"]
    severities = [one.severity for one in analysis.findings or ()]
    assert severities == ["high", "medium"]


def test_data_that_are_ready_save_no_more_than_the_host_waited() -> None:
    def body(scene: Scene) -> None:
        scene.host(4 * MS)
        scene.inside("data", lambda: scene.host(1 * MS))
        healthy(scene)

    found = {one.id: one for one in analysis_of(loop(body)).findings or ()}
    assert found["input_wait"].evidence["idle_ns"] == 3 * MS
    assert found["input_wait"].evidence["host_ns"] == 4 * MS
    saving = found["input_wait"].step_saving
    assert saving is not None
    assert saving.mid / 100 * saving.step_ns == pytest.approx(1 * MS, rel=0.05)


def test_waiting_for_data_once_is_start_up() -> None:
    assert "input_wait" not in ids(analysis_of(loop(slow_loader, steps=1)))


def test_no_cause_is_named_where_none_has_most_of_the_idle_time() -> None:
    def body(scene: Scene) -> None:
        healthy(scene)
        scene.host(4 * MS)
        scene.call("cudaMalloc", 3 * MS)
        scene.inside("data", lambda: scene.host(3 * MS))

    verdict = analysis_of(loop(body)).verdict
    assert verdict.startswith("unclear: the GPU waits for several things: GPU busy")


def test_copies_with_a_stream_of_their_own_are_not_sent_to_one() -> None:
    def body(scene: Scene) -> None:
        scene.upload(3 * MS, pageable=True, stream=13)
        healthy(scene)

    for scene, own in ((pageable, False), (body, True)):
        [found] = analysis_of(loop(scene)).findings or ()
        assert found.id == "pageable_copy"
        assert ("of their own already" in found.advice[1]) == own
        assert ("on a side stream" in found.advice[1]) != own


def test_a_pause_among_few_launches_is_told_by_what_follows() -> None:
    def body(scene: Scene) -> None:
        scene.host(4 * MS)
        scene.inside("h2d", lambda: _ignore(scene.upload(10 * US, pageable=False)))
        scene.inside("forward", lambda: healthy(scene))

    [found] = [one for one in analysis_of(loop(body)).findings or () if one.id == "host_work"]
    words = "per step for the host's own work in step, before step/h2d"
    # Of four steps: the pause of the first lies before the first op.
    assert re.fullmatch(rf"The GPU waits [12]\.\d+ ms {words}", found.title)


def test_collectives_with_a_stream_of_their_own_are_not_sent_to_one() -> None:
    def body(scene: Scene) -> None:
        healthy(scene)
        scene.wait_stream(20, 7)
        scene.launch(ALL_REDUCE, 900 * US, stream=20)
        scene.wait_stream(7, 20)

    for scene, own in ((exposed_all_reduce, False), (body, True)):
        [found] = analysis_of(loop(scene)).findings or ()
        assert found.id == "exposed_communication"
        assert ("of their own already" in found.advice[0]) == own


def test_what_nvprobe_waits_for_itself_is_no_wait_of_the_program() -> None:
    scene = loop(sync_each_layer)
    expected = analysis_of(scene).waits
    scene.launch(BF16_GEMM, 100 * US)
    scene.inside("nvprobe synchronizes", scene.item)
    found = analysis_of(scene).waits
    assert expected is not None
    assert found is not None
    assert len(found.syncs.calls) == len(expected.syncs.calls) > 0


def server(scene: Scene, phase: str) -> None:
    """Three phases side by side, the middle one a fifth of the time and all of the launches."""
    scene.inside("recv", lambda: scene.host(200 * US))
    scene.inside(phase, lambda: healthy(scene))
    scene.inside("process_result", lambda: scene.host(2 * MS))


@pytest.mark.parametrize(("phase", "steps"), [
    ("run_batch", 0), ("scheduler.decode", 0), ("run_batch {}", 6), ("batch", 6),
])  # fmt: skip
def test_a_lesser_phase_is_no_step_unless_it_is_numbered(phase: str, steps: int) -> None:
    scene = Scene()
    for index in range(6):
        server(scene, phase.format(index))
    assert len(analysis_of(scene).steps) == steps


def test_a_step_beside_a_slow_loader_stays_one() -> None:
    scene = Scene()
    for _ in range(4):
        scene.inside("data", lambda: scene.host(9 * MS))
        scene.inside("train_step", lambda: healthy(scene))
    assert len(analysis_of(scene).steps) == 4


def test_waiting_is_no_role_of_a_range_that_launches_kernels() -> None:
    def body(scene: Scene) -> None:
        scene.inside("load_batch", lambda: host_work(scene))

    found = analysis_of(loop(body))
    assert ids(found) == ["host_work"]
    assert ids(analysis_of(loop(slow_loader))) == ["input_wait"]
