"""Every capture of the corpus, gone through by hand: what is said of it, and nothing else.

What bounds the run (the verdict up to the first colon) and the findings in their order. To change
a line here, look at the capture again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.findings import NOTABLE
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_dict

RECORDED: dict[str, tuple[str, list[str]]] = {
    "kineto/h200/compile.json.gz": (
        "launch-bound in step",
        [
            "pageable_copy",
            "launch_bound",
            "fp32_gemm",
            "host_work",
            "fp32_attention",
        ],
    ),
    "kineto/h200/eager.json.gz": (
        "launch-bound in step",
        ["pageable_copy", "fp32_gemm", "launch_bound", "fp32_attention", "elementwise_chain"],
    ),
    "kineto/h200/eager_kcpu.json.gz": (
        "CPU only, no GPU work is recorded: 64.5 ms in ranges; 48% of host time in step/backward",
        [],
    ),
    "kineto/h200/graph.json.gz": (
        "unclear: most idle time lies outside of repeated steps",
        ["fp32_gemm", "fp32_attention"],
    ),
    "kineto/public/2020_resnet50_workers4.json.gz": (
        "launch-bound in the program",
        ["zeroed_gradients", "elementwise_chain", "pageable_copy", "launch_bound"],
    ),
    "kineto/public/alexnet.json.gz": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "kineto/public/b200_compile_nccl.json.gz": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        ["exposed_communication"],
    ),
    "kineto/public/compile_triton.json.gz": (
        "GPU-bound, nothing found to gain",
        [],
    ),
    "kineto/public/cpu_only.json.gz": (
        "CPU only, no GPU work is recorded: 2.35 s in ranges; 91% of host time in gloo:all_reduce",
        [],
    ),
    "kineto/public/cuda_sync_rows.json.gz": (
        "unclear: hardly any GPU work is recorded (1 ops)",
        [],
    ),
    "kineto/public/dlrm_8ranks_worker0.json.gz": (
        "exposed communication in ProfilerStep",
        ["exposed_communication", "empty_processors"],
    ),
    "kineto/public/dlrm_8ranks_worker1.json.gz": (
        "exposed communication in …/All2All_Pooled_Req/## alltoall_fwd_single ##",
        ["exposed_communication", "empty_processors"],
    ),
    "kineto/public/dlrm_8ranks_worker2.json.gz": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        ["exposed_communication"],
    ),
    "kineto/public/dlrm_8ranks_worker3.json.gz": (
        "exposed communication in …/All2All_Pooled_Req/## alltoall_fwd_single ##",
        ["exposed_communication", "empty_processors"],
    ),
    "kineto/public/event_sync_two_streams.json.gz": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "kineto/public/gpu_only.json.gz": (
        "mostly GPU-bound",
        ["elementwise_chain"],
    ),
    "kineto/public/h100_bert.json.gz": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "kineto/public/h100_qwen_stacks.json.gz": (
        "mostly GPU-bound",
        ["elementwise_chain"],
    ),
    "kineto/public/nccl.json.gz": (
        "host-bound in ProfilerStep",
        ["host_work", "elementwise_chain", "launch_bound"],
    ),
    "kineto/public/ns_resolution.json.gz": (
        "GPU-bound",
        ["elementwise_chain"],
    ),
    "kineto/public/sampled_rank0.json.gz": (
        "waits between queued work in ProfilerStep",
        ["idle_device_wait", "exposed_communication", "host_work"],
    ),
    "kineto/public/triton_cpu_op_with_stream.json.gz": (
        "unclear: hardly any GPU work is recorded (1 ops)",
        [],
    ),
    "kineto/public/vllm_graph_replay.json.gz": (
        "GPU-bound, nothing found to gain",
        [],
    ),
    "nsys/h200/backward_scopes.sqlite": (
        "launch-bound in step",
        ["launch_bound", "fp32_gemm", "elementwise_chain"],
    ),
    "nsys/h200/compile_emit.sqlite": (
        "launch-bound in step",
        ["pageable_copy", "fp32_gemm", "launch_bound", "fp32_attention"],
    ),
    "nsys/h200/compile_ro_node.sqlite": (
        "host-bound in step",
        ["pageable_copy", "fp32_gemm", "host_work", "fp32_attention"],
    ),
    "nsys/h200/compiled_ranges_break.sqlite": (
        "launch-bound in step",
        ["fp32_gemm", "launch_bound", "fp32_attention", "implicit_sync", "elementwise_chain"],
    ),
    "nsys/h200/compiled_ranges_plain.sqlite": (
        "GPU-bound without the profiler",
        ["fp32_gemm", "launch_bound", "fp32_attention"],
    ),
    "nsys/h200/eager.sqlite": (
        "mostly GPU-bound, then launch-bound in step",
        ["pageable_copy", "fp32_gemm", "launch_bound", "fp32_attention", "elementwise_chain"],
    ),
    "nsys/h200/eager_emit.sqlite": (
        "launch-bound in step",
        ["pageable_copy", "fp32_gemm", "launch_bound", "fp32_attention", "elementwise_chain"],
    ),
    "nsys/h200/eager_kcpu.sqlite": (
        "launch-bound in step",
        ["pageable_copy", "launch_bound", "fp32_gemm", "fp32_attention", "elementwise_chain"],
    ),
    "nsys/h200/graph_graph.sqlite": (
        "unclear: most idle time lies outside of repeated steps",
        [],
    ),
    "nsys/h200/graph_node.sqlite": (
        "unclear: most idle time lies outside of repeated steps",
        ["fp32_gemm", "fp32_attention"],
    ),
    "nsys/h200/named_domain.sqlite": (
        "launch-bound in step",
        ["launch_bound", "fp32_gemm", "elementwise_chain"],
    ),
    "nsys/h200/prefetch_thread.sqlite": (
        "GPU-bound without the profiler",
        ["fp32_gemm"],
    ),
    "nsys/h200/sync_callchains.sqlite": (
        "mostly GPU-bound, then launch-bound in step",
        [
            "fp32_gemm",
            "implicit_sync",
            "launch_bound",
            "implicit_sync",
            "implicit_sync",
            "elementwise_chain",
            "mask_select",
        ],
    ),
    "nsys/h200/threaded_server.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        ["fp32_gemm"],
    ),
    "nsys/public/2020_cudf_groupby.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        ["pageable_copy"],
    ),
    "nsys/public/2020_numba_jit.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "nsys/public/2022.1_dlprof.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "nsys/public/2022.2_mpi_saxpy_all_tables.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        [],
    ),
    "nsys/public/2023.4_jacobi.sqlite": (
        "GPU-bound, nothing found to gain",
        [],
    ),
    "nsys/public/2024.6_llama3.sqlite": (
        "unclear: the capture shows no repeated step, so waiting may be start-up",
        ["compile_in_window"],
    ),
    "nsys/public/2026.2_two_gpus.sqlite": (
        "GPU-bound without the profiler",
        ["elementwise_chain", "exposed_communication"],
    ),
    "nsys/public/invalid_utf8.sqlite": (
        "unclear: the capture has no GPU records",
        [],
    ),
    "nsys/public/nvtx_without_cuda.sqlite": (
        "CPU only, no GPU work is recorded: 6.95 s in ranges; 43% of host time in 3D_backbone",
        [],
    ),
    "nsys/public/runtime_without_kernels.sqlite": (
        "unclear: the capture has no GPU records",
        [],
    ),
}


@pytest.fixture(scope="module", params=sorted(RECORDED))
def case(request: pytest.FixtureRequest, corpus: Path) -> tuple[str, Analysis]:
    return request.param, analyze(attribute(load(corpus / request.param)))


def test_what_is_said_of_it(case: tuple[str, Analysis]) -> None:
    name, analysis = case
    bound, ids = RECORDED[name]
    assert analysis.verdict.split(": GPU busy")[0] == bound
    assert analysis.findings is not None
    assert [one.id for one in analysis.findings] == ids


def test_estimates_are_bounds(case: tuple[str, Analysis]) -> None:
    """Bounds are in order; what saves time of the step is more than hardly anything."""
    _, analysis = case
    window = int(analysis.devices.window_ns.sum())
    expected = []
    for one in analysis.findings or ():
        low, high = one.saves_ns
        assert 0 <= low <= high
        assert one.advice
        if one.step_saving is None:
            assert high <= max(window, int(analysis.steps.wall_ns.sum()))
            assert high >= NOTABLE * window or high == 0
            expected.append(3 * low + high)
        else:
            saving = one.step_saving
            assert 0 <= saving.low <= saving.mid <= saving.high <= 100
            assert max(saving.mid, saving.after_previous) >= 100 * NOTABLE - 0.1
    assert expected == sorted(expected, reverse=True)


def test_savings_in_their_order_add_up_to_less_than_the_step(case: tuple[str, Analysis]) -> None:
    _, analysis = case
    savings = [one.step_saving for one in analysis.findings or () if one.step_saving]
    assert sum(one.after_previous for one in savings[:4]) <= 100.5
    for one in savings:
        assert one.instead_of is None or one.instead_of <= len(savings)


def test_findings_are_json(case: tuple[str, Analysis]) -> None:
    _, analysis = case
    rows = to_dict(analysis)["findings"]
    assert json.loads(json.dumps(rows)) == rows


def test_every_capture_of_the_corpus_is_recorded(corpus: Path) -> None:
    found = {
        *(f"nsys/{p.parent.name}/{p.name}" for p in corpus.glob("nsys/*/*.sqlite")),
        *(f"kineto/{p.parent.name}/{p.name}" for p in corpus.glob("kineto/[hp]*/*.json.gz")),
    }
    assert found == set(RECORDED)
