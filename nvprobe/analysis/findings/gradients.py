"""Gradients that cost more than the values in them: of whole tables, and added to zeros.

A dense gradient of an embedding's table is not dear because of the rows that are added up. It is
filled with zeros first, further uses of the table add another one, and the optimizer reads and
writes table, gradient and state as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.habits import FORWARD, OPTIMIZER
from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import BACKWARD, Sampled, path_of_ops
from nvprobe.analysis.findings.sources import named
from nvprobe.analysis.replay.changes import scale
from nvprobe.analysis.replay.edits.kernels import remaining
from nvprobe.analysis.replay.levels import Edit, Level
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Kind
from nvprobe.trace import Column

NOTABLE = 0.05
"""Of the GPU time of the steps, what a dense gradient takes at least."""
ROWS = (0.8, 0.3, 0.0)
"""What remains, level by level, of the kernels that add up rows: they have to be added up."""
MANY = 8
"""So many fills in a row, outside of the passes, are gradients that are set to zero one by one."""
_ROW_KERNELS = r"embedding_(dense_)?backward|compute_grad_weight|sum_and_scatter|krn_partial"
_NODE = r"Embedding(Bag|Dense)?Backward"
_FILL = r"FillFunctor|ZeroFunctor"
_ADD = r"CUDAFunctor_add|AddFunctor"
_LISTS = "multi_tensor_apply"
_ACCUMULATE = r"AccumulateGrad"
_FUSED = re.compile(r"Fused\w+Functor<\w+(?:::\w+)*, \(?(?:int\))?(\d)")
_FOREACH = re.compile(
    r"Functor<\w+(?:::\w+)*, \(?(?:int\))?\d, \(?(?:int\))?(\d), \(?(?:int\))?\d>"
)


def dense_gradients(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """The gradient of an embedding is a whole table, and so is what follows from it."""
    steps = Sampled(evidence, sample)
    rows = steps.kernels(_ROW_KERNELS)
    if np.count_nonzero(rows) < sample.steps:
        return
    remains = np.ones(len(sample.op))
    remains[rows] = 0.0
    table, share = _of_the_table(steps)
    remains[table] = 0.0
    lists = _lists(steps)
    remains[lists] = 1 - share
    spent = np.rint((1 - remains) * sample.model.ops.dur).astype(np.int64)
    whole = max(int(sample.model.ops.dur.sum()), 1)
    if spent.sum() < NOTABLE * whole or _dense_anyway(steps):
        return
    ops = sample.op[remains < 1]
    path = path_of_ops(evidence, sample.op[rows | (table & steps.started_by(_backward(steps)))])
    yield (
        Finding(
            id="dense_embedding_gradient",
            ops=ops,
            title=f"Gradients of embeddings in {named(evidence.attribution.paths, path)} are "
            "dense: a table of zeros with a few rows added",
            path=path,
            sources=(),
            evidence={
                "kernels_per_step": round(int(np.count_nonzero(rows)) / sample.steps, 1),
                "gpu_ns_per_step": int(spent.sum()) // sample.steps,
                "of_it_optimizer_ns_per_step": int(
                    spent[steps.started_by(steps.below(OPTIMIZER))].sum()
                )
                // sample.steps,
                "share_of_gpu_time": round(float(spent.sum() / whole), 4),
            },
            saves_ns=(0, 0),
            advice=(
                "sparse=True for nn.Embedding or nn.EmbeddingBag, with torch.optim.SparseAdam or "
                "plain SGD, where the table is large: only the rows that were used are updated",
                "a smaller table: shared, hashed, or with rare tokens left out",
            ),
        ),
        Proposal(_sparse(rows, table, lists, share), 0.8),
    )


def _of_the_table(steps: Sampled) -> tuple[Column, float]:
    """(bool per op: works on a whole table; the tables' share of what the optimizer updates).

    A table is known by the fill of its gradient. What an optimizer launches for one tensor, and
    takes longer, works on as much.
    """
    dur = steps.sample.model.ops.dur
    fills = _fills(steps)
    if not fills.any():
        return fills, 0.0
    least = int(dur[fills].max())
    optimizer = steps.started_by(steps.below(OPTIMIZER))
    lists = steps.kernels(_LISTS)
    large = dur >= least
    alone = large & optimizer & ~lists & steps.kernels(r"elementwise_kernel")
    mine = fills | alone | _sums(steps, fills)
    passes = _passes_over_tensors(steps, lists & optimizer)
    spent = int(dur[passes > 0].sum())
    each = least * steps.sample.steps  # one fill is one pass over a table
    return mine, min(each * _per_step(steps, passes) / spent, 1.0) if spent else 0.0


def _per_step(steps: Sampled, passes: Column) -> float:
    """Passes over all parameters in a step: each kernel's name once."""
    rows = np.flatnonzero(passes)
    names = steps.evidence.ops.name[steps.sample.op[rows]]
    first = np.unique(names, return_index=True)[1]
    return float(passes[rows[first]].sum())


def _passes_over_tensors(steps: Sampled, ops: Column) -> Column:
    """Per op of ``ops``: how often it reads or writes each element, by its name; 0 if unknown."""
    names, place = np.unique(steps.evidence.ops.name[steps.sample.op], return_inverse=True)
    per_name = [_passes_of(name or "") for name in steps.evidence.trace.texts(names)]
    return np.where(ops, np.array(per_name, np.int64)[place], 0)


def _passes_of(kernel: str) -> int:
    """Lists that are read and the one that is written; fused: all but gradients are written."""
    if fused := _FUSED.search(kernel):
        return 2 * int(fused[1]) - 1
    foreach = _FOREACH.search(kernel)
    return int(foreach[1]) + 1 if foreach else 0


def _lists(steps: Sampled) -> Column:
    """Bool per op: an optimizer's kernel for many tensors."""
    return steps.kernels(_LISTS) & steps.started_by(steps.below(OPTIMIZER))


def _sums(steps: Sampled, fills: Column) -> Column:
    """Bool per op: adds gradients that are as large as those of ``fills``: in as many blocks."""
    geometry, op = steps.evidence.trace.geometry, steps.sample.op
    blocks = np.zeros(len(steps.evidence.ops), np.int64)
    blocks[geometry.op] = geometry.grid_x
    adds = steps.kernels(_ADD) & steps.started_by(_backward(steps))
    return adds & np.isin(blocks[op], blocks[op[fills]]) & (blocks[op] > 0)


def _backward(steps: Sampled) -> Column:
    """Bool per event: in a backward pass."""
    return np.asarray(steps.on_autograd | steps.below(BACKWARD))


def _fills(steps: Sampled) -> Column:
    """Bool per op: fills the gradient of a table with zeros."""
    return steps.kernels(_FILL) & steps.started_by(steps.below(_NODE))


def _dense_anyway(steps: Sampled) -> bool:
    """Whether gradients of another kind are added to those of the tables.

    Two uses of a table make one sum. More sums than that: it is the weight of a product as well,
    whose gradient is dense.
    """
    fills = _fills(steps)
    sums = _sums(steps, fills) & ~steps.started_by(steps.below(_ACCUMULATE))
    return bool(fills.any() and np.count_nonzero(sums) >= np.count_nonzero(fills))


def _sparse(rows: Column, table: Column, lists: Column, share: float) -> Edit:
    """No tables of zeros. Low: the optimizer updates the whole table all the same."""
    without = remaining(table, (0.5, 0.0, 0.0))

    def edit(model: Model, level: Level) -> None:
        without(model, level)
        scale(model, rows, ROWS[level])
        if level != Level.LOW:
            scale(model, lists, 1 - share)

    return edit


def zeroed_gradients(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Gradients are set to zero, and the next backward pass adds to these zeros."""
    steps = Sampled(evidence, sample)
    zeros = _zeros(steps)
    if np.count_nonzero(zeros) < sample.steps:
        return
    adds = _first_adds(steps)
    ops = zeros | adds
    path = path_of_ops(evidence, sample.op[zeros])
    count, sums = (int(np.count_nonzero(one)) / sample.steps for one in (zeros, adds))
    yield (
        Finding(
            id="zeroed_gradients",
            ops=sample.op[zeros],
            title=f"zero_grad in {named(evidence.attribution.paths, path)} writes zeros that the "
            f"next backward pass adds to: {count:,.0f} kernels per step, and {sums:,.0f} that add",
            path=path,
            sources=(),
            evidence={
                "kernels_per_step": round(count, 1),
                "sums_per_step": round(sums, 1),
                "gpu_ns_per_step": int(sample.model.ops.dur[ops].sum()) // sample.steps,
                "share_of_gpu_time": round(steps.gpu_share(ops), 4),
            },
            saves_ns=(0, 0),
            advice=(
                "optimizer.zero_grad(set_to_none=True), the default: the first gradient is stored",
            ),
        ),
        Proposal(_without_zeros(zeros, adds), 1.0),
    )


def _without_zeros(zeros: Column, adds: Column) -> Edit:
    """No zeros, and no sums with them. Low: the sums stay."""
    nothing, sums = remaining(zeros, (0.0, 0.0, 0.0)), remaining(adds, (1.0, 0.0, 0.0))

    def edit(model: Model, level: Level) -> None:
        nothing(model, level)
        sums(model, level)

    return edit


def _zeros(steps: Sampled) -> Column:
    """Bool per op: sets gradients to zero.

    In a range that says so; all tensors by one call; or one by one, right after each other, where
    a backward pass adds to as many.
    """
    fills, sample = steps.kernels(_FILL), steps.sample
    apart = ~(steps.below(FORWARD) | steps.below(r".", Kind.MODULE) | steps.below(OPTIMIZER))
    apart &= ~_backward(steps)
    out = fills & steps.started_by(steps.below(r"zero_grad"))
    out |= steps.kernels(rf"{_LISTS}\w*<.*ZeroFunctor") & steps.started_by(apart)
    if out.any():
        return out
    loop = fills & steps.started_by(apart)
    heads = runs(loop)
    length = np.diff(np.append(heads, len(loop)))
    loop &= np.repeat(length >= MANY, length)
    # Parameters that an optimizer leaves out are added to without zeros, never the reverse.
    matched = np.count_nonzero(loop) <= np.count_nonzero(_first_adds(steps)) + sample.steps
    return loop if matched else out


def _first_adds(steps: Sampled) -> Column:
    """Bool per op: adds to a gradient in the first backward pass of a step."""
    step, number = steps.sample.step, steps.backward_pass
    adds = steps.kernels(_ADD) & steps.started_by(steps.below(_ACCUMULATE))
    if not adds.any():
        return adds
    event = steps.sample.model.ops.event[adds]
    first = np.full(int(step.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, step[event], number[event])
    return adds & steps.started_by(number == first[step])
