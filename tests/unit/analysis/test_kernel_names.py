"""Short names of kernels tell them apart: names as nsys and CUPTI demangle them."""

from __future__ import annotations

import pytest

from nvprobe.analysis.kernels.by_name import short_kernel_name

# ruff: noqa: E501
NATIVE = "void at::native::"
LOOP = f"{NATIVE}vectorized_elementwise_kernel<"
NAMES = {
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32"
    "_8x5_nn_align1::Params)": "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
    "void cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<cutlass::MatrixShape<4, 128>>>(T)":
        "Kernel<ReduceSplitK>",
    f"{LOOP}4, at::native::BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor"
    "<float> >, at::detail::Array<char*, 2> >(int)": "vectorized_elementwise_kernel<MulFunctor>",
    f"{LOOP}(int)4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::"
    "[lambda() (instance 2)]::operator ()() const>(int)":
        "vectorized_elementwise_kernel<GeluCUDAKernelImpl>",
    f"{LOOP}(int)2, at::native::<unnamed>::masked_fill_kernel(at::TensorIterator &)::[lambda()]>(T)":
        "vectorized_elementwise_kernel<masked_fill_kernel>",
    f"{NATIVE}elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::(anonymous namespace)"
    "::where_kernel_impl(at::TensorIterator&)::{lambda()#1}>>(int)":
        "elementwise_kernel<where_kernel_impl>",
    f"{NATIVE}reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
    "float, at::native::sum_functor<float, float, float>::operator ()()>>>(T3)":
        "reduce_kernel<sum_functor>",
    f"{NATIVE}<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)1>, "
    "at::native::<unnamed>::BinaryOpScalarFunctor<float, (int)1>, std::multiplies<float>>(T1)":
        "multi_tensor_apply_kernel<multiplies>",
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::"
    "GemmUniversal<cute::tuple<int>>>>(T1::Params)": "device_kernel<GemmUniversal>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 1, false>(float*)":
        "softmax_warp_forward",
    "triton_poi_fused_add_0": "triton_poi_fused_add_0",
    "void reduce_kernel<512>(float*)": "reduce_kernel",
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=NAMES.values())
def test_a_short_name_says_what_the_kernel_is(name: str, expected: str) -> None:
    recorded = "Kernel2" if "Kernel2<" in name else expected.partition("<")[0]
    assert short_kernel_name(name, recorded) == expected
