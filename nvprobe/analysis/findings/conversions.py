"""Findings about types and layouts that make kernels slow: FP64 products, layout conversions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import kernels_named, path_of_ops
from nvprobe.analysis.findings.sources import named
from nvprobe.analysis.kernels.classes import Family, Precision
from nvprobe.analysis.kernels.work import peak_flops
from nvprobe.analysis.replay.edits.kernels import fewer_conversions, other_precision
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.trace import Column

_DOUBLE = r"\bdouble\b"
CONVERSIONS = r"[nN]c?hw[cC]?To[nN]|nchwToNhwc|nhwcToNchw"
"""Kernels that a convolution's library launches around its own, in one call."""
FEWCONVERSIONS = 4


def double_products(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Matrix products in FP64, and the conversions to and from it."""
    op = sample.op
    matrix = np.isin(evidence.classes.family[op], (Family.GEMM, Family.GEMV, Family.CONVOLUTION))
    products = matrix & (evidence.classes.precision[op] == Precision.FP64)
    if not products.any():
        return
    casts = ~matrix & kernels_named(evidence, op, _DOUBLE)
    paths, path = evidence.attribution.paths, path_of_ops(evidence, op[products])
    spent = int(evidence.attribution.duration[op[products]].sum())
    yield (
        Finding(
            id="fp64_gemm",
            ops=op[products],
            title=f"Matrix products in {named(paths, path)} run in FP64",
            path=path,
            sources=(),
            evidence={
                "gpu_ns_per_step": spent // sample.steps,
                "products_per_step": round(int(np.count_nonzero(products)) / sample.steps, 1),
                "other_kernels_in_double_per_step": round(
                    int(np.count_nonzero(casts)) / sample.steps, 1
                ),
            },
            saves_ns=(0, 0),
            advice=(
                "give tensors made from NumPy or Python floats dtype=torch.float32: NumPy makes "
                "float64",
                "keep FP64 for the few sums that need it",
            ),
        ),
        Proposal(other_precision(products, _double_gain(evidence, op[products]), casts), 1.0),
    )


def _double_gain(evidence: Evidence, op: Column) -> float:
    """How much faster the fastest FP32 or TF32 products are; 2 where the peaks are unknown."""
    device = evidence.ops.device[op[:1]]
    rates = [
        peak_flops(evidence.trace.devices, device, np.array([precision]))[0]
        for precision in (Precision.FP64, Precision.FP32, Precision.TF32)
    ]
    best = np.nanmax(rates[1:]) if not np.all(np.isnan(rates[1:])) else np.nan
    return 2.0 if np.isnan(rates[0]) or np.isnan(best) else max(float(best / rates[0]), 2.0)


def layout_conversions(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Kernels that turn NCHW into NHWC and back, around convolutions that want NHWC."""
    op = sample.op
    conversions = kernels_named(evidence, op, CONVERSIONS)
    if np.count_nonzero(conversions) < FEWCONVERSIONS * sample.steps:
        return
    family = evidence.classes.family[op]
    pools = (family == Family.NORM) | kernels_named(evidence, op, r"(?i)pool")
    around = np.zeros(len(op), bool)
    if 2 * np.count_nonzero(conversions) >= np.count_nonzero(family == Family.CONVOLUTION):
        around = pools & ~kernels_named(evidence, op, r"(?i)nhwc|channels?_?last")
    paths, path = evidence.attribution.paths, path_of_ops(evidence, op[conversions])
    spent = int(evidence.attribution.duration[op[conversions]].sum())
    yield (
        Finding(
            id="layout_conversion",
            ops=op[conversions],
            title=f"Convolutions in {named(paths, path)} convert the layout of their tensors: "
            f"{np.count_nonzero(conversions) / sample.steps:,.0f} conversions per step",
            path=path,
            sources=(),
            evidence={
                "conversions_per_step": round(int(np.count_nonzero(conversions)) / sample.steps, 1),
                "gpu_ns_per_step": spent // sample.steps,
            },
            saves_ns=(0, 0),
            advice=("model.to(memory_format=torch.channels_last), and the input likewise",),
        ),
        Proposal(fewer_conversions(conversions, around), 1.0),
    )
