"""Findings about what the GPU does: precision, unfused attention, chains, one kernel, its fit.

They shorten GPU time, which shortens a step only as far as the GPU is the bottleneck: low ends are
scaled by how busy it is, and are zero where it idles for more than a third of the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.findings.conversions import CONVERSIONS
from nvprobe.analysis.findings.model import HARDLY, Evidence, Finding, KernelText
from nvprobe.analysis.findings.sampled import kernels_named
from nvprobe.analysis.findings.sources import common_path, named, program_paths
from nvprobe.analysis.grouping import sums
from nvprobe.analysis.kernels.classes import Family, Precision
from nvprobe.analysis.kernels.work import peak_flops, tensor_core_gain
from nvprobe.attribution.kinds import compiled_graphs
from nvprobe.trace import Column

_ATTENTION = r"G[EL]{0,3}S[EL]{0,3}G"
"""Scores (scaled, masked), softmax (dropped out, cast), times the values."""
_CHAIN = r"[ENRLS]{3,}"
LONGEST_CHAIN = 40
"""A longer run is a loop over parameters: separate tensors, which fusing does not join."""
LOW_MFU = 0.4
GOOD_MFU = 0.7


def _critical(evidence: Evidence) -> float:
    """How much of saved GPU time surely shortens the step: the busy share, 0 below two thirds."""
    return evidence.busy_share if evidence.busy_share >= 2 / 3 else 0.0


def _by_path(evidence: Evidence, rows: Column) -> Column:
    """GPU ns of some ops per owner path (the last entry: of none)."""
    out = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(out, evidence.attribution.owner[rows], evidence.attribution.duration[rows])
    return out


def fp32_products(evidence: Evidence) -> Iterator[Finding]:
    """Matrix products on the FP32 units of a GPU whose tensor cores could do them in TF32.

    High end: twice the ratio of the two peaks, as FP32 kernels may run at half of their own. Low
    end: a quarter saved, as small products gain less.
    """
    classes, ops = evidence.classes, evidence.ops
    rows = np.flatnonzero(
        np.isin(classes.family, (Family.GEMM, Family.CONVOLUTION))
        & (classes.precision == Precision.FP32) & (classes.tensor_cores == 0) & evidence.trusted
    )  # fmt: skip
    gains = [
        tensor_core_gain(evidence.trace.devices, d) for d in range(len(evidence.trace.devices))
    ]
    gain = np.array([*(g or 1.0 for g in gains), 1.0])
    rows = rows[gain[ops.device[rows]] > 1]
    if not len(rows) or evidence.busy_share < HARDLY:
        return
    spent = evidence.attribution.duration[rows]
    total = int(spent.sum())
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    most = int((spent * (1 - 1 / (2 * gain[ops.device[rows]]))).sum())
    yield Finding(
        id="fp32_gemm",
        ops=rows,
        title=f"Matrix products in {_place(evidence, path)} run in FP32, off the tensor cores",
        path=path,
        sources=(),
        evidence={
            "gpu_ns": total,
            "share_of_gpu_time": _gpu_share(evidence, total),
            "kernels": len(rows),
            "kernel": evidence.kernel_name(_longest(ops.name[rows], rows, spent)),
            "peak_ratio": round(float(gain[ops.device[rows]].max()), 1),
        },
        saves_ns=(int(total * _critical(evidence) / 4), most),
        advice=(
            "torch.backends.cudnn.allow_tf32 = True: TF32, same memory, ten bits of mantissa"
            if _mostly(classes.family[rows] == Family.CONVOLUTION, spent)
            else 'torch.set_float32_matmul_precision("high"): TF32, same memory, ten bits of '
            "mantissa",
            "torch.autocast with bfloat16, or weights in bfloat16",
        ),
    )


def _mostly(chosen: Column, ns: Column) -> bool:
    return 2 * int(ns[chosen].sum()) > int(ns.sum())


def _longest(names: Column, rows: Column, ns: Column) -> int:
    """An op of the name with most of the time."""
    distinct, first, place = np.unique(names, return_index=True, return_inverse=True)
    return int(rows[first[np.argmax(sums(place, ns, len(distinct)))]])


def unfused_attention(evidence: Evidence) -> Iterator[Finding]:
    """Product, softmax, product: attention whose scores go through memory.

    High end: nine tenths of those kernels; low end: three tenths.
    """
    groups = _attention_groups(evidence)
    if not groups or evidence.busy_share < HARDLY:
        return
    rows = np.concatenate(groups)
    total = int(evidence.attribution.duration[rows].sum())
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    yield Finding(
        id="unfused_attention",
        ops=rows,
        title=f"Attention in {_place(evidence, path)} is not fused: scores, softmax and values "
        "are kernels of their own",
        path=path,
        sources=(),
        evidence={
            "gpu_ns": total,
            "attentions": len(groups),
            "kernels_each": round(len(rows) / len(groups), 1),
            "share_of_gpu_time": _gpu_share(evidence, total),
        },
        saves_ns=(int(total * _critical(evidence) * 3 / 10), total * 9 // 10),
        advice=(
            "torch.nn.functional.scaled_dot_product_attention: one kernel, scores never stored",
            "flex_attention for masks and biases of your own",
        ),
    )


def _attention_groups(evidence: Evidence) -> list[Column]:
    """Matches whose products are in one program path and, by their operators, both batched."""
    owner = np.append(evidence.attribution.owner, -1)
    program = np.append(program_paths(evidence.attribution.paths), -1)
    batched = np.append(_mentions(evidence, r"^aten::(bmm|baddbmm)$"), False)
    operators = np.append(_mentions(evidence, r"^aten::"), False)
    found = []
    text = evidence.kernel_text
    for low, high in zip(*text.spans(_ATTENTION), strict=True):
        rows = text.op[low:high]
        first, last = int(owner[rows[0]]), int(owner[rows[-1]])
        linear = (operators[first] or operators[last]) and not (batched[first] and batched[last])
        if not linear and program[first] == program[last]:
            found.append(_with_gradients(evidence, low, high, program[owner]))
    return found


def _with_gradients(evidence: Evidence, low: int, high: int, program: Column) -> Column:
    """The ops of a match; of a backward pass also the second product on either side.

    A softmax's backward lies between the gradients of values and scores and those of queries and
    keys. ``program``: per op its program path.
    """
    text, softmax = evidence.kernel_text, low + evidence.kernel_text.text[low:high].find(b"S")
    if "ackward" in evidence.kernel_name(int(text.op[softmax])):
        path = program[text.op[low]]
        before, after = text.op[low - 1], text.op[min(high, len(text.op) - 1)]
        if low and text.text[low - 1 : low] == b"G" and program[before] == path:
            low -= 1
        if text.text[high : high + 1] == b"G" and program[after] == path:
            high += 1
    return text.op[low:high]


def _mentions(evidence: Evidence, pattern: str) -> Column:
    """bool per path: its own name, or that of a path above it, matches."""
    paths = evidence.attribution.paths
    matching = pc.match_substring_regex(paths.names, pattern).to_numpy(zero_copy_only=False)
    return paths.nearest(np.asarray(matching, bool)[paths.name]) >= 0


def elementwise_chains(evidence: Evidence, specific: Sequence[Finding]) -> Iterator[Finding]:
    """Runs of kernels that each read and write everything: one fused kernel would do.

    High end: all but the longest kernel of each run; low end: a quarter of that.
    """
    text = _fusible(evidence)
    low, high = text.spans(_CHAIN)
    if not len(low) or evidence.busy_share < HARDLY:
        return
    duration = np.where(text.op >= 0, evidence.attribution.duration[text.op], 0)
    summed = np.concatenate(([0], np.cumsum(duration)))
    longest = np.maximum.reduceat(np.append(duration, 0), np.stack((low, high), 1).ravel())[::2]
    attention = _of_attention(evidence, specific)[text.op] & (text.op >= 0)
    explained = np.concatenate(([0], np.cumsum(attention)))
    kept = (explained[high] == explained[low]) & (high - low <= LONGEST_CHAIN)
    low, high, longest = low[kept], high[kept], longest[kept]
    if not len(low):
        return
    rows = text.ops_in(low, high)
    total = int((summed[high] - summed[low]).sum())
    most = total - int(longest.sum())
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    yield Finding(
        id="elementwise_chain",
        ops=rows,
        title=f"Chains of elementwise and norm kernels in {_place(evidence, path)}: "
        f"{len(rows):,} kernels in {len(low):,} chains",
        path=path,
        sources=(),
        evidence={
            "gpu_ns": total,
            "share_of_gpu_time": _gpu_share(evidence, total),
            "chains": len(low),
            "kernels": len(rows),
            "longest_chain": int((high - low).max()),
        },
        saves_ns=(int(most * _critical(evidence) / 4), most),
        advice=(
            "torch.compile: Inductor fuses them into one kernel per chain",
            "fused versions (fused norms, foreach or fused optimizers)",
        ),
    )


def _fusible(evidence: Evidence) -> KernelText:
    """The kernels with breaks where nothing would fuse: in compiled graphs Inductor has decided.

    A conversion inside of a convolution's call is part of the library.
    """
    text, paths = evidence.kernel_text, evidence.attribution.paths
    kernels = np.flatnonzero(text.op >= 0)
    compiled = np.append(paths.nearest(compiled_graphs(paths)) >= 0, False)
    apart = compiled[evidence.attribution.owner[text.op[kernels]]]
    apart |= kernels_named(evidence, text.op[kernels], CONVERSIONS)
    letters = np.frombuffer(text.text, np.uint8).copy()
    letters[kernels[apart]] = ord(".")
    return KernelText(letters.tobytes(), text.op)


def _of_attention(evidence: Evidence, specific: Sequence[Finding]) -> Column:
    """bool per op: it is part of an attention that `unfused_attention` reports."""
    out = np.zeros(len(evidence.ops), bool)
    for one in specific:
        if one.id == "unfused_attention":
            out[one.ops] = True
    return out


def gemm_efficiency(evidence: Evidence) -> Iterator[Finding]:
    """Products of known shapes far below the peak of their precision.

    Only where shapes, precision and peak are all known. High end: up to 70% of the roofline.
    """
    items = evidence.work
    if items is None or not len(items) or evidence.busy_share < HARDLY:
        return
    peak = peak_flops(evidence.trace.devices, items.device, items.precision)
    rated = ~np.isnan(peak) & (items.gpu_ns > 0) & (items.precision != Precision.FP32)
    if not rated.any():
        return
    ideal_ns = items.flops[rated] / peak[rated] * 1e9
    spent = items.gpu_ns[rated]
    mfu = float(ideal_ns.sum() / spent.sum())
    if mfu >= LOW_MFU:
        return
    own = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(own, items.path[rated], spent)
    path = common_path(evidence.attribution.paths, own)
    bandwidth = _bandwidth(evidence)[items.device[rated]]
    bytes_ns = np.nan_to_num(items.bytes[rated]) / bandwidth * 1e9
    same = _same_in_every_step(evidence, np.flatnonzero(rated))
    bound = np.maximum(ideal_ns, bytes_ns) / GOOD_MFU
    most = int(np.maximum(spent - bound, 0).sum())
    yield Finding(
        id="gemm_efficiency",
        title=f"Products in {_place(evidence, path)} reach {mfu:.0%} of the peak",
        path=path,
        sources=(),
        evidence={
            "gpu_ns": int(spent.sum()),
            "products": int(rated.sum()),
            "mfu": round(mfu, 4),
            "same_in_every_step": same,
            "share_of_gpu_time": _gpu_share(evidence, int(spent.sum())),
        },
        saves_ns=(0, most),
        advice=(
            "larger batches; dimensions that are multiples of 64",
            'torch.compile(mode="max-autotune")' + (
                ": shapes are the same in every step, so tuning pays" if same
                else " tunes each shape: pad or bucket them to a few"
            ),
        ),
    )  # fmt: skip


def _same_in_every_step(evidence: Evidence, rows: Column) -> int | None:
    """1 where each steady step has the same products, 0 where not, None without two of them."""
    ranges, items = evidence.trace.ranges, evidence.work
    if items is None or not evidence.repeats:
        return None
    at = items.range[rows]
    step = evidence.step_at(ranges.process[at], ranges.start[at])
    of_steps = [np.sort(items.flops[rows[step == one]]) for one in evidence.steady.tolist()]
    return int(all(np.array_equal(of_steps[0], other) for other in of_steps[1:]))


def _bandwidth(evidence: Evidence) -> Column:
    """Bytes per second and device row, 1e30 (no bound) where it is not recorded."""
    recorded = evidence.trace.devices.bandwidth_bytes_s.astype(np.float64)
    return np.append(np.where(recorded > 0, recorded, 1e30), 1e30)


def _place(evidence: Evidence, path: int) -> str:
    return named(evidence.attribution.paths, path)


def _gpu_share(evidence: Evidence, ns: int) -> float:
    return round(ns / max(int(evidence.attribution.duration.sum()), 1), 4)
