"""Each kind of the catalogue, where it is the cause and where it is not worth a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis import Analysis
from nvprobe.analysis.findings import NOTABLE
from nvprobe.analysis.findings.by_kernel import BY_KERNEL
from nvprobe.analysis.findings.habits import HABITS
from nvprobe.analysis.findings.model import Finding
from nvprobe.trace import Counters, OpKind, Processes
from nvprobe.trace.sidecar import AllocatorSamples
from tests.conftest import ROOT
from tests.unit.analysis.scenes import (
    ADD,
    ALL_REDUCE,
    BF16_GEMM,
    CUSTOM,
    H200,
    Scene,
    analysis_of,
    loop,
    unprofiled,
)

US = 1000
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)>(int)"
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase &)::[lambda(float) (instance 1)]>(int)"
)
ANY = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, "
    "at::native::func_wrapper_t<bool, at::native::or_kernel_cuda(at::TensorIterator&)>>>(int)"
)
NOT_EQUAL = "void at::native::elementwise_kernel<at::native::CompareEqFunctor<float>>(int)"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
INTEGERS = ALL_REDUCE.replace("bf16", "i32")
KERNELS = {
    "unaligned_products": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_"
    "64x3_nn_align2>(T1::Params)",
    "index_gradient": "void (anonymous namespace)::indexing_backward_kernel_stride_1<float>(long*)",
    "strided_copy": COPY,
    "concatenation": "void at::native::CatArrayBatchedCopy<float, unsigned int, 3>(float*)",
    "repeated_tensor": COPY,
    "large_softmax_loss": "void cunn_SoftMaxForward<float, LogSoftMaxForwardEpilogue>(float*)",
    "slow_attention": "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(Params)",
    "fp32_attention": "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)",
    "full_sort": "void cub::DeviceRadixSortOnesweepKernel<long>(int)",
    "general_convolution": "void im2col_kernel<float>(int)",
    "grouped_convolution": "void conv_depthwise2d_forward_kernel<float>(int)",
}


ALIGNED = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align8>(int)",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(int)",
    "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1>(int)",
)
"""Loads of 16 bytes; products off the tensor cores; FP64, of which one value has 8 bytes."""


def found(body: Callable[[Scene], None], **changes: object) -> dict[str, Finding]:
    return {one.id: one for one in analyzed(body, **changes).findings or ()}


def analyzed(body: Callable[[Scene], None], **changes: object) -> Analysis:
    scene = loop(body, steps=5)
    return analysis_of(scene, profiling=unprofiled(scene), **changes)


def named(scene: Scene, *names: str, body: Callable[[], None]) -> None:
    """``body`` inside of nested ranges."""
    if names:
        scene.inside(names[0], lambda: named(scene, *names[1:], body=body))
    else:
        body()


PLACE = {"repeated_tensor": "aten::repeat"}


@pytest.mark.parametrize("cause", BY_KERNEL, ids=lambda cause: cause.id)
def test_kernels_that_take_their_share(cause: object) -> None:
    id_ = cause.id  # type: ignore[attr-defined]

    def body(scene: Scene) -> None:
        scene.launch(BF16_GEMM, 400 * US)
        place = (PLACE.get(id_, "forward"),)
        named(scene, *place, body=lambda: scene.launch(KERNELS[id_], 400 * US))
        scene.launch(CUSTOM, 200 * US)

    one = found(body)[id_]
    assert one.step_saving is not None
    assert one.step_saving.mid >= 100 * NOTABLE
    assert one.evidence["kernels_per_step"] == 1
    assert one.evidence["share_of_gpu_time"] == 0.4


@pytest.mark.parametrize("cause", BY_KERNEL, ids=lambda cause: cause.id)
def test_kernels_behind_a_slow_host_or_with_hardly_a_share(cause: object) -> None:
    id_ = cause.id  # type: ignore[attr-defined]

    def body(scene: Scene) -> None:
        scene.launch(BF16_GEMM, 400 * US)
        named(scene, PLACE.get(id_, "forward"), body=lambda: scene.launch(KERNELS[id_], 4 * US))
        scene.host(3000 * US)

    assert id_ not in found(body)


@pytest.mark.parametrize("kernel", ALIGNED)
def test_products_whose_rows_are_aligned(kernel: str) -> None:
    assert "unaligned_products" not in found(lambda scene: scene.launch(kernel, 400 * US))


def test_gradients_of_wide_rows_are_best_sorted() -> None:
    wide = "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long const*)"
    assert "index_gradient" not in found(lambda scene: scene.launch(wide, 400 * US))


def many(scene: Scene, kernel: str, count: int, ns: int = 20 * US) -> None:
    for _ in range(count):
        scene.host(10 * US)
        scene.launch(kernel, ns)


def nan_checks(scene: Scene, checks: int) -> None:
    def backward() -> None:
        for turn in range(20):
            scene.launch(BF16_GEMM, 20 * US)
            if turn < checks:
                scene.launch(NOT_EQUAL, 3 * US)
                scene.launch(ANY, 3 * US)
                scene.item()

    scene.inside("backward", backward)


def optimizer_reads(scene: Scene, reads: int) -> None:
    def step() -> None:
        for turn in range(8):
            scene.launch(CUSTOM, 60 * US)
            if turn < reads:
                scene.item()
                scene.host(40 * US)

    scene.inside("optimizer", step)


def host_tensors(scene: Scene, place: str, pageable: bool) -> None:
    many(scene, BF16_GEMM, 4)
    named(scene, place, body=lambda: scene.upload(300 * US, pageable=pageable))
    many(scene, BF16_GEMM, 4)


def test_a_tensor_made_once_spares_the_work_of_making_it() -> None:
    def made(scene: Scene) -> None:
        scene.host(1000 * US)
        scene.upload(100 * US, pageable=True)

    def body(scene: Scene) -> None:
        many(scene, BF16_GEMM, 20)
        named(scene, "forward", body=lambda: made(scene))
        many(scene, BF16_GEMM, 20)

    saving = found(body)["host_tensors"].step_saving
    assert saving is not None
    assert saving.low < 25 < saving.mid
    assert 800 * US < saving.mid / 100 * saving.step_ns < 1100 * US


def download(scene: Scene, size: int) -> None:
    many(scene, BF16_GEMM, 4)
    scene._start(
        OpKind.MEMCPY,
        "Memcpy DtoH",
        200 * US,
        5 * US,
        "cudaMemcpyAsync",
        7,
        copy_kind=2,
        bytes=size,
    )
    scene.call("cudaStreamSynchronize", 400 * US)
    many(scene, BF16_GEMM, 4)


def evaluation(scene: Scene, name: str) -> None:
    many(scene, BF16_GEMM, 4)
    scene.inside(name, lambda: many(scene, BF16_GEMM, 4))


def test_an_evaluation_takes_its_host_work_and_the_read_of_its_result_along() -> None:
    def step(scene: Scene) -> None:
        many(scene, BF16_GEMM, 4)
        scene.inside("evaluate", lambda: many(scene, BF16_GEMM, 40, 5 * US))
        scene.item()
        scene.host(300 * US)

    saving = found(step)["evaluation_in_step"].step_saving
    assert saving is not None
    alone = 40 * (5 * US + 5 * US) / saving.step_ns  # each is called after the one before has begun
    assert saving.mid > 60 * alone
    assert saving.low == 0, "it may be needed in each step"


@pytest.mark.parametrize(("size", "expected"), [(4, True), (4_000, False)])
def test_passes_that_feed_one_another_through_the_host_are_no_evaluation(
    size: int, expected: bool
) -> None:
    def step(scene: Scene) -> None:
        for _ in range(4):
            scene.upload(2 * US, pageable=False)
            scene.inside("evaluate", lambda: many(scene, BF16_GEMM, 10))
            scene.item()
            scene.ops[-1]["bytes"] = size
        many(scene, BF16_GEMM, 10)

    assert ("evaluation_in_step" in found(step)) is expected


def tuning(scene: Scene, turns: int) -> None:
    for turn in range(10):
        scene.launch(CONVOLUTION, 50 * US)
        if turn < turns:
            scene.call("cudaEventSynchronize", 70 * US)


def blocking(scene: Scene, held: int) -> None:
    for turn in range(40):
        scene.launch(BF16_GEMM, 50 * US)
        if turn < held:
            begin, _, name = scene.calls[-1]
            scene.now = scene.gpu_free[7] + 2 * US
            scene.calls[-1] = (begin, scene.now, name)
            scene.host(20 * US)


def casts(scene: Scene, count: int) -> None:
    many(scene, BF16_GEMM, 2)
    scene.inside("optimizer", lambda: many(scene, CAST, count, 12 * US))


CASES: dict[str, tuple[Callable[[Scene], None], Callable[[Scene], None]]] = {
    "anomaly_mode": (lambda s: nan_checks(s, 20), lambda s: nan_checks(s, 2)),
    "optimizer_reads": (lambda s: optimizer_reads(s, 8), lambda s: optimizer_reads(s, 0)),
    "host_tensors": (
        lambda s: host_tensors(s, "forward", True),
        lambda s: host_tensors(s, "forward", False),
    ),
    "large_download": (lambda s: download(s, 8_000_000), lambda s: download(s, 4)),
    "evaluation_in_step": (lambda s: evaluation(s, "evaluate"), lambda s: evaluation(s, "value")),
    "tuning_in_steps": (lambda s: tuning(s, 10), lambda s: tuning(s, 1)),
    "blocking_launches": (lambda s: blocking(s, 40), lambda s: blocking(s, 10)),
    "optimizer_casts": (lambda s: casts(s, 40), lambda s: casts(s, 2)),
    "products_in_a_row": (
        lambda s: many(s, BF16_GEMM, 24, 3 * US),
        lambda s: [many(s, one, 1, 3 * US) for _ in range(12) for one in (BF16_GEMM, ADD)] and None,
    ),
}


@pytest.mark.parametrize("id_", CASES)
def test_a_habit_and_what_looks_like_it(id_: str) -> None:
    bad, good = CASES[id_]
    one = found(bad)[id_]
    assert one.step_saving is not None
    assert one.step_saving.mid >= 100 * NOTABLE
    assert one.advice
    assert id_ not in found(good)


def checkpointed(scene: Scene) -> None:
    def again() -> None:
        scene.inside("fwd:block", lambda: many(scene, BF16_GEMM, 12))
        many(scene, BF16_GEMM, 6)

    scene.inside("backward", again)


@pytest.mark.parametrize(("peak", "expected"), [(20 << 30, True), (120 << 30, False)])
def test_checkpoints_that_are_needed_are_left_alone(peak: int, expected: bool) -> None:
    trace = loop(checkpointed, steps=5).trace()
    time = np.append(trace.ranges.start[::3], trace.end_ns)
    zero = np.zeros(len(time), np.int64)
    samples = AllocatorSamples(
        process=zero, device=zero, ordinal=zero, time=time, allocated=zero + peak,
        reserved=zero + peak, peak_allocated=zero + peak, peak_reserved=zero + peak, retries=zero,
        device_allocs=zero, device_frees=zero, out_of_memory=zero,
    )  # fmt: skip
    sidecar = dataclasses.replace(trace.sidecar, allocator=samples)
    ids = found(checkpointed, sidecar=sidecar)
    assert ("needless_checkpoints" in ids) is expected
    assert "needless_checkpoints" not in found(checkpointed)  # nobody says how full the GPU is


@pytest.mark.parametrize(
    ("fusible", "expected"), [(ADD, True), ("triton_poi_fused_add_0(int*)", False)]
)
def test_compiled_code_that_nothing_was_generated_for(fusible: str, expected: bool) -> None:
    def body(scene: Scene) -> None:
        scene.inside("graph 0/0 fwd", lambda: many(scene, fusible, 40))

    assert ("unfused_compiled" in found(body)) is expected


def replicas(scene: Scene, passes: int, early: int) -> None:
    for turn in range(passes):
        scene.inside("DistributedDataParallel.forward", lambda: many(scene, BF16_GEMM, 4))

        def backward(turn: int = turn) -> None:
            many(scene, BF16_GEMM, 4)
            if turn >= passes - 1 - early:
                scene.launch(ALL_REDUCE, 200 * US)

        scene.inside("backward", backward)
    scene.inside("optimizer", lambda: many(scene, CUSTOM, 1))


@pytest.mark.parametrize(("passes", "early", "expected"), [(4, 3, 3), (4, 0, None), (1, 0, None)])
def test_gradients_that_are_reduced_in_each_micro_batch(
    passes: int, early: int, expected: int | None
) -> None:
    one = found(lambda s: replicas(s, passes, early)).get("micro_step_reductions")
    assert (one and one.evidence["early_reductions_per_step"]) == expected


@pytest.mark.parametrize(("kernel", "expected"), [(INTEGERS, True), (ALL_REDUCE, False)])
def test_a_search_for_unused_parameters(kernel: str, expected: bool) -> None:
    def body(scene: Scene) -> None:
        replicas(scene, 1, 0)
        scene.launch(kernel, 200 * US)

    assert ("unused_parameters" in found(body)) is expected


def test_every_habit_has_a_case() -> None:
    assert {one.id for one in HABITS} <= {*CASES, "needless_checkpoints"}
    assert {one.id for one in BY_KERNEL} == set(KERNELS)


def test_every_kind_is_documented() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    for one in (*BY_KERNEL, *HABITS):
        assert f"`{one.id}`" in page, one.id


def clocked(mhz: float) -> dict[str, object]:
    scene = loop(lambda s: many(s, BF16_GEMM, 10), steps=5)
    trace = scene.trace()
    time = np.arange(trace.start_ns, trace.end_ns, 5 * US)
    metric = np.full(len(time), len(trace.strings))
    return {
        "strings": pa.concat_arrays([trace.strings, pa.array(["GPC Clock Frequency [MHz]"])]),
        "counters": Counters(time * 0, time, metric, np.full(len(time), mhz)),
    }


def test_a_clock_well_below_the_greatest() -> None:
    one = found(lambda s: many(s, BF16_GEMM, 10), **clocked(1100.0))["low_clock"]
    assert one.evidence["greatest_clock_mhz"] == H200["clock_hz"] / 1e6
    assert one.evidence["clock_mhz"] == 1100.0
    assert one.saves_ns[1] > 0
    assert "low_clock" not in found(lambda s: many(s, BF16_GEMM, 10), **clocked(1750.0))


@pytest.mark.parametrize(("theirs", "expected"), [(200 * US, True), (1 * US, False)])
def test_another_process_on_the_gpu(theirs: int, expected: bool) -> None:
    def body(scene: Scene) -> None:
        scene.launch(BF16_GEMM, 500 * US)
        scene.launch(CUSTOM, theirs)

    scene = loop(body, steps=5)
    trace = scene.trace()
    process = np.array([one["name"] == CUSTOM for one in scene.ops], np.int64)
    two = Processes(
        key=[1, 2], pid=[100, 200], name=[int(trace.processes.name[0])] * 2, rank=[-1, -1]
    )
    ops = dataclasses.replace(trace.ops, process=process)
    ids = [one.id for one in analysis_of(scene, ops=ops, processes=two).findings or ()]
    assert ("shared_gpu" in ids) is expected


@pytest.mark.parametrize(("grid", "expected"), [(40, True), (132 * 4, False)])
def test_kernels_that_leave_most_of_the_gpu_empty(grid: int, expected: bool) -> None:
    def body(scene: Scene) -> None:
        for one in (BF16_GEMM, ADD, CUSTOM):
            scene.launch(one, 200 * US, grid=grid)

    one = found(body).get("empty_processors")
    assert (one is not None) is expected
    if one is not None:
        assert (one.severity, one.saves_ns) == ("info", (0, 0))


@pytest.mark.parametrize(("id_", "call"), [
    ("pinned_allocation", "cudaHostAlloc"), ("graph_rebuilt", "cudaGraphInstantiate"),
])  # fmt: skip
def test_calls_that_are_made_once_are_replayed_without(id_: str, call: str) -> None:
    def body(scene: Scene) -> None:
        scene.call(call, 600 * US)
        many(scene, BF16_GEMM, 4, 60 * US)
        scene.replay(4, 20 * US, 0)
        scene.item()

    one = found(body)[id_]
    assert one.step_saving is not None
    assert one.step_saving.low < 55 < one.step_saving.high
    assert one.step_saving.mid > 40
