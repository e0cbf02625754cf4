"""Findings about what is launched for each small part: products in a row, a module per turn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.loops import LAUNCHES, SMALL_NS, Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.program import program
from nvprobe.analysis.findings.same_modules import (
    looks_like_a_cell,
    module_objects,
    outermost,
)
from nvprobe.analysis.findings.sampled import Sampled, path_of_ops
from nvprobe.analysis.findings.sources import named, times
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.replay.edits.launches import cuda_graph, fuse_loop
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Kind
from nvprobe.readers.input_errors import counted
from nvprobe.trace import Column

IN_A_ROW = 6
"""So many products of one kernel after one another are the parts of one."""
TURNS = 8
"""A module of which each object is called as often in a pass is called in a loop."""


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
    if not program(evidence).graphs:
        return
    steps = Sampled(evidence, sample)
    for path, turns, modules in _called_in_turns(evidence):
        paths = evidence.attribution.paths
        mine = np.append(paths.nearest(np.arange(len(paths.parent)) == path) >= 0, False)
        forward = steps.launching & mine[sample.path]
        ops = sample.op[steps.started_by(forward)]
        launches = len(ops) / sample.steps
        if launches < LAUNCHES or np.median(evidence.attribution.duration[ops]) >= SMALL_NS:
            continue
        if modules or looks_like_a_cell(steps, launches, turns):
            yield (
                _repeated_module(evidence, path, turns, modules, ops, launches),
                Proposal(cuda_graph(sample, forward | steps.on_autograd), 0.6),
            )
            return


def _repeated_module(
    evidence: Evidence, path: int, turns: float, modules: int, ops: Column, launches: float
) -> Finding:
    """What is said of a module that launches ``ops`` in its turns."""
    spent = evidence.attribution.duration[ops]
    return Finding(
        id="repeated_module",
        ops=ops,
        title=f"{named(evidence.attribution.paths, path)} is called {times(turns)} per step, for "
        f"{counted(round(launches / turns), 'kernel')} of {np.median(spent) / 1000:.1f} µs "
        "(median) each time",
        path=path,
        sources=(),
        evidence={
            "calls_per_step": round(turns, 1),
            **({"modules_of_its_name": modules} if modules else {}),
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
    )


def _called_in_turns(evidence: Evidence) -> Iterator[tuple[int, float, int]]:
    """(an outermost module path that a pass calls in a loop; its calls per step; its objects).

    Those called most first; 0 objects where it is not known how many. Different layers that one
    loop calls are left out, and so is what they call.
    """
    tree, paths = evidence.attribution.tree, evidence.attribution.paths
    calls = np.bincount(
        tree.path[(tree.path >= 0) & ~tree.folded], minlength=len(paths.parent)
    ) / max(len(evidence.steps), 1)
    least, objects = TURNS * program(evidence).passes, module_objects(evidence)
    often = np.flatnonzero((paths.kind == Kind.MODULE) & (calls >= least))
    often = outermost(paths, often)
    for path in often[np.lexsort((-calls[often], paths.depth[often]))].tolist():
        modules = objects.count(path)
        if calls[path] >= least * modules:
            yield path, float(calls[path]), modules
