"""Kernel families, precision and tensor cores, one real name a line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nvprobe.analysis.kernels.classes import (
    FAMILIES,
    PRECISIONS,
    UNKNOWN,
    Activity,
    Family,
    Precision,
    classify_names,
    classify_ops,
)
from nvprobe.trace import Devices, OpKind, Ops, Processes, Threads, Trace

ATEN = "void at::native::"
MT = ATEN + "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
CUB = "void cub::CUB_200200_800_NS::"

# (name, family, precision or None, tensor cores or None)
NAMES = [
    # communication without NCCL's names
    ("void flashinfer::trtllm_alltoall::moeAllToAllKernel<2>(int)", "communication", None, None),
    ("alltoall_kernel(float*)", "communication", None, None),
    ("void moe_a2a::a2a_combine_recv_kernel<8>(long)", "communication", None, None),
    ("void mori::moe::EpCombineIntraNodeKernel<float>(int)", "communication", None, None),
    ("void uccl::ep::internode::dispatch<false>(int*)", "communication", None, None),
    ("hybrid_ep_dispatch_kernel", "communication", None, None),
    ("multimem_all_gather_kernel", "communication", None, None),
    ("void vllm::twoShotAllReduceKernel<8>(int)", "communication", None, None),
    ("ucp_device_put_kernel", "communication", None, None),
    ("void moe::allToAllV<float>(int)", "communication", None, None),
    ("mscclKernel_Sum_half_LL_custom(ncclDevComm*)", "communication", None, None),
    ("void pplx::internode_dispatch<8>(int)", "communication", None, None),
    ("aiter::reduce_scatter_cross_device_store<bf16>", "communication", None, None),
    ("multimember_kernel(int)", "custom", None, None),
    ("one_shot_detector(int)", "custom", None, None),
    ("callToAllocate(int)", "custom", None, None),
    ("StepDispatchKernel", "custom", None, None),
    ("data2array(int)", "custom", None, None),
    # cuBLAS
    ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", "gemm", "bf16", True),
    ("nvjet_sm90_tst_128x128_64x4_1x2_h_bz_TNT", "gemm", "bf16", True),
    ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", "gemm", "fp16", True),
    ("nvjet_qqtst_128x128_128x4_2x1_v_bz_coopA_TNN", "gemm", "fp8", True),
    ("nvjet_sss_128x64_64x4_2x1_v_bz_TNN", "gemm", None, True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_"
     "alignc4_execute_kernel__5x_cublas", "gemm", "fp32", False),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_"
     "execute_kernel_cublas", "gemm", "tf32", True),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
     "segment_k_off_kernel__5x_cublas", "gemm", "bf16", True),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128_cublas", "gemm", "fp8", True),
    ("ampere_sgemm_32x128_nt", "gemm", "fp32", False),
    ("volta_sgemm_64x32_sliced1x4_tn", "gemm", "fp32", False),
    ("ampere_gcgemm_64x64_nt", "gemm", "fp32", False),
    ("volta_dgemm_64x64_nn", "gemm", "fp64", False),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm", "bf16", True),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn", "gemm", "fp16", True),
    ("turing_h1688gemm_128x128_ldg8_tn", "gemm", "fp16", True),
    ("ampere_s1688gemm_128x64_sliced1x2_stages_16x6_tn", "gemm", "tf32", True),
    ("volta_h884gemm_64x128_ldg8_nn", "gemm", "fp16", True),
    ("void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*)", "gemm",
     "fp32", False),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float>(T1)", "gemm",
     "fp32", None),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, "
     "float, false>(T1)", "gemv", "bf16", False),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>(T1)", "gemv", "fp32",
     False),
    ("void dot_kernel<float, 128, 0, cublasDotParams<float>>(T1)", "gemv", "fp32", False),
    # CUTLASS, Triton templates, quantised
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)", "gemm",
     "fp32", False),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(T1::Params)",
     "gemm", "tf32", True),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>"
     "(T1::Params)", "gemm", "bf16", True),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x128x64_2x1x1_0_tnn_align8",
     "gemm", "fp16", True),
    ("triton_tem_fused_addmm_relu_0", "gemm", None, None),
    ("triton_mm", "gemm", None, None),
    ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>(float*)", "gemm", "fp8", True),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "gemm", "bf16", True),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32", "gemm", "fp8", True),
    ("fused_moe_kernel", "gemm", None, None),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN", "gemm", "bf16",
     True),
    # convolution
    ("volta_scudnn_128x64_relu_small_nn_v1", "convolution", "fp32", False),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_cudnn",
     "convolution", "tf32", True),
    ("void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x128_16x3>"
     "(T1)", "convolution", "tf32", True),
    ("void implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)", "convolution", "fp32", False),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(T1)", "convolution",
     "fp32", None),
    ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt64x64x64_wt16x16x16", "convolution", "bf16", None),
    ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", "convolution", None,
     None),
    # attention
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, "
     "cutlass::bfloat16_t>>(T1)", "attention", "bf16", True),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::half_t>(T1)", "attention",
     "fp16", True),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)",
     "attention", "fp32", None),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "attention",
     None, True),
    ("kernel_unified_attention_2d", "attention", None, None),
    ("void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128>(T1)", "attention", "bf16", None),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::Params<__half>>(T1)",
     "attention", "fp16", None),
    ("_fwd_grouped_kernel_stage1", "attention", None, None),
    ("triton_tem_fused_flex_attention_3", "attention", None, None),
    # norm and softmax
    (ATEN + "(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "norm",
     None, None),
    (ATEN + "(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>(long)", "norm", None, None),
    ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true>(T1)", "norm", None, None),
    ("std::enable_if<(8)>(0) && vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
     "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(T1)", "norm", None, None),
    ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>(T1)", "norm", None,
     None),
    ("void transformer_engine::normalization::ln_bwd_kernel<T1>(T1)", "norm", None, None),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(T1)",
     "softmax", None, None),
    (ATEN + "(anonymous namespace)::cunn_SoftMaxForward<4, float>(T1)", "softmax", None, None),
    ("void transformer_engine::scaled_masked_softmax_warp_forward<float>(T1)", "softmax", None,
     None),
    # elementwise, reduction, layout, indexing, sort
    (ATEN + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
     "elementwise", None, None),
    (ATEN + "elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
     "direct_copy_kernel_cuda(at::TensorIteratorBase&)>>(int)", "layout", None, None),
    (ATEN + "(anonymous namespace)::CatArrayBatchedCopy<float, 1>(T1)", "layout", None, None),
    (ATEN + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T1)",
     "reduction", None, None),
    (ATEN + "(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(T1)",
     "reduction", None, None),
    (ATEN + "index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<T1>>(long)",
     "indexing", None, None),
    (ATEN + "(anonymous namespace)::indexSelectLargeIndex<float>(T1)", "indexing", None, None),
    ("void split_embedding_backward_codegen_adagrad_unweighted_kernel_cta_per_row_1<float, "
     "fbgemm_gpu::FixedDivisor>(T1)", "indexing", None, None),
    (CUB + "DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<float>>(T1)", "sort", None,
     None),
    (CUB + "DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<thrust::plus<int>>>(T1)",
     "reduction", None, None),
    ("void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::Params>(T1)",
     "sort", None, None),
    # vLLM and SGLang
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise", None,
     None),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(T1)", "layout", None, None),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>(T1)",
     "elementwise", None, None),
    ("void vllm::moe::topkGatingSoftmax<4, 128>(T1)", "sort", None, None),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16>(T1)", "elementwise", None, None),
    # optimizer
    (MT + "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(T1)", "optimizer",
     None, None),
    (MT + "TensorListMetadata<2>, at::native::UnaryOpFunctor<long, 2, 1, 1>, "
     "at::native::Copy<long, long>>(T1)", "layout", None, None),
    (MT + "TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float>>(T1)", "optimizer",
     None, None),
    # communication
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
     "communication", None, None),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "communication", None, None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "communication",
     None, None),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(T1)",
     "communication", None, None),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<T1>(T1)",
     "communication", None, None),
    ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8", "communication", None, None),
    ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", "communication", None,
     None),
    # Triton and what no rule knows
    ("triton_poi_fused_add_0", "triton", None, None),
    ("triton_per_fused_add_native_layer_norm_view_1", "triton", None, None),
    ("triton_red_fused_sum_view_0", "triton", None, None),
    ("saxpy(double*, double*, int)", "custom", None, None),
    ("jacobi_kernel(float*, float const*)", "custom", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "precision", "tensor_cores"), NAMES)
def test_name(name: str, family: str, precision: str | None, tensor_cores: bool | None) -> None:
    judged = classify_names(pa.array([name]))
    assert Family(judged.family[0]).label == family
    want = UNKNOWN if precision is None else Precision[precision.upper()]
    assert judged.precision[0] == want
    assert judged.tensor_cores[0] == (UNKNOWN if tensor_cores is None else tensor_cores)


def test_every_family_that_a_name_can_have_is_tested() -> None:
    named = {label for label, _ in FAMILIES}
    assert named <= {family for _, family, _, _ in NAMES}


@pytest.mark.parametrize("pattern", [row[-1] for row in (*FAMILIES, *PRECISIONS)])
def test_pattern_compiles_and_is_not_empty(pattern: str) -> None:
    # An alternative that matches the empty string would swallow every name.
    assert pc.match_substring_regex(pa.array([""]), pattern).to_pylist() == [False]


def test_a_batch_is_judged_as_its_rows_are() -> None:
    names = pa.array([row[0] for row in NAMES] + [None])
    together = classify_names(names)
    alone = [classify_names(names[i : i + 1]).family[0] for i in range(len(names))]
    assert together.family.tolist() == alone
    assert together.family[-1] == Family.CUSTOM


def _trace(kinds: list[int], names: list[str]) -> Trace:
    n = len(kinds)
    zero = np.zeros(n, np.int64)
    ops = Ops(
        kind=np.array(kinds), process=zero, device=zero, context=zero, stream=zero,
        correlation=zero, start=zero, end=zero + 1, name=np.arange(n), short_name=np.arange(n),
        graph_node=zero, bytes=zero, copy_kind=zero, source_memory=zero, target_memory=zero,
    )  # fmt: skip
    return Trace(pa.array(names), (), Processes.empty(), Threads.empty(), Devices.empty(), ops=ops)


def test_the_kind_of_an_op_stands_above_its_name() -> None:
    # A copy that nsys names like a kernel stays a copy; a whole graph counts as compute.
    kinds = [OpKind.MEMCPY, OpKind.MEMSET, OpKind.GRAPH, OpKind.KERNEL, OpKind.KERNEL]
    names = ["ampere_sgemm_32x128_nt", "memset", "graph", "ncclDevKernel_SendRecv(x)", "saxpy()"]
    judged = classify_ops(_trace(kinds, names))
    assert judged.family.tolist() == [
        Family.MEMCPY, Family.MEMSET, Family.GRAPH, Family.COMMUNICATION, Family.CUSTOM,
    ]  # fmt: skip
    assert judged.activity.tolist() == [
        Activity.COPY, Activity.MEMSET, Activity.COMPUTE, Activity.COMMUNICATION, Activity.COMPUTE,
    ]  # fmt: skip
    assert judged.precision.tolist() == [UNKNOWN] * 5


def test_a_trace_without_ops() -> None:
    trace = Trace(
        pa.array([], pa.string()), (), Processes.empty(), Threads.empty(), Devices.empty()
    )
    assert len(classify_ops(trace).activity) == 0
