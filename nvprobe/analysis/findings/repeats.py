"""Findings about what is launched for each small part: products in a row, a module per turn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.loops import LAUNCHES, SMALL_NS, Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.program import program
from nvprobe.analysis.findings.sampled import Sampled, path_of_ops
from nvprobe.analysis.findings.sources import named
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.replay.edits.launches import cuda_graph, fuse_loop
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Kind
from nvprobe.trace import Column

IN_A_ROW = 6
"""So many products of one kernel after one another are the parts of one."""
TURNS = 8
"""A module that is called as often in a pass is called in a loop."""


def products_in_a_row(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """The same small product several times in a row, as a loop over heads or experts does."""
    steps = Sampled(evidence, sample)
    op = sample.op
    small = sample.model.ops.dur < SMALL_NS
    products = np.isin(evidence.classes.family[op], (Family.GEMM, Family.GEMV)) & small
    number = _rows_of_same(sample, products, evidence.ops.name[op])
    events = steps.launched(number >= 0)
    if not events.any():
        return
    group = np.full(len(sample.events), -1)
    group[sample.model.ops.event[number >= 0]] = number[number >= 0]
    count = len(np.unique(number[number >= 0]))
    rows = op[number >= 0]
    path = path_of_ops(evidence, rows)
    yield (
        Finding(
            id="products_in_a_row",
            ops=rows,
            title=f"Small matrix products in {named(evidence.attribution.paths, path)} come one by "
            f"one: {len(rows) / sample.steps:,.0f} per step in rows of {len(rows) / count:,.0f}",
            path=path,
            sources=(),
            evidence={
                "products_per_step": round(len(rows) / sample.steps, 1),
                "rows_per_step": round(count / sample.steps, 1),
                "median_kernel_ns": int(np.median(evidence.attribution.duration[rows])),
            },
            saves_ns=(0, 0),
            advice=(
                "one batched product for all: torch.bmm, einsum, or weights in one tensor",
                "grouped products (torch._grouped_mm) where the parts differ in size",
            ),
        ),
        Proposal(fuse_loop(sample, events, group), 0.8),
    )


def _rows_of_same(sample: Sample, products: Column, name: Column) -> Column:
    """Per op the number of its row of equal products on a stream, -1 for a short one or none."""
    stream = sample.model.ops.stream
    order = np.argsort(stream, kind="stable")
    step = sample.step[sample.model.ops.event]
    code = np.where(products, name, -1 - np.arange(len(name)))[order]
    place = np.stack((stream[order], step[order], code))
    _, key = np.unique(place, axis=1, return_inverse=True)
    heads = runs(np.ravel(key))
    length = np.diff(np.append(heads, len(order)))
    long = (length >= IN_A_ROW) & products[order][heads]
    number = np.where(long, np.cumsum(long) - 1, -1)
    out = np.empty(len(order), np.int64)
    out[order] = np.repeat(number, length)
    return out


def repeated_modules(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """A module that is called in a loop, for small kernels in each turn: a recurrent network."""
    path, turns = _called_in_turns(evidence)
    known = program(evidence)
    if path < 0 or not known.graphs:
        return
    steps = Sampled(evidence, sample)
    paths = evidence.attribution.paths
    mine = np.append(paths.nearest(np.arange(len(paths.parent)) == path) >= 0, False)
    forward = steps.launching & mine[sample.path]
    ops = sample.op[steps.started_by(forward)]
    spent = evidence.attribution.duration[ops]
    launches = len(ops) / sample.steps
    if launches < LAUNCHES or np.median(spent) >= SMALL_NS:
        return
    yield (
        Finding(
            id="repeated_module",
            ops=ops,
            title=f"{named(paths, path)} is called {turns:,.0f} times per step, for "
            f"{launches / turns:,.0f} kernels of {np.median(spent) / 1000:.1f} µs (median) each "
            "time",
            path=path,
            sources=(),
            evidence={
                "calls_per_step": round(turns, 1),
                "launches_per_step": round(launches, 1),
                "median_kernel_ns": int(np.median(spent)),
            },
            saves_ns=(0, 0),
            advice=(
                "torch.nn.LSTM or GRU (cuDNN) instead of a loop over cells; what does not depend "
                "on the turn before, once for all turns",
                "torch.cuda.make_graphed_callables for the module that loops, forward and backward",
                'torch.compile(mode="reduce-overhead") of the loop',
            ),
        ),
        Proposal(cuda_graph(sample, forward | steps.on_autograd), 0.6),
    )


def _called_in_turns(evidence: Evidence) -> tuple[int, float]:
    """(the outermost module path that a pass calls in a loop, -1; its calls per step)."""
    tree, paths = evidence.attribution.tree, evidence.attribution.paths
    calls = np.bincount(
        tree.path[(tree.path >= 0) & ~tree.folded], minlength=len(paths.parent)
    ) / max(len(evidence.steps), 1)
    passes = program(evidence).passes
    looped = np.flatnonzero((paths.kind == Kind.MODULE) & (calls >= TURNS * passes))
    if not len(looped):
        return -1, 0.0
    best = int(looped[np.lexsort((-calls[looped], paths.depth[looped]))[0]])
    return best, float(calls[best])
