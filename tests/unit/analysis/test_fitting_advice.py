"""Advice that fits the program: what the capture shows decides which."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvprobe.analysis.findings import gather
from nvprobe.analysis.findings.advice import advice_for
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.program import GENERATION, HUGGING_FACE, LIGHTNING, Program, program
from nvprobe.analysis.shapes import range_shapes
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.gaps import device_use
from nvprobe.attribution import attribute
from nvprobe.trace import Sidecar, Trace
from tests.unit.analysis.scenes import ADD, Scene, loop
from tests.unit.analysis.test_code_places import place, traced

US = 1_000


def evidence_of(trace: Trace) -> Evidence:
    """What rules look at, of a trace without defects."""
    attribution = attribute(trace)
    return gather(
        attribution,
        steps(attribution, np.empty(0, np.int64)),
        device_use(attribution),
        np.empty(0, np.int64),
        np.zeros(len(trace.ops), bool),
        range_shapes(trace),
    )


def finding(kind: str, *sources: str) -> Finding:
    """A finding of some rule."""
    own = ("a", "look at the other ranks", "c")
    return Finding(kind, "title", 0, sources, {}, (0, 1), own)


def said(kind: str, known: Program, *sources: str) -> str:
    """All of its advice for this program."""
    return "\n".join(advice_for(finding(kind, *sources), known))


@pytest.mark.parametrize(
    "known",
    [
        Program(sharding="fully_shard", collectives=True),
        Program(sharding="FullyShardedDataParallel", compiled=True),
        Program(collectives=True),
        Program(replicated=True, collectives=True, compiled=True),
    ],
)
def test_no_cuda_graph_where_collectives_or_shards_stand_in_its_way(known: Program) -> None:
    assert "CUDAGraph" not in said("launch_bound", known)
    assert 'torch.compile(mode="reduce-overhead")' not in said("launch_bound", known)


def test_a_plain_loop_may_capture_its_step() -> None:
    assert "torch.cuda.CUDAGraph" in said("launch_bound", Program())
    assert 'torch.compile(mode="reduce-overhead")' in said("launch_bound", Program())


def test_workers_that_are_there_are_not_advised_again() -> None:
    own = finding("input_wait", "train.py:28")
    apart = dataclasses.replace(own, roles=("made_apart",))
    assert advice_for(own, Program()) == own.advice
    assert "more workers" in advice_for(apart, Program())[0]


def test_accumulated_gradients_and_replayed_graphs_do_not_go_together() -> None:
    for compiled in (False, True):
        text = said("launch_bound", Program(passes=2, compiled=compiled))
        assert 'not mode="reduce-overhead": a later micro-batch may overwrite' in text
    assert "clone" in said("launch_bound", Program(compiled=True))


def test_communication_has_the_knobs_of_what_launches_it() -> None:
    ddp = said("exposed_communication", Program(replicated=True, collectives=True))
    assert "bucket_cap_mb" in ddp
    assert "gradient_as_bucket_view" in ddp
    assert "no_sync" not in ddp
    accumulating = Program(replicated=True, collectives=True, passes=4)
    assert "no_sync" in said("exposed_communication", accumulating)
    sharded = said("exposed_communication", Program(sharding="fully_shard"))
    assert "set_modules_to_forward_prefetch" in sharded
    assert "bucket_cap_mb" not in sharded
    older = said("exposed_communication", Program(sharding="FullyShardedDataParallel"))
    assert "backward_prefetch=BACKWARD_PRE" in older
    assert said("exposed_communication", Program(collectives=True)).startswith("a\n")


def test_a_generated_token_is_compiled_by_an_argument() -> None:
    known = Program(trainer=GENERATION)
    assert "cache_implementation" in said("launch_bound", known, "transformers/models/gpt2.py:9")
    assert "cache_implementation" not in said("launch_bound", known, "decode.py:9")


def test_what_is_replayed_as_a_graph_is_not_advised_again() -> None:
    known = Program(trainer=GENERATION, compiled=True, replays=True)
    theirs = said("launch_bound", known, "transformers/generation/utils.py:9")
    assert "cache_implementation" not in theirs
    assert "larger batches" in theirs
    own = said("launch_bound", Program(compiled=True, replays=True), "decode.py:9")
    assert "reduce-overhead" not in own
    assert "compile more of the step" in own


@pytest.mark.parametrize(("reduced", "expected"), [(600, True), (400, False)])
def test_buckets_are_for_reductions(reduced: int, expected: bool) -> None:
    mixed = {"communication_ns": 1000, "reduction_ns": reduced}
    one = dataclasses.replace(finding("exposed_communication"), evidence=mixed)
    text = "\n".join(advice_for(one, Program(replicated=True, collectives=True)))
    assert ("bucket_cap_mb" in text) is expected


@pytest.mark.parametrize(
    ("trainer", "argument"), [(HUGGING_FACE, "TrainingArguments("), (LIGHTNING, "DataLoader(")]
)
def test_a_trainers_code_is_changed_by_its_arguments(trainer: str, argument: str) -> None:
    known = Program(trainer=trainer)
    theirs = said("pageable_copy", known, "accelerate/utils/operations.py:160")
    assert theirs.startswith(argument)
    assert said("pageable_copy", known, "train.py:7").startswith("a\n")
    assert said("pageable_copy", Program(), "accelerate/x.py:1").startswith("a\n")


def test_who_called_a_trainer_does_not_make_its_line_the_users() -> None:
    waits = finding("pageable_copy", "accelerate/utils/operations.py:160", "train.py:7")
    waits = dataclasses.replace(waits, roles=("line", "from"))
    assert "non_blocking" in advice_for(waits, Program(trainer=HUGGING_FACE))[0]


def test_a_read_of_the_trainer_is_not_every_wait_in_a_library() -> None:
    known = Program(trainer=HUGGING_FACE)
    assert "logging_nan_inf_filter" in said("implicit_sync", known, "transformers/trainer.py:1589")
    assert "non_blocking" in said("implicit_sync", known, "accelerate/utils/operations.py:160")
    assert said("implicit_sync", known, "transformers/models/gpt2.py:9").startswith("a\n")


def step_of(micro_batches: int, optimizers: int) -> Scene:
    """A loop with so many backward passes and optimizer calls a step."""

    def body(scene: Scene) -> None:
        def kernel() -> None:
            scene.launch(ADD, 10 * US)

        for _ in range(micro_batches):
            scene.inside("backward", kernel)
        for _ in range(optimizers):
            scene.inside("optimizer", kernel)

    return loop(body)


@pytest.mark.parametrize(
    ("backward", "optimizers", "passes"), [(1, 1, 1), (4, 1, 4), (3, 2, 1), (2, 0, 1)]
)
def test_gradients_accumulate_over_the_passes_of_one_optimizer_step(
    backward: int, optimizers: int, passes: int
) -> None:
    phases = {"backward": "phase", "optimizer": "phase"}
    trace = traced(step_of(backward, optimizers), categories=phases)
    assert program(evidence_of(trace)).passes == passes


@pytest.mark.parametrize(
    ("source", "trainer"),
    [
        ("transformers/trainer.py:1589", HUGGING_FACE),
        ("transformers/models/gpt2/modeling_gpt2.py:274", None),
        ("transformers/generation/utils.py:383", GENERATION),
        ("lightning/pytorch/loops/fit_loop.py:3", LIGHTNING),
        ("train.py:3", None),
    ],
)
def test_a_trainer_is_known_by_its_lines(source: str, trainer: str | None) -> None:
    trace = traced(step_of(1, 1), place("data", source, category="phase"))
    assert program(evidence_of(trace)).trainer == trainer


def test_shards_and_replicas_are_known_by_their_ranges() -> None:
    def body(scene: Scene) -> None:
        scene.inside("FSDP::pre_backward (7)", lambda: scene.host(US))
        scene.launch(ADD, 10 * US)

    assert program(evidence_of(loop(body).trace())).sharding == "fully_shard"
    trace = step_of(1, 1).trace()
    roots = dataclasses.replace(trace.sidecar, roots=("DistributedDataParallel",))
    found = program(evidence_of(dataclasses.replace(trace, sidecar=roots)))
    assert (found.replicated, found.sharding, found.collectives) == (True, None, False)


def test_optimizers_only_where_something_trains() -> None:
    for kind in ("launch_bound", "elementwise_chain"):
        assert "optimizers" not in said(kind, Program(trains=False))
    assert "optimizers" in said("launch_bound", Program())
    decodes = loop(lambda scene: scene.launch(ADD, 5 * US))
    assert program(evidence_of(decodes.trace())).trains, "no hooks that would name an optimizer"
    hooked = dataclasses.replace(decodes.trace(), sidecar=Sidecar())
    assert not program(evidence_of(hooked)).trains
