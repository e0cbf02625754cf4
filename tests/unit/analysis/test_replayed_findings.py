"""Findings that only a replay can weigh, each where it is worth making and where it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvprobe.analysis import Analysis
from nvprobe.analysis.replay import gate
from tests.unit.analysis.scenes import (
    ADD,
    BF16_GEMM,
    CUSTOM,
    SOFTMAX,
    Scene,
    analysis_of,
    loop,
    unprofiled,
)

US = 1000
FP64_GEMM = "cutlass_80_tensorop_d884gemm_128x64_16x3_nn_align1"
TO_DOUBLE = "void at::native::vectorized_elementwise_kernel<4, at::native::copy<double>>(int)"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
CONVERSION = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float>(int)"
SCAN = "void cub::DeviceScanKernel<int>(int)"
COUNT = "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<int>(int)"
SELECT = "void at_cuda_detail::cub::detail::select::DeviceSelectSweepKernel<int>(int)"
SORT = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<int>(int)"
ADD_ROWS = "void (anonymous namespace)::indexing_backward_kernel<c10::BFloat16, 4>(long const*)"
FIND_ROWS = "void at::native::(anonymous namespace)::write_indices<long>(long*, long)"
SMALL = tuple(f"void my_small_kernel_{number}(int)" for number in range(4))


def ids(body: Callable[[Scene], None]) -> list[str]:
    return [one.id for one in analyzed(body).findings or ()]


def analyzed(body: Callable[[Scene], None]) -> Analysis:
    scene = loop(body, steps=5)
    return analysis_of(scene, profiling=unprofiled(scene))


def parameters(scene: Scene, busy: int = 0) -> None:
    scene.inside("forward", lambda: work(scene, 200 * US))
    if busy:
        work(scene, busy)

    def each() -> None:
        for _ in range(30):
            for name in SMALL:
                scene.host(10 * US)
                scene.launch(name, 2 * US)

    scene.inside("optimizer", each)


def work(scene: Scene, ns: int) -> None:
    scene.launch(BF16_GEMM, ns)


def test_a_loop_over_parameters() -> None:
    first = (analyzed(parameters).findings or ())[0]
    assert first.id == "launch_loop"
    assert first.evidence["launches_per_step"] == 120
    assert first.evidence["different_kernels"] == 4
    assert first.step_saving is not None
    assert first.step_saving.low > 30


def test_a_loop_behind_a_busy_gpu_is_not_worth_it() -> None:
    found = analyzed(lambda scene: parameters(scene, busy=20_000 * US)).findings or ()
    assert "launch_loop" not in [one.id for one in found]


def test_a_loop_that_reads_values_is_no_loop_of_launches() -> None:
    def reads(scene: Scene) -> None:
        for _ in range(40):
            scene.launch(SMALL[0], 2 * US)
            scene.item()

    found = ids(reads)
    assert found[0] == "implicit_sync"
    assert "launch_loop" not in found


def test_what_a_loop_sets_to_zero_is_a_part_of_its_turns() -> None:
    def norms(scene: Scene) -> None:
        for turn in range(40):
            for name in SMALL:
                if turn % 2 and name == SMALL[0]:
                    scene.fill(1 * US)
                scene.host(10 * US)
                scene.launch(name, 2 * US)

    found = {one.id: one for one in analyzed(norms).findings or ()}
    assert found["launch_loop"].evidence["launches_per_step"] == 160


def test_what_comes_back_after_each_micro_batch_is_no_loop_over_tensors() -> None:
    def micro_batches(scene: Scene) -> None:
        for _ in range(16):
            for name in SMALL:
                scene.host(10 * US)
                scene.launch(name, 2 * US)
            scene.inside("forward", lambda: [scene.launch(ADD, 2 * US) for _ in range(8)])

    assert "launch_loop" not in ids(micro_batches)


def attention(scene: Scene) -> None:
    """Forward and backward of one attention, then something large."""
    kernels = [BF16_GEMM, ADD, SOFTMAX, BF16_GEMM], [
        BF16_GEMM, BF16_GEMM, ADD, SOFTMAX.replace("forward", "backward"), ADD, BF16_GEMM, BF16_GEMM
    ]  # fmt: skip
    for name, each in zip(("forward", "backward"), kernels, strict=True):
        scene.inside(name, lambda each=each: [scene.launch(one, 100 * US) for one in each])
        work(scene, 400 * US) if name == "forward" else None


def test_the_gradients_of_an_attention_are_part_of_it() -> None:
    first = (analyzed(attention).findings or ())[0]
    assert first.id == "unfused_attention"
    assert first.evidence["attentions"] == 10
    assert first.evidence["kernels_each"] == 5.5
    assert first.step_saving is not None
    assert first.step_saving.mid > 60


def test_an_attention_spares_its_launches_too() -> None:
    """The host is the bottleneck: fewer kernels are fewer launches."""

    def slowly(scene: Scene) -> None:
        for _ in range(10):
            for one in (BF16_GEMM, ADD, SOFTMAX, BF16_GEMM):
                scene.host(50 * US)
                scene.launch(one, 20 * US)
            scene.host(50 * US)
            scene.launch(CUSTOM, 5 * US)

    found = {one.id: one for one in analyzed(slowly).findings or ()}
    saving = found["unfused_attention"].step_saving
    assert saving is not None
    assert saving.mid > 20


def uploads(scene: Scene, count: int) -> None:
    def batch() -> None:
        for _ in range(count):
            scene.host(20 * US)
            scene.upload(2 * US, pageable=True)

    scene.inside("h2d", batch)
    work(scene, 300 * US)


@pytest.mark.parametrize(("host", "bound"), [(90 * US, True), (60 * US, False)])
def test_launching_is_the_limit_where_the_gpu_waits_longer_than_it_runs(
    host: int, bound: bool
) -> None:
    def launches(scene: Scene) -> None:
        for _ in range(30):
            scene.host(host)
            scene.launch(CUSTOM, 40 * US)

    assert ("launch_bound" in ids(launches)) == bound


@pytest.mark.parametrize(("pause", "ns", "notable"), [(120, 200, True), (1, 2000, False)])
def test_a_synchronization_with_nothing_read(pause: int, ns: int, notable: bool) -> None:
    """A host that has hardly anything else to do may as well wait."""

    def waits(scene: Scene) -> None:
        for _ in range(6):
            work(scene, ns * US)
            end = max(scene.gpu_free.values())
            scene.call("cudaDeviceSynchronize", max(end - scene.now, 0) + 2 * US)
            scene.host(pause * US)

    assert ("explicit_sync" in ids(waits)) == notable


def test_many_small_copies() -> None:
    found = analyzed(lambda scene: uploads(scene, 60)).findings or ()
    assert found[0].id == "small_copies"
    assert found[0].evidence["copies_per_step"] == 60
    assert "small_copies" not in ids(lambda scene: uploads(scene, 4))


def rollout(scene: Scene, pause: int, turns: int = 10) -> None:
    """What is sent depends on what was read, and the host works out what."""
    for _ in range(turns):
        scene.host(pause)
        scene.inside("h2d", lambda: scene.upload(2 * US, pageable=True) and None)
        for _ in range(4):
            scene.launch(CUSTOM, 10 * US)
        scene.item()

    def launches() -> None:
        for _ in range(60):
            scene.host(20 * US)
            scene.launch(CUSTOM, 10 * US)

    scene.inside("forward", launches)


def test_copies_with_reads_between_them_cannot_be_one() -> None:
    assert "small_copies" not in ids(lambda scene: rollout(scene, 20 * US))


def test_work_of_the_host_between_copies_is_not_saved_by_one_copy() -> None:
    def sent_one_by_one(scene: Scene) -> None:
        for _ in range(10):
            scene.host(500 * US)
            scene.upload(2 * US, pageable=True)
        work(scene, 300 * US)

    found = {one.id: one for one in analyzed(sent_one_by_one).findings or ()}
    copies, pauses = found["small_copies"].step_saving, found["host_work"].step_saving
    assert copies is not None
    assert pauses is not None
    assert copies.mid < 25 < pauses.mid


def test_pauses_of_less_than_two_milliseconds_that_come_back_in_each_step() -> None:
    found = analyzed(lambda scene: rollout(scene, 600 * US)).findings or ()
    assert found[0].id == "host_work"
    assert found[0].evidence["pauses_per_step"] == 10
    assert found[0].step_saving is not None
    assert found[0].step_saving.mid > 50


def passes(scene: Scene) -> None:
    """The same pauses inside of passes, where torch itself takes its time."""
    for name in ("forward", "backward", "optimizer"):
        scene.inside(name, lambda: rollout(scene, 600 * US, turns=3))


@pytest.mark.parametrize(
    "body",
    [lambda scene: rollout(scene, 300 * US), lambda scene: rollout(scene, 450 * US, 1), passes],
    ids=["short", "one beside many launches", "in passes"],
)
def test_what_is_no_work_of_the_host_s_own(body: Callable[[Scene], None]) -> None:
    assert "host_work" not in ids(body)


def masked(scene: Scene, ahead: int = 0) -> None:
    if ahead:
        work(scene, ahead)
    for _ in range(8):
        scene.host(20 * US)
        scene.launch(COUNT, 2 * US)
        scene.item()
        scene.launch(SELECT, 3 * US)
        scene.launch(ADD, 10 * US)
    work(scene, 100 * US)


def test_rows_selected_by_a_mask() -> None:
    found = {one.id: one for one in analyzed(masked).findings or ()}
    assert next(iter(found)) == "mask_select"
    assert found["mask_select"].evidence["selections_per_step"] == 8
    assert found["mask_select"].evidence["selecting_kernels_per_step"] == 16


def gradients_of_rows(scene: Scene, *, before: int = 0) -> None:
    """The backward of a selection: rows become places, are sorted, and gradients are added."""
    for _ in range(8):
        scene.launch(COUNT, 2 * US)
        scene.item()
        scene.launch(SELECT, 3 * US)
        for name in (ADD,) * (4 + before) + (SORT,) * 4:
            scene.host(10 * US)
            scene.launch(name, 2 * US)
        scene.launch(ADD_ROWS, 3 * US)
    work(scene, 100 * US)


def test_the_backward_of_a_selection_sorts_for_it() -> None:
    """Arithmetic on places and the sort go with the selection; what adds gradients stays."""
    found = next(one for one in analyzed(gradients_of_rows).findings or () if one.ops is not None)
    assert found.id == "mask_select"
    assert found.evidence["sorting_launches_per_step"] == 8 * 8
    assert found.step_saving is not None
    assert found.step_saving.mid > 70
    much = analyzed(lambda scene: gradients_of_rows(scene, before=30)).findings or ()
    far = next(one for one in much if one.id == "mask_select")
    assert far.evidence["sorting_launches_per_step"] == 0  # more than an index needs


def test_a_product_with_the_mask_takes_no_longer_than_gathering_its_rows() -> None:
    """Rows are found by `write_indices` and gathered; adding their gradients up is slow."""

    def step(scene: Scene, adding: int, finding: int) -> None:
        for place in ("forward", "backward"):
            scene.launch(COUNT, 2 * US)
            scene.item()
            scene.launch(SELECT, 3 * US)
            scene.launch(FIND_ROWS, finding)
            scene.launch(ADD if place == "forward" else SORT, 10 * US)
        scene.launch(ADD_ROWS, adding)
        work(scene, 300 * US)

    def saving(adding: int, finding: int = 10 * US) -> float:
        some = analyzed(lambda scene: step(scene, adding, finding)).findings or ()
        found = next(one for one in some if one.id == "mask_select")
        assert found.evidence["selecting_kernels_per_step"] == 7
        assert found.step_saving is not None
        return found.step_saving.mid / 100 * found.step_saving.step_ns

    assert saving(200 * US) - saving(10 * US) == pytest.approx(190 * US, rel=0.05)
    assert saving(10 * US, 110 * US) - saving(10 * US) == pytest.approx(200 * US, rel=0.05)


def test_a_scan_without_a_wait_is_no_selection() -> None:
    def scans(scene: Scene) -> None:
        for _ in range(8):
            scene.host(20 * US)
            scene.launch(SCAN, 3 * US)

    assert "mask_select" not in ids(scans)


def test_products_in_double() -> None:
    def doubles(scene: Scene) -> None:
        scene.launch(TO_DOUBLE, 50 * US)
        scene.launch(FP64_GEMM, 400 * US)
        work(scene, 100 * US)

    first = (analyzed(doubles).findings or ())[0]
    assert first.id == "fp64_gemm"
    assert first.step_saving is not None
    assert first.step_saving.mid > 60  # eight times the rate in TF32, and no conversions
    assert "fp64_gemm" not in ids(lambda scene: idle_doubles(scene))


def idle_doubles(scene: Scene) -> None:
    """The same product of a GPU that waits for its host."""
    scene.launch(FP64_GEMM, 40 * US)
    scene.host(2000 * US)
    work(scene, 10 * US)


@pytest.mark.parametrize(("conversions", "expected"), [(6, True), (1, False)])
def test_conversions_of_the_layout(conversions: int, expected: bool) -> None:
    def layers(scene: Scene) -> None:
        for layer in range(6):
            if layer < conversions:
                scene.launch(CONVERSION, 80 * US)
            scene.launch(CONVOLUTION, 100 * US)

    assert ("layout_conversion" in ids(layers)) is expected


def test_a_few_conversions_do_not_make_all_norms_faster() -> None:
    norm = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)"

    def layers(scene: Scene, conversions: int) -> None:
        for layer in range(20):
            if layer < conversions:
                scene.launch(CONVERSION, 20 * US)
            scene.launch(CONVOLUTION, 100 * US)
            scene.launch(norm, 100 * US)

    few, many = (
        {one.id: one for one in analyzed(lambda s, n=n: layers(s, n)).findings or ()}
        for n in (5, 20)
    )
    assert "layout_conversion" not in few or few["layout_conversion"].step_saving.mid < 5
    assert many["layout_conversion"].step_saving.mid > 25


def test_steps_too_long_to_be_replayed_have_bounds_of_idle_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "LONGEST", 0)
    analysis = analyzed(masked)
    (entry,) = [one for one in analysis.missing if one.what == "savings by replay"]
    assert "too many calls" in entry.why
    assert all(one.step_saving is None for one in analysis.findings or ())


def two_streams(scene: Scene) -> None:
    """Compute waits for a copy of another stream, and no record says so."""
    scene.upload(400 * US, pageable=False, stream=13)
    scene.wait_stream(7, 13)
    for _ in range(4):
        scene.launch(BF16_GEMM, 100 * US)
    scene.wait_stream(13, 7)


def test_where_the_replay_is_not_the_step_bounds_are_those_of_idle_time() -> None:
    analysis = analyzed(two_streams)
    (entry,) = [one for one in analysis.missing if one.what == "savings by replay"]
    assert "% off" in entry.why
    found = analysis.findings or ()
    assert [one.id for one in found] == ["exposed_copy"]
    assert found[0].step_saving is None
    assert found[0].saves_ns[1] > 0
