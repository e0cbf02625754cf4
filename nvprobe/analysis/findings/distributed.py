"""Findings about what DistributedDataParallel does in each step without need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.program import program
from nvprobe.analysis.findings.sampled import Sampled, path_of_ops
from nvprobe.analysis.findings.sources import named
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.replay.edits.kernels import remaining
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.trace import Column

_OF_INTEGERS = r"(?i)all_?reduce_(sum|max)_(i32|u8|int32|uint8)"
MOST = 0.9
"""Of the communication of a step, what its last pass may have at most."""


def micro_step_reductions(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Gradients accumulate, and every backward pass reduces them over the ranks."""
    known = program(evidence)
    if not known.replicated or not known.accumulates:
        return
    early = _early(evidence, sample, known.passes)
    rows = sample.op[early]
    if len(rows) < sample.steps:
        return
    path = path_of_ops(evidence, rows)
    spent = int(evidence.attribution.duration[rows].sum())
    yield (
        Finding(
            id="micro_step_reductions",
            ops=rows,
            title=f"Gradients are reduced in each of {known.passes} backward passes of a step, in "
            f"{named(evidence.attribution.paths, path)}",
            path=path,
            sources=(),
            evidence={
                "passes_per_step": known.passes,
                "early_reductions_per_step": round(len(rows) / sample.steps, 1),
                "early_reductions_ns_per_step": spent // sample.steps,
            },
            saves_ns=(0, 0),
            advice=(
                "model.no_sync() around the forward and backward passes of all micro-batches but "
                "the last",
            ),
        ),
        Proposal(remaining(early, (0.5, 0.0, 0.0)), 1.0),
    )


def _early(evidence: Evidence, sample: Sample, passes: int) -> Column:
    """Bool per op: communication before the last backward pass of its step begins."""
    steps = Sampled(evidence, sample)
    communication = evidence.classes.activity[sample.op] == Activity.COMMUNICATION
    event = sample.model.ops.event
    number = steps.backward_pass[event]
    last = np.zeros(int(sample.step.max(initial=0)) + 2, np.int64)
    np.maximum.at(last, sample.step[event], number)
    early = communication & (number < last[sample.step[event]])
    if int(early.sum()) > MOST * max(int(communication.sum()), 1):
        return np.zeros(len(early), bool)  # a step whose last pass reduces nothing is another thing
    return np.asarray(early)


def unused_parameters(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """DistributedDataParallel asks all ranks in every step which parameters were used."""
    if not program(evidence).replicated:
        return
    ops = Sampled(evidence, sample).kernels(_OF_INTEGERS)
    rows = sample.op[ops]
    if len(rows) < sample.steps:
        return
    path = path_of_ops(evidence, rows)
    yield (
        Finding(
            id="unused_parameters",
            ops=rows,
            title="DistributedDataParallel looks for unused parameters in every step, in "
            f"{named(evidence.attribution.paths, path)}",
            path=path,
            sources=(),
            evidence={
                "reductions_per_step": round(len(rows) / sample.steps, 1),
                "gpu_ns_per_step": int(evidence.attribution.duration[rows].sum()) // sample.steps,
            },
            saves_ns=(0, 0),
            advice=(
                "find_unused_parameters=False where every parameter gets a gradient",
                "static_graph=True where the unused ones are the same in each step",
            ),
        ),
        Proposal(remaining(ops, (1.0, 0.0, 0.0)), 1.0),
    )
