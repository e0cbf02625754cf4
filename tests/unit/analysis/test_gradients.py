"""Gradients of whole tables, and gradients that are added to zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvprobe.analysis.findings.gradients import _passes_of
from nvprobe.analysis.findings.model import Finding
from tests.unit.analysis.scenes import ADD, BF16_GEMM, CUSTOM, Scene, analysis_of, loop, unprofiled

US = 1000
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
ROWS = "void at::native::compute_grad_weight<float, long>(int)"
LISTS = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<{0}>, {1}>(int)"
ZEROS = LISTS.format(1, "at::native::ZeroFunctor<float>")
ADAM = LISTS.format(4, "at::native::FusedAdamMathFunctor<float, 4, (ADAM_MODE)0, 0>")
SCALED = LISTS.format(
    1, "at::native::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>"
)
LARGE, SMALL = 4096, 16
"""Blocks of kernels that work on a table, and on anything else."""


def found(body: Callable[[Scene], None]) -> dict[str, Finding]:
    scene = loop(body, steps=5)
    return {one.id: one for one in analysis_of(scene, profiling=unprofiled(scene)).findings or ()}


def nested(scene: Scene, *names: str, body: Callable[[], None]) -> None:
    if names:
        scene.inside(names[0], lambda: nested(scene, *names[1:], body=body))
    else:
        body()


def embedding(scene: Scene, uses: int, sums: int, optimizer: Callable[[], None]) -> None:
    def gradient() -> None:
        scene.launch(FILL, 50 * US, grid=LARGE)
        scene.launch(ROWS, 5 * US)

    def backward() -> None:
        scene.launch(BF16_GEMM, 300 * US)
        for _ in range(uses):
            scene.inside("EmbeddingBackward0", gradient)
        for _ in range(sums):
            scene.launch(ADD, 150 * US, grid=LARGE)
        scene.launch(ADD, 150 * US, grid=SMALL)

    scene.inside("backward", backward)
    scene.inside("optimizer", optimizer)


def test_the_optimizer_updates_the_whole_table() -> None:
    """Seven passes over parameters of which three quarters are the table: 7 * 50 / 0.75 us."""

    def body(scene: Scene) -> None:
        embedding(scene, 1, 0, lambda: scene.launch(ADAM, 467 * US) and None)

    one = found(body)["dense_embedding_gradient"]
    assert one.evidence["of_it_optimizer_ns_per_step"] == pytest.approx(350 * US, rel=0.01)
    assert one.evidence["gpu_ns_per_step"] == pytest.approx(405 * US, rel=0.01)
    assert one.step_saving is not None
    assert one.step_saving.mid == pytest.approx(
        100 * (50 + 350 + 3.5) / (305 + 50 + 150 + 467), abs=3
    )


def test_several_kernels_of_an_optimizer_and_one_tensor_at_a_time() -> None:
    def lists(scene: Scene) -> None:
        embedding(scene, 1, 0, lambda: [scene.launch(SCALED, 100 * US) for _ in range(2)] and None)

    def single(scene: Scene) -> None:
        def steps() -> None:
            scene.launch(ADD, 160 * US)
            scene.launch(ADD, 2 * US)

        embedding(scene, 1, 0, steps)

    of_lists, of_one = (found(body)["dense_embedding_gradient"] for body in (lists, single))
    assert of_lists.evidence["of_it_optimizer_ns_per_step"] == pytest.approx(100 * US, rel=0.01)
    assert of_one.evidence["of_it_optimizer_ns_per_step"] == 160 * US


@pytest.mark.parametrize(("uses", "sums", "expected"), [(1, 0, True), (2, 1, True), (1, 1, False)])
def test_a_table_that_is_the_weight_of_a_product_too(uses: int, sums: int, expected: bool) -> None:
    """Its gradient is dense whatever the embedding's is."""

    def body(scene: Scene) -> None:
        embedding(scene, uses, sums, lambda: scene.launch(ADAM, 400 * US) and None)

    assert ("dense_embedding_gradient" in found(body)) == expected


def test_a_small_table_is_not_worth_a_word() -> None:
    def body(scene: Scene) -> None:
        scene.launch(BF16_GEMM, 2000 * US)
        nested(scene, "backward", "EmbeddingBackward0", body=lambda: small(scene))
        scene.inside("optimizer", lambda: scene.launch(ADAM, 100 * US) and None)

    def small(scene: Scene) -> None:
        scene.launch(FILL, 2 * US, grid=LARGE)
        scene.launch(ROWS, 5 * US)

    assert "dense_embedding_gradient" not in found(body)


@pytest.mark.parametrize(
    ("kernel", "passes"),
    [
        (ADAM, 7),
        (SCALED, 2),
        (LISTS.format(3, "at::native::FusedSgdMathFunctor<float, 3, true, true>"), 5),
        (
            "void multi_tensor_apply_kernel<TensorListScalarListMetadata<float, (int)3>, "
            "at::native::<unnamed>::PointwiseOpScalarListFunctor<float, (int)3, (int)3, (int)0>>",
            4,
        ),
        (
            "void multi_tensor_apply_kernel<T, FusedAdamMathFunctor<c10::BFloat16, (int)4, 0>>(T1)",
            7,
        ),
        (ZEROS, 0),
    ],
)
def test_how_often_an_optimizer_passes_over_its_tensors(kernel: str, passes: int) -> None:
    assert _passes_of(kernel) == passes


def zeroing(scene: Scene, zero: Callable[[], None], passes: int = 1) -> None:
    def accumulate() -> None:
        scene.host(10 * US)
        scene.launch(ADD, 3 * US)

    def backward() -> None:
        for _ in range(20):
            scene.host(10 * US)
            scene.launch(BF16_GEMM, 4 * US)
            scene.inside("torch::autograd::AccumulateGrad", accumulate)

    for _ in range(passes):
        scene.inside("backward", backward)
    scene.inside("optimizer", lambda: scene.launch(CUSTOM, 20 * US) and None)
    zero()


def fills(scene: Scene, count: int) -> None:
    for _ in range(count):
        scene.host(5 * US)
        scene.launch(FILL, 2 * US)


def test_zeros_for_all_gradients_by_one_call() -> None:
    one = found(lambda scene: zeroing(scene, lambda: scene.launch(ZEROS, 10 * US) and None))
    zeroed = one["zeroed_gradients"]
    assert zeroed.evidence["kernels_per_step"] == 1
    assert zeroed.evidence["sums_per_step"] == 20
    assert zeroed.step_saving is not None
    assert zeroed.step_saving.mid > 10


def test_zeros_one_by_one_without_a_range() -> None:
    one = found(lambda scene: zeroing(scene, lambda: fills(scene, 20)))
    assert one["zeroed_gradients"].evidence["kernels_per_step"] == 20
    assert "zeroed_gradients" not in found(lambda scene: zeroing(scene, lambda: fills(scene, 3)))
    assert "zeroed_gradients" not in found(lambda scene: fills(scene, 20))


def test_only_the_first_backward_pass_adds_to_zeros() -> None:
    def body(scene: Scene) -> None:
        zeroing(scene, lambda: scene.launch(ZEROS, 10 * US) and None, passes=3)

    assert found(body)["zeroed_gradients"].evidence["sums_per_step"] == 20


def test_fills_in_a_range_that_says_so_and_elsewhere() -> None:
    def inside(place: str) -> Callable[[Scene], None]:
        def body(scene: Scene) -> None:
            scene.launch(BF16_GEMM, 400 * US)
            scene.inside(place, lambda: scene.launch(FILL, 400 * US) and None)

        return body

    assert "zeroed_gradients" in found(inside("Optimizer.zero_grad#Adam.zero_grad"))
    assert "zeroed_gradients" not in found(inside("forward"))


def test_gradients_that_are_accumulated_are_not_zeroed() -> None:
    assert "zeroed_gradients" not in found(lambda scene: zeroing(scene, lambda: None, passes=2))
