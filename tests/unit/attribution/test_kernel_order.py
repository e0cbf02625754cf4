"""Dealing recorded kernels to the calls of a manifest."""

from __future__ import annotations

import pytest

from nvprobe.attribution.kernel_order import match_calls
from nvprobe.trace.sidecar import ManifestKernel

MM, ATTENTION = (
    "extern_kernels.mm",
    "torch.ops.aten._scaled_dot_product_efficient_attention.default",
)
GEMM, SPLIT, SECOND = "Kernel2", "splitKreduce_kernel", "sm80_xmma_gemm_f32f32"


def calls(*names: str) -> list[ManifestKernel]:
    return [ManifestKernel(name, not name.startswith("triton_"), ()) for name in names]


def owners(expected: list[str], found: list[str], copies: tuple[str, ...] = ()):
    result, complete = match_calls(calls(*expected), found, [name not in copies for name in found])
    return result, complete


@pytest.mark.parametrize(
    ("expected", "found", "result"),
    [
        ([MM], [GEMM], [(0,)]),
        ([MM, "triton_a", MM], [GEMM, "triton_a", GEMM], [(0,), (1,), (2,)]),
        ([MM], [SECOND, SECOND], [(0,), (0,)]),
        ([MM, MM], [GEMM, SPLIT, GEMM, SPLIT], [(0,), (0,), (1,), (1,)]),
        ([MM, MM], [GEMM, GEMM, SPLIT], [(0,), (1,), (1,)]),
        ([MM, MM], [SECOND, SECOND, SECOND], [(0, 1)] * 3),
        (
            [MM, ATTENTION],
            [GEMM, "vectorized_elementwise_kernel", "reduce_kernel", "fmha_cutlassB_f32"],
            [(0,), (1,), (1,), (1,)],
        ),
        ([ATTENTION, MM, MM], ["flash_fwd", GEMM, SECOND, SECOND], [(0,), (1, 2), (1, 2), (1, 2)]),
        (["triton_a", "triton_a"], ["triton_a", "triton_a"], [(0,), (1,)]),
        (["triton_a"], ["copy_kernel", "triton_a"], [(), (0,)]),
        ([], ["other"], [()]),
    ],
)
def test_each_op_has_its_calls(expected, found, result):
    assert owners(expected, found) == (result, True)


def test_copies_and_sets_go_with_the_kernel_after_them():
    found = ["memset", GEMM, "memset", GEMM]
    assert owners([MM, MM], found, ("memset",))[0] == [(0,), (0,), (1,), (1,)]
    assert owners([MM], [GEMM, "memset"], ("memset",))[0] == [(0,), (0,)]


def test_lost_kernels_do_not_shift_the_others():
    expected = ["triton_a", MM, "triton_b", MM, "triton_c"]
    result, complete = owners(expected, ["triton_a", GEMM, "triton_c"])
    assert not complete
    assert result == [(0,), (1, 3), (4,)]
