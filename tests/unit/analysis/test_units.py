"""The repeating unit of programs that mark none, and the steps that stand for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.model import FoundBy, Steps
from nvprobe.analysis.selection import Selection, select
from nvprobe.analysis.steps import steps
from nvprobe.attribution import attribute
from nvprobe.attribution.engines import StepPhase
from nvprobe.merging.load import load
from nvprobe.trace.sidecar import Sidecar, SidecarSteps
from tests.conftest import CORPUS
from tests.unit.analysis.scenes import ADD, BF16_GEMM, SOFTMAX, Scene

US = 1_000


def found(scene: Scene) -> Steps:
    return steps(attribute(scene.trace()), np.empty(0, np.int64))


def token(scene: Scene, grid: int = 132, read: bool = True) -> None:
    for name in (BF16_GEMM, SOFTMAX, ADD, BF16_GEMM):
        scene.host(4 * US)
        scene.launch(name, 6 * US, grid=grid)
    if read:
        scene.item()
    scene.host(10 * US)


def test_a_read_back_makes_tokens_and_larger_grids_a_prefill() -> None:
    scene = Scene()
    for _ in range(2):
        token(scene, grid=132 * 16)
        for _ in range(9):
            token(scene)
    table = found(scene)
    assert set(table.found_by.tolist()) == {FoundBy.READ_BACK}
    assert len(table) >= 18
    phases = [StepPhase(phase) for phase in table.phase.tolist()]
    assert set(phases) <= {StepPhase.UNKNOWN, StepPhase.DECODE, StepPhase.PREFILL}


@pytest.mark.parametrize(("prompts", "tokens"), [(1, 12), (3, 9)])
def test_calls_of_a_root_module_are_steps_with_phases(prompts: int, tokens: int) -> None:
    scene = Scene()
    for _ in range(prompts):
        scene.host(50 * US)
        for turn in range(tokens):
            grid = 132 if turn else 132 * 40
            scene.inside(
                "nn.Module: GPT_0",
                lambda grid=grid: scene.inside(
                    "nn.Module: Block_0", lambda: token(scene, grid, read=False)
                ),
            )
            scene.item()
    table = found(scene)
    assert len(table) == prompts * tokens
    assert set(table.found_by.tolist()) == {FoundBy.MODULE_CALL}
    assert table.phase.tolist().count(StepPhase.PREFILL) == prompts
    assert table.phase.tolist().count(StepPhase.DECODE) == prompts * (tokens - 1)
    assert table.ops.tolist()[:-1] == [5] * (len(table) - 1), "the read-back belongs to its token"


def test_a_program_that_trains_has_no_steps_by_calls_of_its_model() -> None:
    scene = Scene()
    for turn in range(8):
        scene.inside("nn.Module: GPT_0", lambda: token(scene, read=False))
        for _ in range(turn % 3):
            scene.inside("Optimizer.step#AdamW.step", lambda: token(scene, read=False))
    assert FoundBy.MODULE_CALL not in found(scene).found_by.tolist()


def test_launches_of_one_cuda_graph() -> None:
    scene = Scene()
    for _ in range(7):
        scene.host(20 * US)
        scene.replay(6, 3 * US, 500)
    table = found(scene)
    assert len(table) == 7
    assert set(table.found_by.tolist()) == {FoundBy.GRAPH_LAUNCH}


def test_steps_of_the_sidecar_where_no_range_was_recorded() -> None:
    scene = Scene()
    begun = []
    for _ in range(6):
        begun.append(scene.now)
        token(scene)
        scene.host(200 * US)
        token(scene)  # the strongest evidence but the sidecar's: ten read-backs
    trace = scene.trace()
    edge = np.array([*begun, scene.now])
    noted = SidecarSteps(
        process=np.zeros(8, np.int64),
        index=np.arange(8) + 40,
        start=np.append(edge, edge[-1] + 900),
        end=np.append(edge[1:], [trace.end_ns + 10, trace.end_ns + 20]),  # two beyond the capture
        found=np.zeros(8, bool),
    )
    table = steps(
        attribute(dataclasses.replace(trace, sidecar=Sidecar(steps=noted))), np.empty(0, np.int64)
    )
    assert table.index.tolist() == [40, 41, 42, 43, 44, 45]
    assert set(table.found_by.tolist()) == {FoundBy.MARK}
    assert table.ops.tolist() == [10] * 6


def test_steps_without_any_range_are_replayed() -> None:
    """The thread that launches stands for the one that has ranges."""
    scene = Scene()
    for _ in range(7):
        scene.host(400 * US)
        scene.replay(6, 20 * US, 500)
    analysis = analyze(attribute(scene.trace()))
    (finding,) = [one for one in analysis.findings or () if one.id == "host_work"]
    assert finding.step_saving is not None
    assert finding.evidence["launches_per_step"] == 1


def test_the_period_of_kernels() -> None:
    scene = Scene()
    for _ in range(3):
        scene.launch(SOFTMAX, 9 * US)
    for _ in range(12):
        token(scene, read=False)
    table = found(scene)
    assert set(table.found_by.tolist()) == {FoundBy.KERNEL_PERIOD}
    assert len(table) in (11, 12)
    assert set(table.ops.tolist()[:-1]) == {4}


def test_layers_of_one_call_of_a_model_are_no_steps() -> None:
    scene = Scene()

    def layers() -> None:
        for _ in range(12):
            token(scene, read=False)

    scene.inside("nn.Module: GPT_0", layers)
    assert not len(found(scene))


def test_what_repeats_nothing_has_no_steps() -> None:
    scene = Scene()
    random = np.random.default_rng(3)
    for _ in range(60):
        scene.host(int(random.integers(1, 9)) * US)
        scene.launch(f"kernel_{random.integers(0, 50)}", 5 * US)
    assert not len(found(scene))


def slow_start(scene: Scene, tokens: int) -> None:
    scene.upload(300 * US, pageable=True)
    scene.host(4_000 * US)

    def call(turn: int) -> None:
        scene.host(2_000 * US if turn < 6 else 0)
        token(scene, read=False)

    for turn in range(tokens):
        scene.inside("nn.Module: GPT_0", lambda turn=turn: call(turn))


def test_a_whole_run_is_told_by_its_steady_steps() -> None:
    scene = Scene()
    slow_start(scene, 30)
    trace = scene.trace()
    analysis = analyze(select(trace, Selection()))
    assert analysis.left_out is not None
    assert analysis.left_out.warmup_steps == 6
    assert len(analysis.steps) == 30
    assert len(analysis.steps.shown) == 24
    assert analysis.ledger.total.ops == 24 * 4
    everything = analyze(select(trace, Selection(everything=True)))
    assert everything.left_out is None
    assert everything.ledger.total.ops == len(trace.ops)


def test_the_steady_steps_of_a_run_without_a_gpu() -> None:
    scene = Scene()
    for number in range(12):
        cost = 900 * US if number == 0 else 10 * US
        scene.inside(f"step {number}", lambda cost=cost: scene.host(cost))
    analysis = analyze(select(scene.trace(), Selection()))
    assert analysis.left_out is not None
    assert (analysis.left_out.warmup_steps, analysis.left_out.warmup_ns) == (1, 900 * US)
    assert analysis.steps.shown.wall_ns.tolist() == [10 * US] * 11
    assert analysis.profiler is not None
    assert analysis.profiler.profiled_ns == 10 * US


@pytest.mark.skipif(not (CORPUS / "runs").exists(), reason=f"no corpus at {CORPUS}")
def test_generation_of_the_corpus() -> None:
    analysis = analyze(select(load(CORPUS / "runs" / "gen"), Selection()))
    table = analysis.steps
    assert len(table) == 120
    assert table.phase.tolist().count(StepPhase.PREFILL) == 3
    assert table.phase.tolist().count(StepPhase.DECODE) == 117
    assert analysis.left_out is not None
    assert analysis.left_out.warmup_steps == 40, "the first of three requests"
    assert table.index[table.steady].tolist() == list(range(40, 120))
    assert analysis.verdict.startswith("launch-bound in forward/GPT2LMHeadModel")
