"""Weights that autocast casts again in every micro-batch, and what is none of that."""

from __future__ import annotations

import dataclasses

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from tests.unit.analysis.scenes import BF16_GEMM, Scene, loop, unprofiled
from tests.unit.analysis.test_code_places import traced

US = 1_000
TO_BF16 = (
    "void at::native::vectorized_elementwise_kernel<(int)8, "
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) "
    "(instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
TO_FP32 = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)"
LAYERS = 12


def step(scene: Scene, micro_batches: int, cached: bool = False, accumulated: bool = True) -> None:
    """So many passes; ``cached``: only activations are cast again."""

    def forward(first: bool) -> None:
        for _ in range(LAYERS):
            scene.launch(TO_BF16, 10 * US)  # an activation
            if first or not cached:
                scene.launch(TO_BF16, 40 * US)  # its weight
            scene.launch(BF16_GEMM, 50 * US)

    def backward() -> None:
        for _ in range(LAYERS):
            scene.launch(BF16_GEMM, 50 * US)
            scene.inside("ToCopyBackward0", lambda: scene.host(US) or _cast(scene))
            follows = "torch::autograd::AccumulateGrad" if accumulated else "AddmmBackward0"
            scene.inside(follows, lambda: scene.host(US))

    for number in range(micro_batches):
        scene.inside("Net", lambda: forward(number == 0))  # noqa: B023
        scene.inside("backward", backward)
    scene.inside("optimizer", lambda: _optimizer(scene))


def _cast(scene: Scene) -> None:
    scene.launch(TO_FP32, 30 * US)


def _optimizer(scene: Scene) -> None:
    scene.launch("adam(int)", 20 * US)


def found(micro_batches: int, **more: bool) -> Analysis:
    """The analysis of a loop of such steps."""
    scene = loop(lambda scene: step(scene, micro_batches, **more), steps=5)
    kinds = {"Net": "module", "backward": "phase", "optimizer": "phase"}
    trace = dataclasses.replace(traced(scene, categories=kinds), profiling=unprofiled(scene))
    return analyze(attribute(trace))


def test_weights_cast_again_in_each_micro_batch() -> None:
    one = {one.id: one for one in found(4).findings or ()}["weight_casts"]
    assert one.evidence["weights"] == LAYERS
    assert one.evidence["passes_per_step"] == 4
    assert one.evidence["repeated_casts_per_step"] == 3 * LAYERS
    assert one.evidence["repeated_casts_ns_per_step"] == 3 * LAYERS * 40 * US
    assert one.evidence["repeated_gradient_casts_ns_per_step"] == 3 * LAYERS * 30 * US
    assert one.step_saving is not None
    # Twelve layers of 50 + 50 us of products and 80 us of casts, four times, and the optimizer.
    longest = 3 * LAYERS * (40 + 30) * US / (4 * LAYERS * 180 * US + 20 * US)
    assert one.step_saving.mid / 100 <= longest
    assert one.step_saving.low <= one.step_saving.mid <= one.step_saving.high


@pytest.mark.parametrize(
    ("micro_batches", "cached", "accumulated"),
    [(1, False, True), (4, True, True), (4, False, False)],
)
def test_no_repeats_no_finding(micro_batches: int, cached: bool, accumulated: bool) -> None:
    """One pass a step; casts that are kept; gradients that are no weights'."""
    analysis = found(micro_batches, cached=cached, accumulated=accumulated)
    assert "weight_casts" not in [one.id for one in analysis.findings or ()]
