"""What each kernel is, by its name: activity, family, precision.

``FAMILIES`` and ``PRECISIONS`` are read top down and the first hit wins, so an exception stands
above its rule (``rotary_embedding`` is elementwise, before ``embedding`` is indexing). Patterns
are RE2, case-sensitive, searched anywhere in the demangled name less its return type. Where a word
of a library's own template arguments would mislead, the pattern is anchored with ``^``.

To add a kernel: one line in the table, one line in tests/unit/analysis/test_classes.py.

Two grains. The *activity* (compute, communication, copy, memset) is what overlap is measured in;
the *family* (gemm, attention, norm, ...) is what advice depends on. Both come from the tables in
:mod:`~nvprobe.analysis.kernels.classes`: the first rule whose pattern is found in the name
wins, a name that no rule knows is ``custom``. Names are judged once each, so a million kernels cost
no more than their few hundred names.

Precision and tensor cores are read from the name alone: absent is ``UNKNOWN``, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import numbered
from nvprobe.trace import Column, OpKind, Trace

SPLIT = r"^(void |std::enable_if<.*?>::type |typename .*?::type )+"
"""The return type in front of a demangled template instance."""

FAMILIES: tuple[tuple[str, str], ...] = (
    # NCCL and RCCL; vLLM, SGLang and TensorRT-LLM all-reduce; torch symmetric memory;
    # Transformer Engine userbuffers; DeepEP; NVSHMEM; MSCCL++
    ("communication", r"^_?(nccl|rccl|msccl|nvshmem|nixl)"),
    ("communication", r"cross_device_(reduce|store)|multimem([^a-z]|$)|_shot_all_?reduce"),
    ("communication", r"^uc[cptx]_|(?i)minimax_?reduce_?rms"),
    ("communication", r"(?i)all_?reduce_?(fusion|kernel|norm)|all_?gather_kernel|quick_?reduce"),
    ("communication", r"(?i)(one|two)_?shot_?all_?reduce|reduce_?scatter_kernel"),
    ("communication", r"userbuffers|lamport_?(style)?_?all|nvshmem|low_latency_combine"),
    # expert parallelism: all-to-all by any name, DeepEP and its forks, MoRI
    ("communication", r"(^|[^A-Za-z])all_?(2|to|To)_?[Aa]ll([^a-z]|$)|All_?(2|To|to)_?[Aa]ll"),
    ("communication", r"A2A|(^|[^A-Za-z])a2a([^a-z]|$)|(^|[^A-Za-z])Ep(Dispatch|Combine)"),
    ("communication", r"deep_ep::|dpsk::ep|hybrid_ep|(^|::)(inter|intra)node(_ll)?::"),
    ("communication", r"(inter|intra)node_(dispatch|combine)|exchangeSplitAndOffset"),
    # GEMM templates that Triton or Inductor instantiate, before the rule for other Triton kernels
    ("attention", r"^triton_tem_\w*(flex_|attention)"),
    ("gemm", r"^triton_(tem_\w*|)(mm|bmm|addmm|baddbmm|scaled_mm)(_|$)"),
    ("convolution", r"^triton_(tem_\w*|)conv"),
    ("triton", r"^triton_(poi|per|red|tem|for|mix|split|unk|helpers|fused)"),
    # key-value cache and page tables: they carry `flash` or `attention` in their names
    ("layout", r"reshape_and_cache|concat_and_cache|copy_blocks|swap_blocks|copy_page|kv_cache"),
    ("elementwise", r"rotary|apply_rope|fused_rope"),
    # fused attention: FlashAttention, CUTLASS/xFormers, cuDNN, FlashInfer, vLLM and SGLang Triton
    ("attention", r"(?i)flash_?(attn|attention|fwd|bwd)|(^|[^a-z])flash::|fmha|memeffattention"),
    (
        "attention",
        r"cudnn_generated\w*sdpa|sdpa_(fprop|bprop|fwd|bwd)|_attention_|attention_kernel",
    ),
    (
        "attention",
        r"paged_?attention|(Batch|Single)(Prefill|Decode)|MLA|_mla_|mha_(fwd|bwd|varlen)",
    ),
    ("attention", r"^_?attn_(fwd|bwd)|^_fwd_(grouped_)?kernel(_stage\d)?$|merge_attn_states"),
    ("attention", r"^reduce_segments$|xqa_|decode_attention|context_attention"),
    # CUB, Thrust and MoE routing by their own names: functors in their template arguments mislead
    ("sort", r"(?i)topk|moe_?align|routing|bitmatrix|bitonic|cumsum|cumprod"),
    ("sort", r"cub::.*?Device(Radix|Merge|Segmented)\w*Sort|cub::.*?Device(Scan|Select|Compact)"),
    ("sort", r"cub::.*?Device(ReduceByKey|UniqueByKey|Partition)"),
    ("sort", r"cuda_cub::__(merge_sort|radix_sort|scan|copy_if|unique|partition|reduce_by_key)"),
    ("reduction", r"cub::.*?Device(Segmented)?Reduce|cuda_cub::__reduce|cub::.*?DeviceHistogram"),
    ("elementwise", r"cuda_cub::__(fill|tabulate|transform|uninitialized_fill)::"),
    ("custom", r"cuda_cub::__|^cudf::"),
    ("softmax", r"(?i)soft_?max"),
    # norms: ATen, Apex, cuDNN, Transformer Engine, vLLM, composable kernel
    ("norm", r"(?i)(layer|batch|group|instance|rms)_?norm|rmsnorm|(^|[^a-z])(ln|bn)_(fw|bw)"),
    ("norm", r"GammaBeta|RowwiseMoments|ComputeInternalGradients|ComputeFusedParams|fused_qk_norm"),
    # convolution: cuDNN by any of its algorithms, MIOpen
    ("convolution", r"scudnn|hcudnn|cask_cudnn|(^|[^a-z])conv(olution|2d|3d|_depthwise|_)"),
    ("convolution", r"[dw]grad_?(alg|engine|optimized|implicit|nhwc)|fprop|winograd|im2col|col2im"),
    ("convolution", r"_convolve_|cutlass_cudnn|cudnn::cnn|^igemm_(fwd|bwd|wrw)|(?i)ImplicitGemm"),
    ("convolution", r"xmma_(fprop|dgrad|wgrad)|reduce_wgrad|cudnn::gemm|fft[12]d_|flip_filter"),
    # matrix times vector, before GEMM
    ("gemv", r"gemv|gemmk1_|^dot_kernel<|gemmSN_|^reduce_1Block_kernel|^wvSplitK|_gemvx"),
    # GEMM: cuBLAS (nvjet, xmma, sass), CUTLASS, DeepGEMM, quantized, TensorRT-LLM, Tensile
    (
        "gemm",
        r"^nvjet_|xmma_gemm|(^|[^b])gemm|Gemm|GEMM|^Cijk_|^bmm_|_matmul|matmul_|marlin|Marlin",
    ),
    ("gemm", r"splitKreduce|fused_moe_kernel|grouped_mm|cublasLt::epilogue|epilogue::impl"),
    ("gemm", r"_w8a8_|_scaled_mm|gptq|awq|cutlass.*(device_kernel|Universal)"),
    # optimizers: foreach and fused ones, Apex, bitsandbytes, DeepSpeed
    # torch's copies of lists: inputs of CUDA graphs, shards of parameters
    ("layout", r"multi_tensor_apply_kernel<.*UnaryOpFunctor<.*::Copy<"),
    ("optimizer", r"(?i)multi_tensor_apply|fused_?adam|fused_?sgd|adamw?_(kernel|cuda)|_lamb_"),
    ("optimizer", r"kOptimizer|amp_(update|non_finite|foreach)|^multi_tensor"),
    # indexing: ATen, FBGEMM
    ("indexing", r"(?i)embedding|index_?(select|add|fill|copy|put|elementwise|func)|index_kernel"),
    ("indexing", r"(?i)gather|scatter|indexing_backward|masked_select|bounds_check|permute_\dD"),
    ("indexing", r"index_kernel_impl|linearize_index|permute_(indices|pooled)|compute_cuda_kernel"),
    ("sort", r"(?i)merge_?sort|radix_?sort|sort_?(kernel|pairs|keys)|_scan_kernel"),
    # kernels that only move data
    ("layout", r"CatArray|chunk_cat|direct_copy|copy_device_to_device|copy_kernel|transpose"),
    (
        "layout",
        r"[nN]c?hw[cC]?To[nN]|nchwToNhwc|nhwcToNchw|scalePackedTensor|SubTensorOp|roll_cuda",
    ),
    ("layout", r"triu_tril|flip_kernel|upsample_nearest|pad\dd?_|UnaryOpFunctor<.*Copy"),
    # reductions, losses, pooling
    ("reduction", r"reduce_kernel|segmented_reduce|moe_sum|moe::dev::finalize"),
    (
        "reduction",
        r"(?i)nll_?(loss|criterion)|_loss_|l1_loss|cross_entropy|ArgM(ax|in)|reduce_?sum",
    ),
    ("reduction", r"(max|avg|average)_?pool|MaxPool|AvgPool|mean_kernel|ReduceSplitK"),
    # elementwise: the ATen loops by name, activations, dropout, random numbers, quantization
    ("elementwise", r"elementwise|distribution_|dropout|philox|curand|fill_kernel"),
    ("elementwise", r"(?i)silu|gelu|relu|sigmoid|tanh|swiglu|act_and_mul|cast_|dequant|quantiz"),
    ("elementwise", r"_quant_kernel|FP8|fp8|_kernel_impl|lerp|where_kernel|scal_kernel"),
)
"""(family, pattern), read top down."""

PRECISIONS: tuple[tuple[str | None, bool | None, str], ...] = (
    # sm80_xmma_gemm_<A><B>_<A><C>_<acc>_..._ffma_: plain FP32 units
    ("fp32", False, r"xmma_.*f32f32_f32f32_.*_ffma_|_simt_[sc]gemm|_simt_"),
    ("tf32", True, r"xmma_\w*tf32|_tf32|tf32gemm|tf32tf32|tf32_t"),
    ("fp8", True, r"xmma_\w*?_(e4m3|e5m2)"),
    ("bf16", True, r"xmma_\w*?_bf16bf16_"),
    ("fp16", True, r"xmma_\w*?_f16f16_"),
    ("int8", True, r"xmma_\w*?_i8i8_|_i8816|_i16832|imma|_int8_"),
    ("fp64", True, r"xmma_\w*?_f64f64_|d884|d1688"),
    # nvjet_[smNN_]<A [B] acc C>_: h half, t bfloat16, q float8, d double; tensor cores always
    ("fp8", True, r"^nvjet_(sm\d+_)?q"),
    ("bf16", True, r"^nvjet_(sm\d+_)?t"),
    ("fp16", True, r"^nvjet_(sm\d+_)?h"),
    ("fp64", True, r"^nvjet_(sm\d+_)?d"),
    (None, True, r"^nvjet_"),
    # cuBLAS and CUTLASS: [type_]<acc><mma shape>gemm[_type]
    ("bf16", True, r"bf16_s\d+\w*(gemm|fprop|dgrad|wgrad)|s\d+gemm_bf16|\dgemm_bf16_bf16"),
    ("fp8", True, r"s\d+(x\d+x\d+)?gemm_e[45]m[23]|e4m3_|qgmma"),
    ("fp16", True, r"(fp16|f16)_[hs]\d+\w*gemm|[hs]\d+\w*gemm_(fp16|f16)|h(884|1688|16816)"),
    ("tf32", True, r"tensorop_s1688|_s1688(gemm|fprop|dgrad|wgrad)|s\d+x\d+x\d+tf32"),
    # FlashAttention and cuDNN's attention run on tensor cores in half precisions
    # the latter's names say f16 of bfloat16 as well
    (None, True, r"^cudnn_generated_\w*sdpa\w*_f16_"),
    ("bf16", True, r"(?i)(flash_|flash::|fmha).*(bfloat16|bf16)"),
    ("fp16", True, r"(?i)(flash_|flash::|fmha).*(half_t|f16)"),
    (None, True, r"(?i)tensorop|wmma|wgmma|hmma|tcgen05|umma"),
    # FP32, FP16, FP64 on the plain units
    (
        "fp32",
        False,
        r"(^|_)(gc|c|s)gemm_|scudnn|sgemm_largek|_convolve_sgemm|gemmSN_|wgrad_alg|_engine<float",
    ),
    ("fp16", False, r"(^|_)hgemm_|hcudnn"),
    ("fp64", False, r"(^|_)[dz]gemm_"),
    # Tensile (ROCm): Cijk_..._<types>_..._MI<shape> names the matrix instruction
    ("bf16", True, r"^Cijk_\w+_BB?S_.*_MI\d"),
    ("fp16", True, r"^Cijk_\w+_HH?S_.*_MI\d"),
    ("bf16", None, r"^igemm_\w+_bf16_"),
    ("fp16", None, r"^igemm_\w+_fp16_"),
    # TensorRT-LLM: bmm_<out>_<A><B>_<acc>_
    ("fp4", True, r"^bmm_\w+?_(Mx)?E2m1(Mx)?E2m1"),
    ("fp8", True, r"^bmm_\w+?_(Mx)?E(2m1|4m3)"),
    ("bf16", True, r"^bmm_\w+?_Bfloat16"),
    ("bf16", True, r"_bf16xbf16x|fmha\w*_bf16|fmhaSm\d+\w*QkvBfloat16"),
    ("fp8", True, r"fmhaSm\d+\w*QkvE4m3|deep_gemm::|fp8_gemm"),
    # types in template arguments: the precision, but not which units
    ("fp8", None, r"(?i)e4m3|e5m2|float8|fp8"),
    ("bf16", None, r"(?i)bfloat16|bf16"),
    ("fp16", None, r"(?i)half|fp16|_f16"),
    ("fp64", None, r"\bdouble\b|_f64"),
    ("fp32", None, r"\bfloat\b|_f32"),
)
"""(precision or None, tensor cores or None, pattern), read top down; for matrix families only."""


UNKNOWN = -1
"""A precision, or a use of tensor cores, that the name does not say."""


class _Named(IntEnum):
    """An enumeration whose members print as one lower-case word."""

    @property
    def label(self) -> str:
        """The member's name in reports: ``gemm``, ``tf32``."""
        return self.name.lower()


class Activity(_Named):
    """What overlap is measured in; a kernel that copies still occupies SMs and is compute."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    MEMSET = 3


class Family(_Named):
    """What kind of work an op is. ``CUSTOM`` is a kernel that no rule knows."""

    GEMM = 0
    GEMV = 1
    """Matrix times vector (or a few): bound by memory, tensor cores would not help."""
    CONVOLUTION = 2
    ATTENTION = 3
    """One fused kernel; an attention built of GEMMs and softmax shows as those."""
    SOFTMAX = 4
    NORM = 5
    ELEMENTWISE = 6
    REDUCTION = 7
    SORT = 8
    """Sort, scan, select, top-k."""
    INDEXING = 9
    """Gather, scatter, embedding."""
    LAYOUT = 10
    """A kernel that only moves data: copy, transpose, concatenate, key-value cache."""
    OPTIMIZER = 11
    COMMUNICATION = 12
    TRITON = 13
    """Generated by Inductor; a template of its own for a GEMM or attention shows as those."""
    CUSTOM = 14
    MEMCPY = 15
    MEMSET = 16
    GRAPH = 17
    """A CUDA graph recorded whole: what it holds is not in the file."""


class Precision(_Named):
    """Type of the inputs that a matrix kernel multiplies."""

    FP64 = 0
    FP32 = 1
    TF32 = 2
    BF16 = 3
    FP16 = 4
    FP8 = 5
    FP4 = 6
    INT8 = 7


@dataclass(frozen=True, slots=True)
class NameClasses:
    """Judgement of kernel names, row by row."""

    family: Column
    """int8 :class:`Family`."""
    precision: Column
    """int8 :class:`Precision`, ``UNKNOWN`` where the name does not say."""
    tensor_cores: Column
    """int8: 1 uses them, 0 does not, ``UNKNOWN`` where the name does not say."""


@dataclass(frozen=True, slots=True)
class OpClasses:
    """Judgement of ops; columns are aligned with ``trace.ops``."""

    activity: Column
    """int8 :class:`Activity`."""
    family: Column
    precision: Column
    tensor_cores: Column


_MATRIX = (Family.GEMM, Family.GEMV, Family.CONVOLUTION, Family.ATTENTION)
_OTHER_KINDS = (
    (OpKind.MEMCPY, Family.MEMCPY, Activity.COPY),
    (OpKind.MEMSET, Family.MEMSET, Activity.MEMSET),
    (OpKind.GRAPH, Family.GRAPH, Activity.COMPUTE),
)


def classify_names(names: pa.Array) -> NameClasses:
    """Judge kernel names (an Arrow string array); a null name is ``custom``."""
    head = pc.replace_substring_regex(pc.fill_null(names, ""), SPLIT, "")
    family = np.full(len(names), Family.CUSTOM, np.int8)
    precision = np.full(len(names), UNKNOWN, np.int8)
    tensor_cores = np.full(len(names), UNKNOWN, np.int8)
    open_ = np.ones(len(names), bool)
    for label, pattern in FAMILIES:
        hit = open_ & _found(head, pattern)
        family[hit] = Family[label.upper()]
        open_ &= ~hit
    open_ = np.isin(family, _MATRIX)
    for type_, uses, pattern in PRECISIONS:
        hit = open_ & _found(head, pattern)
        precision[hit] = UNKNOWN if type_ is None else Precision[type_.upper()]
        tensor_cores[hit] = UNKNOWN if uses is None else int(uses)
        open_ &= ~hit
    tensor_cores[family == Family.GEMV] = 0
    return NameClasses(family, precision, tensor_cores)


def classify_ops(trace: Trace) -> OpClasses:
    """Judge every op of a trace; a trace without ops gives empty columns."""
    return classify_kinds(trace, trace.ops.name, trace.ops.kind)


def classify_kinds(trace: Trace, name: Column, kind: Column) -> OpClasses:
    """Judge ops by name (rows of the trace's strings) and kind; a kind stands above a name."""
    distinct, place = numbered(name)
    by_name = classify_names(trace.strings.take(pa.array(distinct, mask=distinct < 0)))
    family = by_name.family[place]
    precision = by_name.precision[place]
    tensor_cores = by_name.tensor_cores[place]
    activity = np.where(
        family == Family.COMMUNICATION, np.int8(Activity.COMMUNICATION), np.int8(Activity.COMPUTE)
    )
    for other_kind, other, what in _OTHER_KINDS:
        rows = kind == other_kind
        family[rows], activity[rows] = other, what
        precision[rows], tensor_cores[rows] = UNKNOWN, UNKNOWN
    return OpClasses(activity, family, precision, tensor_cores)


def _found(names: pa.Array, pattern: str) -> Column:
    """Where a pattern (RE2, case counts) occurs in each name."""
    column = pc.match_substring_regex(names, pattern)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)
