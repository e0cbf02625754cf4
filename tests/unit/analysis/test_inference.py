"""Phases, budget, slowest steps and findings of inference, on scenes named as engines name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.inference.budget import Part
from nvprobe.analysis.model import FoundBy
from nvprobe.attribution import attribute
from nvprobe.attribution.engines import StepPhase
from tests.unit.analysis.scenes import ADD, BF16_GEMM, Scene, unprofiled

US = 1_000


def forward(scene: Scene, ns: int = 20 * US) -> None:
    for _ in range(4):
        scene.host(5 * US)
        scene.launch(BF16_GEMM, ns)


def iteration(
    scene: Scene, prefill: int, decode: int, body: Callable[[], None], read: bool = True
) -> None:
    """One of a server: schedule, execute, sample, read back."""
    scene.inside("schedule: allocate_slots", lambda: scene.host(12 * US))
    name = f"execute_context_{int(prefill > 0)}({prefill})_generation_{decode}({decode})"
    scene.inside(name, body)
    scene.inside("gpu_model_runner: sample", lambda: scene.launch(ADD, 3 * US))
    if read:
        scene.item()


def analyzed(scene: Scene) -> Analysis:
    trace = scene.trace()
    cost = unprofiled_or_none(scene)
    return analyze(attribute(dataclasses.replace(trace, profiling=cost)))


def unprofiled_or_none(scene: Scene) -> object:
    return unprofiled(scene) if any(one[2].startswith("step ") for one in scene.ranges) else None


def test_phases_count_requests_and_tokens_once_each() -> None:
    scene = Scene()
    iteration(scene, 512, 0, lambda: forward(scene, 90 * US))
    for _ in range(10):
        iteration(scene, 0, 8, lambda: forward(scene))
    found = analyzed(scene).inference
    assert found is not None
    rows = {StepPhase(phase): i for i, phase in enumerate(found.phases.phase.tolist())}
    decode = rows[StepPhase.DECODE]
    assert found.phases.steps[decode] == 10
    assert found.phases.requests[decode] == 80
    assert found.phases.tokens[decode] == 80
    assert found.phases.tokens[rows[StepPhase.PREFILL]] == 512
    expected = 80 * 1e9 / found.phases.total_ns[decode]
    assert found.phases.tokens_per_s[decode] == pytest.approx(expected)
    assert found.phases.wall_p50_ns[decode] <= found.phases.interval_ns[decode]


def test_the_budget_of_a_step_names_the_parts_of_the_engine() -> None:
    scene = Scene()
    for _ in range(10):
        iteration(scene, 0, 8, lambda: forward(scene, 2 * US), read=False)
    found = analyzed(scene).inference
    assert found is not None
    parts = found.budget.parts
    assert sum(parts.values()) == found.budget.step_ns
    assert 6 * US <= parts[Part.SCHEDULE] <= 12 * US, "the GPU still works for a part of it"
    assert {Part.BUSY, Part.LAUNCH} <= parts.keys()


@pytest.mark.parametrize("between_us", [2, 200])
def test_a_host_that_is_late_between_iterations_bounds_the_run(between_us: int) -> None:
    """The replay knows the steps: that the GPU is busy in them says nothing of the time between."""
    scene = Scene()

    def forward_step() -> None:
        scene.launch(BF16_GEMM, 300 * US)
        scene.host(300 * US)

    for index in range(8):
        scene.inside("_update_requests", lambda: scene.host(between_us * US))
        name = f"[Executor] _forward_step {index}: 0 ctx reqs, 4 gen reqs"
        scene.inside(name, forward_step)
    found = analyzed(scene).verdict
    assert found.startswith("host-bound" if between_us > 100 else "GPU-bound")
    assert ("after a gap of 20" in found) == (between_us > 100)


def test_a_prefill_between_decode_steps_is_a_finding_that_saves_nothing() -> None:
    scene = Scene()
    for turn in range(20):
        if turn in (7, 13):
            iteration(scene, 4096, 8, lambda: forward(scene, 900 * US))
        iteration(scene, 0, 8, lambda: forward(scene))
    analysis = analyzed(scene)
    (finding,) = [one for one in analysis.findings or () if one.id == "prefill_stall"]
    assert finding.evidence["steps"] == 2
    assert finding.evidence["prefill_tokens"] == 8192
    assert finding.saves_ns == (0, 0)
    assert analysis.findings is not None
    assert analysis.findings[0] is finding, "tokens are later by more than anything else saves"
    assert finding.severity == "high"
    assert analysis.inference is not None
    slow = analysis.inference.slowest[0]
    assert slow.reason == "prefill"
    assert analysis.steps.phase[slow.step] == StepPhase.MIXED


def test_a_mixed_step_stalls_decode_where_nvprobe_marks_the_steps_around_it() -> None:
    scene = Scene()
    for turn in range(20):
        tokens = 4096 if turn in (7, 13) else 0
        name = f"execute_context_{int(tokens > 0)}({tokens})_generation_8(8)"
        body = many_long if tokens else many
        scene.inside(
            f"step {turn}",
            lambda name=name, body=body: scene.inside(name, lambda: body(scene)),
        )
    (finding,) = [one for one in analyzed(scene).findings or () if one.id == "prefill_stall"]
    assert finding.evidence["steps"] == 2


def many_long(scene: Scene) -> None:
    for _ in range(4):
        scene.launch(BF16_GEMM, 9_000 * US)


def test_replays_of_a_captured_graph_are_not_compiled_code() -> None:
    """Kernels of eager torch in a graph that the program captured itself: nothing fell back."""
    scene = Scene()
    for turn in range(12):
        scene.inside(
            f"step {turn}",
            lambda: scene.inside("cudagraph replay 1", lambda: scene.replay(60, 2 * US, 900)),
        )
        scene.host(90 * US)
    found = [one.id for one in analyzed(scene).findings or ()]
    assert "unfused_compiled" not in found
    assert "graph_gaps" in found


def replayed(scene: Scene) -> None:
    scene.replay(6, 3 * US, 200)


def many(scene: Scene) -> None:
    for _ in range(3):
        forward(scene, 2 * US)


@pytest.mark.parametrize("missed", [0, 6])
def test_batches_beyond_the_captured_graphs(missed: int) -> None:
    scene = Scene()
    for turn in range(18):
        bare = turn % 3 == 0 and turn // 3 < missed
        batch = 40 if bare else 8
        launched = many if bare else replayed
        iteration(scene, 0, batch, lambda launched=launched: launched(scene))
    found = [one for one in analyzed(scene).findings or () if one.id == "graph_missed"]
    assert bool(found) == bool(missed)
    for finding in found:
        assert finding.evidence["steps_without_graph"] == 6
        assert finding.evidence["largest_batch_with_graph"] == 8
        assert "beyond 8" in finding.title
        low, high = finding.saves_ns
        assert 0 <= low < high


def test_missed_graphs_are_replayed_where_the_replayed_steps_miss_them_as_often() -> None:
    scene = Scene()
    for turn in range(24):
        bare = turn % 2 == 1

        def body(bare: bool = bare) -> None:
            if not bare:
                scene.replay(24, 3 * US, 200)
            for _ in range(24 if bare else 0):
                scene.host(12 * US)
                scene.launch(ADD, 3 * US)

        iteration(scene, 0, 16 if bare else 8, body)
    (finding,) = [one for one in analyzed(scene).findings or () if one.id == "graph_missed"]
    saving = finding.step_saving
    assert saving is not None
    # A step with a graph takes 140 µs, one without 480: of both, a third.
    assert saving.low < 35 < saving.high
    assert analyzed(scene).findings[0].id == "graph_missed"  # type: ignore[index]


def test_padding_of_captured_batches() -> None:
    scene = Scene()
    for _ in range(9):
        scene.inside("decode[bs=65/128 tok=65 d=65]", lambda: forward(scene))
    (finding,) = [one for one in analyzed(scene).findings or () if one.id == "batch_padding"]
    assert finding.evidence["padding_share"] == pytest.approx(1 - 65 / 128, abs=1e-4)
    assert finding.saves_ns[0] == 0


def test_garbage_collection_in_steps() -> None:
    scene = Scene()

    def collect() -> None:
        scene.inside("garbage collection", lambda: scene.host(400 * US))
        forward(scene)

    for turn in range(12):
        iteration(scene, 0, 8, collect if turn == 6 else lambda: forward(scene))
    analysis = analyzed(scene)
    (finding,) = [one for one in analysis.findings or () if one.id == "garbage_collection"]
    assert finding.evidence["steps"] == 1
    assert finding.evidence["ns"] == 400 * US
    assert analysis.inference is not None
    assert analysis.inference.slowest[0].reason in ("garbage_collection", "host")


@pytest.mark.parametrize("every", [1, 12])
def test_garbage_collection_is_replayed_where_the_replayed_steps_have_it(every: int) -> None:
    """A step of 597 µs, of which Python collects garbage for 400; half of that is left, or none."""
    scene = Scene()

    def body(turn: int) -> None:
        if turn % every == 0:
            scene.inside("garbage collection", lambda: scene.host(400 * US))
        forward(scene, 45 * US)
        scene.item()

    for turn in range(12):
        scene.inside(f"step {turn}", lambda turn=turn: body(turn))
    (finding,) = [one for one in analyzed(scene).findings or () if one.id == "garbage_collection"]
    saving = finding.step_saving
    if every > 1:
        assert saving is None
    else:
        assert saving is not None
        assert 0 < saving.low < 33 < saving.mid < 100 * 400 / 597 < saving.high


def test_kernels_of_a_phase_by_what_engines_call_them() -> None:
    scene = Scene()
    names = {
        "void vllm::reshape_and_cache_flash_kernel<float>(int)": "KV cache",
        "fused_moe_kernel": "MoE",
        "void vllm::cross_device_reduce_1stage<float, 8>(int)": "all-reduce",
        "void at::native::reduce_kernel<512, at::native::ArgMaxOps<float>>(int)": "sampling",
        "void flash::flash_fwd_splitkv_kernel<int>(int)": "attention",
        BF16_GEMM: "gemm",
    }

    def work() -> None:
        for name in names:
            scene.launch(name, 10 * US)

    for _ in range(6):
        scene.inside("step[DECODE bs=8]", work)
    found = analyzed(scene).inference
    assert found is not None
    rows = found.families.rows
    by_name = {
        found.families.names[family]: (ops, ns)
        for family, ops, ns in zip(
            rows.family.tolist(), rows.ops.tolist(), rows.gpu_ns.tolist(), strict=True
        )
    }
    assert by_name == dict.fromkeys(names.values(), (6, 60 * US))


def test_a_marked_step_around_one_iteration_has_its_numbers() -> None:
    scene = Scene()
    for number in range(6):
        inner = "prefill[bs=2 tok=64]" if number == 0 else "decode[bs=2 tok=2]"
        scene.inside(
            f"ProfilerStep#{number}",
            lambda inner=inner: scene.inside(inner, lambda: forward(scene)),
        )
    steps = analyzed(scene).steps
    assert steps.index.tolist() == list(range(6))
    assert set(steps.found_by.tolist()) == {FoundBy.MARK}
    assert steps.phase.tolist() == [StepPhase.PREFILL, *[StepPhase.DECODE] * 5]
    assert steps.prefill_tokens[0] == 64
    assert steps.decode_tokens.tolist()[1:] == [2] * 5


def test_a_server_without_requests_waits_for_nothing_that_could_be_saved() -> None:
    scene = Scene()
    for turn in range(12):
        if turn == 6:
            scene.inside("scheduler.recv_requests", lambda: scene.host(5_000 * US))
        scene.inside("step[DECODE bs=8]", lambda: forward(scene))
    analysis = analyzed(scene)
    idle = analysis.waits
    assert idle is not None
    waited = {one.path for one in analysis.findings or ()}
    paths = analysis.attribution.paths
    assert not any(path >= 0 and "recv" in paths.text(path) for path in waited)
    from nvprobe.analysis.waiting.host_causes import Cause

    assert int(idle.idle.ns[idle.idle.cause == Cause.NO_WORK].sum()) >= 4_700 * US
    assert np.isin(Cause.NO_WORK, idle.idle.cause)


@pytest.mark.parametrize(("first", "told"), [("DRAFT", True), ("DECODE", False)])
def test_what_a_draft_model_costs_is_a_fact_without_a_saving(first: str, told: bool) -> None:
    scene = Scene()
    for _ in range(6):
        scene.inside(f"step[{first} bs=4]", lambda: forward(scene))
        scene.inside("step[TARGET_VERIFY bs=4]", lambda: forward(scene))
        scene.host(50 * US)
    found = {one.id: one for one in analyzed(scene).findings or ()}
    assert ("draft_cost" in found) == told
    if told:
        assert found["draft_cost"].saves_ns == (0, 0)
        spent = found["draft_cost"].evidence
        assert 0 < spent["draft_ns"] < spent["verify_ns"]
