"""Causes that kernels show by their names: a table, one row a kind.

To add a kind: a row here, a line in docs/findings.md and a case in
test_catalogue.py. ``remains`` are estimates, with where each comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import Sampled, path_of_ops
from nvprobe.analysis.findings.sources import named
from nvprobe.analysis.replay.edits.kernels import remaining
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.readers.input_errors import counted


@dataclass(frozen=True, slots=True)
class KernelCause:
    """A cause whose kernels are known by name."""

    id: str
    kernels: str
    """Pattern (RE2) of the kernels' full names."""
    title: str
    """With ``{path}``, and ``{kernels}``: 1 kernel, 2 kernels."""
    advice: tuple[str, ...]
    remains: tuple[float, float, float]
    """Of the kernels' time, at each level. Where nothing remains their launches go as well."""
    least: float = 0.05
    """Of the GPU time of the steps, what they take at least."""
    below: str = ""
    """Pattern of a range that they are launched in; anywhere where empty."""
    effort: float = 1.0


BY_KERNEL: tuple[KernelCause, ...] = (
    KernelCause(
        "unaligned_products",
        r"tensorop_(\w+_)?[sh]\d+\w*gemm\w*_align[12]\b",
        "Matrix products in {path} read rows that do not begin at multiples of 16 bytes: "
        "{kernels} per step",
        (
            "pad the odd dimension (vocabulary, classes, features) to a multiple of 8, better of "
            "64, and leave the rest unused",
            "contiguous copies of slices that begin at odd elements",
        ),
        # Kernels that load one or two values at a time: a tenth of an H200's peak, where aligned
        # ones reach 0.65 of it; small ones and older GPUs gain less.
        (0.9, 0.25, 0.1),
    ),
    KernelCause(
        "index_gradient",
        r"indexing_backward_kernel_(stride_1|small_stride)",
        "Gradients of indexing in {path} sort indices of narrow rows: {kernels} per step",
        (
            "index_select, gather or F.embedding instead of x[indices]: their gradients need no "
            "sort of all indices",
            "keep indices sorted and unique, and use index_copy",
        ),
        # index_add with atomics against sort and segments, an estimate. Of wide rows it is slower
        # (800,000 rows of 128 values: three times), so that their kernel is left alone.
        (1.0, 0.5, 0.1),
        effort=0.9,
    ),
    KernelCause(
        "strided_copy",
        r"elementwise_kernel(_manual_unroll)?<(\(int\))?\d+, (\(int\))?\d+, .*direct_copy_kernel",
        "Tensors in {path} are copied into another order of dimensions: {kernels} per step",
        (
            "keep one order from end to end: fewer permute(…).contiguous(), reshape of what is "
            "transposed, and einsum in the order that is stored",
            "torch.compile joins such a copy with the kernels around it",
        ),
        (1.0, 0.5, 0.1),  # some products need the copy
        least=0.1,
        effort=0.7,
    ),
    KernelCause(
        "concatenation",
        r"CatArrayBatchedCopy",
        "Tensors in {path} are concatenated: {kernels} per step to copy what is there already",
        (
            "write into slices of one tensor that is made before; a cache of fixed size with "
            "index_copy_ instead of torch.cat in each step",
            "one projection for several (query, key, value), split instead of joined",
        ),
        (1.0, 0.3, 0.0),
        effort=0.7,
    ),
    KernelCause(
        "repeated_tensor",
        r".",
        "Copies of the same values are written in {path}: {kernels} per step",
        (
            "expand instead of repeat: broadcasting reads the same values and writes none",
            "scaled_dot_product_attention(enable_gqa=True) instead of repeated keys and values",
        ),
        (0.5, 0.0, 0.0),  # where the next kernel has to broadcast, that is a little slower
        below=r"^aten::(repeat|repeat_interleave|tile)$",
    ),
    KernelCause(
        "large_softmax_loss",
        r"LogSoftMax(Forward|Backward)|nll_loss",
        "The loss over many classes in {path} is computed in FP32 passes over all logits",
        (
            "a fused loss that never stores all logits (linear and cross entropy by chunks)",
            "torch.compile of the head and the loss together",
        ),
        (0.9, 0.5, 0.25),  # forward and backward read and write the logits five times; two remain
        least=0.08,
        effort=0.7,
    ),
    KernelCause(
        "slow_attention",
        r"fmha_cutlass[FB]_(bf16|f16)",
        "Attention in {path} runs in the memory-efficient kernels, not in flash attention",
        (
            "is_causal=True instead of a mask that says the same; no mask where lengths are equal",
            "flex_attention or nested tensors for masks of another form; head sizes up to 256 that "
            "are multiples of 8",
        ),
        (1.0, 0.6, 0.35),  # FlashAttention-2 against CUTLASS on A100 and H100: 1.5 to 3 times
        effort=0.9,
    ),
    KernelCause(
        "fp32_attention",
        r"fmha_cutlass[FB]_f32",
        "Attention in {path} runs in FP32",
        ("queries, keys and values in bfloat16 (torch.autocast): flash attention takes them",),
        (0.6, 0.2, 0.1),
    ),
    KernelCause(
        "full_sort",
        r"DeviceRadixSort|bitonicSort|radixSortKVInPlace|DeviceSegmentedRadixSort",
        "Values in {path} are sorted: {kernels} per step",
        (
            "torch.topk where only the largest are used; sort once where the order stays",
            "smaller keys: int32 instead of int64",
        ),
        (1.0, 0.5, 0.2),
        least=0.1,
        effort=0.7,
    ),
    KernelCause(
        "general_convolution",
        r"im2col|col2im|vol2col|col2vol|explicit_convolve|fft2d_|slow_conv",
        "Convolutions in {path} run as copies and products: {kernels} per step",
        (
            "torch.backends.cudnn.benchmark = True where shapes are the same in each step",
            "channels and groups that cuDNN has kernels for: multiples of 8, no large dilation",
        ),
        (1.0, 0.5, 0.2),
        least=0.1,
    ),
    KernelCause(
        "grouped_convolution",
        r"conv_depthwise|grouped_direct_kernel|DepthwiseConv|dwconv",
        "Depthwise or grouped convolutions in {path} run in direct kernels: {kernels} per step",
        (
            "model.to(memory_format=torch.channels_last) in bfloat16 has faster ones",
            "fewer, larger groups",
        ),
        (1.0, 0.6, 0.3),
        least=0.1,
        effort=0.9,
    ),
)


def kernel_causes(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Each row of the table whose kernels take their share of the steps."""
    steps = Sampled(evidence, sample)
    for cause in BY_KERNEL:
        ops = steps.kernels(cause.kernels)
        if cause.below:
            ops &= steps.started_by(steps.below(cause.below))
        count = int(np.count_nonzero(ops))
        share = steps.gpu_share(ops)
        if count < sample.steps or share < cause.least:
            continue
        rows = sample.op[ops]
        path = path_of_ops(evidence, rows)
        yield (
            Finding(
                id=cause.id,
                ops=rows,
                title=cause.title.format(
                    path=named(evidence.attribution.paths, path),
                    kernels=counted(round(count / sample.steps), "kernel"),
                ),
                path=path,
                sources=(),
                evidence={
                    "kernels_per_step": round(count / sample.steps, 1),
                    "gpu_ns_per_step": int(sample.model.ops.dur[ops].sum()) // sample.steps,
                    "share_of_gpu_time": round(share, 4),
                },
                saves_ns=(0, 0),
                advice=cause.advice,
            ),
            Proposal(remaining(ops, cause.remains), cause.effort),
        )
