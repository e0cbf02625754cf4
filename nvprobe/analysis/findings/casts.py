"""Weights that autocast casts again in every micro-batch of a step.

Autocast keeps the casts of weights until its outermost context ends. With a context per micro-batch
each casts all of them again. The weights are counted by their gradients: a node of the cast's
backward whose result is accumulated right after it. Which casts of a forward pass are theirs, and
which are casts of activations, a capture without shapes does not say: at least the shortest ones,
at most the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.replay.edits.kernels import fewer_casts
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.intervals import Coverage
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import Column

FEW = 4
"""Fewer weights that are cast in a pass are not worth a finding."""
_CAST = r"\b(?P<type>bfloat16|float16)_copy_kernel\w*\(.*\[lambda\(float\)"
_NODE, _ACCUMULATE = "ToCopyBackward0", "AccumulateGrad"


@dataclass(frozen=True, slots=True)
class _Casts:
    """Bools per event: casts in passes after the first one of their step."""

    shortest: Column
    longest: Column
    gradients: Column
    weights: int
    """Weights that are cast in a pass."""
    passes: int
    """Passes of a step."""


def weight_casts(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """The same weights are cast in several forward passes of a step."""
    casts = _casts(evidence, sample)
    if casts is None:
        return
    paths, event = evidence.attribution.paths, sample.model.ops.event
    ops = sample.op[casts.longest[event]]
    gradients = sample.op[casts.gradients[event]]
    spent = evidence.attribution.duration
    own = np.zeros(len(paths.parent) + 1, np.int64)
    np.add.at(own, evidence.attribution.owner[ops], spent[ops])
    path = common_path(paths, own)
    yield (
        Finding(
            id="weight_casts",
            ops=ops,
            title=f"{casts.weights} weights in {named(paths, path)} are cast again in each of "
            f"{casts.passes} micro-batches of a step",
            path=path,
            sources=(),
            evidence={
                "weights": casts.weights,
                "passes_per_step": casts.passes,
                "repeated_casts_per_step": round(len(ops) / sample.steps, 1),
                "repeated_casts_ns_per_step": int(spent[ops].sum()) // sample.steps,
                "repeated_gradient_casts_ns_per_step": int(spent[gradients].sum()) // sample.steps,
            },
            saves_ns=(0, 0),
            advice=(
                "one torch.autocast around all micro-batches of a step, left before "
                "optimizer.step(), with torch.autocast(…, enabled=False) around backward(): "
                "weights are cast once",
                "weights in the lower precision with FP32 copies in the optimizer: then their "
                "gradients are not cast in each pass either",
            ),
        ),
        Proposal(fewer_casts(casts.shortest, casts.longest, casts.gradients), 0.9),
    )


def _casts(evidence: Evidence, sample: Sample) -> _Casts | None:
    """The repeated casts; None where nothing says that weights are cast again."""
    forward, gradients = _forward_casts(evidence, sample), _gradient_casts(evidence, sample)
    number = _passes(evidence, sample)
    code = sample.step * (int(number.max(initial=0)) + 1) + number
    kinds = [np.unique(code[one], return_counts=True) for one in (forward, gradients)]
    if not all(len(keys) for keys, _ in kinds):
        return None
    (keys, cast), (_, accumulated) = kinds
    weights, passes = int(np.median(accumulated)), len(keys) // sample.steps
    # A cache that lives on leaves the casts of activations alone to the later passes.
    if weights < FEW or passes < 2 or cast.min() < max(weights, cast.max()):
        return None
    first = np.full(int(sample.step.max()) + 2, np.iinfo(np.int64).max)  # the last: of no step
    np.minimum.at(first, sample.step[forward], number[forward])
    later = number - first[sample.step]
    ns = np.zeros(len(forward), np.int64)
    np.add.at(ns, sample.model.ops.event, sample.model.ops.dur)
    rows = np.flatnonzero(forward & (later > 0))
    shortest, longest = np.zeros((2, len(forward)), bool)
    for size, out in ((ns[rows], shortest), (-ns[rows], longest)):
        sorted_rows = rows[np.lexsort((size, code[rows]))]
        rank = np.arange(len(rows)) - np.searchsorted(code[sorted_rows], code[sorted_rows])
        out[sorted_rows[rank < weights]] = True
    return _Casts(shortest, longest, gradients & (later > 1), weights, passes)


def _forward_casts(evidence: Evidence, sample: Sample) -> Column:
    """Bool per event: launches a cast from FP32 in a forward pass of a module."""
    op, attribution = sample.op, evidence.attribution
    names, place = np.unique(evidence.ops.name[op], return_inverse=True)
    texts = evidence.trace.strings.take(pa.array(names, mask=names < 0))
    hit = pc.match_substring_regex(pc.fill_null(texts, ""), _CAST)
    cast = np.asarray(hit.to_numpy(zero_copy_only=False), bool)[place]
    paths = attribution.paths
    inside = paths.nearest(paths.kind == Kind.MODULE) >= 0
    inside &= paths.nearest(_backward(paths)) < 0  # a checkpoint computes forward in backward
    out = np.zeros(len(sample.events), bool)
    out[sample.model.ops.event[cast]] = True
    return out & np.append(inside, False)[sample.path]


def _gradient_casts(evidence: Evidence, sample: Sample) -> Column:
    """Bool per event: launched in the backward of a cast whose result is accumulated next."""
    attribution = evidence.attribution
    nesting, paths = attribution.open.nesting, attribution.paths
    path = attribution.tree.path[nesting.row]
    casts, accumulating = (
        np.append(
            np.asarray(pc.match_substring(paths.names, name).to_numpy(zero_copy_only=False), bool)[
                paths.name
            ],
            False,
        )[path]
        for name in (_NODE, _ACCUMULATE)
    )
    threads = len(evidence.trace.threads)
    rows = np.flatnonzero(casts)
    thread = np.repeat(np.arange(threads), np.diff(nesting.first))[rows]
    follows = nesting.last_started(thread, nesting.end[rows] - 1) + 1
    known = follows < nesting.first[thread + 1]
    known[known] = accumulating[follows[known]]
    rows, thread = rows[known], thread[known]
    covered = Coverage.of(thread, nesting.start[rows], nesting.end[rows], threads)
    launching = np.zeros(len(sample.events), bool)
    launching[sample.model.ops.event] = True
    return launching & covered.contains(sample.events.thread, sample.events.begin)


def _passes(evidence: Evidence, sample: Sample) -> Column:
    """Backward passes begun before each event."""
    tree = evidence.attribution.tree
    backward = np.append(_backward(evidence.attribution.paths), False)
    begun = np.sort(evidence.trace.ranges.start[backward[tree.path] & ~tree.folded])
    return np.searchsorted(begun, sample.events.begin, side="right")


def _backward(paths: PathTable) -> Column:
    """Bool per path: the phase ``backward``."""
    named_so = pc.equal(paths.names, "backward").to_numpy(zero_copy_only=False)
    return np.asarray((paths.kind == Kind.PHASE) & named_so[paths.name])
