"""Findings that only a replay can weigh: loops of small launches, many small uploads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named, program_paths
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.replay.edits.launches import fuse_loop
from nvprobe.analysis.replay.edits.waits import between_reads, merge_uploads
from nvprobe.analysis.replay.model import NOTHING
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.intervals import runs
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import Column, OpKind

Proposed = tuple[Finding, Proposal]

SMALL_NS = 20_000
MOSTLY_SMALL = 0.95
LAUNCHES, AGAIN = 30, 8
"""A loop launches this often a step, and each of its kernels so often."""
UPLOADS, SMALL_BYTES = 8, 1_000_000
HOST_TO_DEVICE = 1
_PASSES = ("forward", "backward")


def launch_loops(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """One path launches the same small kernels many times per step, as a loop over tensors does."""
    event_path = sample.path
    paths = evidence.attribution.paths
    place = np.append(program_paths(paths), -1)[event_path]
    passes = _passes(paths)
    apart = np.append(passes, not passes.any())[event_path]  # outside of ranges may be the model
    apart |= evidence.attribution.autograd[sample.events.thread]
    for path in np.unique(place[~apart]).tolist():
        events = (place == path) & ~apart
        loop = _loop(evidence, sample, events)
        if loop is None:
            continue
        events, kernels = loop
        waiting = events & (sample.model.events.awaits != NOTHING)
        if np.count_nonzero(waiting) >= AGAIN * sample.steps:
            continue  # it reads values in each turn: no one call does that
        ops = sample.op[kernels]
        each = len(ops) / sample.steps
        spent = evidence.attribution.duration[ops]
        yield (
            Finding(
                id="launch_loop",
                ops=ops,
                title=f"{named(paths, path)} launches the same small kernels again and again: "
                f"{each:,.0f} per step of {np.median(spent) / 1000:.1f} µs (median)",
                path=path,
                sources=(),
                evidence={
                    "launches_per_step": round(each, 1),
                    "different_kernels": len(np.unique(evidence.ops.name[ops])),
                    "median_kernel_ns": int(np.median(spent)),
                    "gpu_ns_per_step": int(spent.sum() / sample.steps),
                    "host_ns_per_step": int(
                        (sample.events.end - sample.events.begin + sample.events.gap)[events].sum()
                        / sample.steps
                    ),
                },
                saves_ns=(0, 0),
                advice=(
                    "one call for all tensors: torch._foreach_… or clip_grad_norm_, and "
                    "foreach=True or fused=True for optimizers",
                    "torch.compile the function that loops",
                ),
            ),
            Proposal(fuse_loop(sample, events), 0.95),
        )


def _loop(evidence: Evidence, sample: Sample, events: Column) -> tuple[Column, Column] | None:
    """(the events of the loop, its kernels as bool per op), where there is one."""
    ops, op = evidence.ops, sample.op
    mine = events[sample.model.ops.event]
    kernels = mine & (ops.kind[op] == OpKind.KERNEL) & (ops.graph_node[op] == 0)
    if np.count_nonzero(kernels) < LAUNCHES * sample.steps:
        return None
    names, place, count = np.unique(ops.name[op[kernels]], return_inverse=True, return_counts=True)
    kernels[kernels] = (count >= AGAIN * sample.steps)[place]
    if len(names) == 0 or np.count_nonzero(kernels) < LAUNCHES * sample.steps:
        return None
    spent = evidence.attribution.duration[op[kernels]]
    if np.mean(spent < SMALL_NS) < MOSTLY_SMALL:
        return None
    inside = np.zeros(len(events), bool)
    inside[sample.model.ops.event[kernels]] = True
    launching = np.unique(sample.model.ops.event[ops.kind[op] != OpKind.MEMSET])
    inside &= _in_a_row(sample, inside, launching)
    kernels &= inside[sample.model.ops.event]
    if np.count_nonzero(kernels) < LAUNCHES * sample.steps:
        return None
    return _filled(sample, events, inside), kernels


def _in_a_row(sample: Sample, inside: Column, launching: Column) -> Column:
    """Bool per event: of many launches one after the other, none of them outside of the loop.

    What a loop over micro-batches does after each backward pass comes back as often, but apart.
    ``launching``: rows of the events that launch more than sets; those belong to a turn, as what a
    kernel adds up is zeroed before.
    """
    mine = inside[launching]
    heads = runs(2 * sample.step[launching] + mine)
    length = np.diff(np.append(heads, len(launching)))
    out = np.zeros(len(inside), bool)
    out[launching] = np.repeat(length >= LAUNCHES, length) & mine
    return out


def _filled(sample: Sample, events: Column, inside: Column) -> Column:
    """From the first to the last launch of the loop in each step: what lies between belongs to it.

    Where as much other work lies between, only the launches themselves do.
    """
    out = inside.copy()
    step = sample.step
    for one in range(sample.steps):
        rows = np.flatnonzero(inside & (step == one))
        if len(rows):
            between = np.arange(rows[0], rows[-1] + 1)
            between = between[events[between]]
            if len(between) <= 2 * len(rows):
                out[between] = True
    return out


def _passes(paths: PathTable) -> Column:
    """Bool per path: inside a forward or backward pass, a module or a compiled graph."""
    own = np.isin(paths.kind, (Kind.MODULE, Kind.GRAPH, Kind.COLLECTIVE))
    names = np.array(paths.names.to_pylist(), object)
    if len(paths.parent):
        own |= np.isin(names[paths.name], _PASSES)
    for depth in range(1, int(paths.depth.max(initial=0)) + 1):
        rows = np.flatnonzero(paths.depth == depth)
        own[rows] |= own[paths.parent[rows]]
    return own


def small_uploads(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Many small copies to the GPU per step, in one path, with no read between them.

    Where collectives are launched, too, they are the work of a library that shards the model.
    """
    ops, op, paths = evidence.ops, sample.op, evidence.attribution.paths
    uploads = (ops.kind[op] == OpKind.MEMCPY) & (ops.copy_kind[op] == HOST_TO_DEVICE)
    owner = evidence.attribution.owner[op]
    program = np.append(program_paths(paths), -1)[owner]
    collective = evidence.classes.activity[op] == Activity.COMMUNICATION
    uploads &= _several(uploads, between_reads(sample)[sample.model.ops.event])
    for path in np.setdiff1d(program[uploads], program[collective]).tolist():
        mine = uploads & (program == path)
        rows = op[mine]
        size = ops.bytes[rows]
        if len(rows) < UPLOADS * sample.steps or np.median(size) >= SMALL_BYTES:
            continue
        spent = np.zeros(len(paths.parent) + 1, np.int64)
        np.add.at(spent, evidence.attribution.owner[rows], evidence.attribution.duration[rows])
        place = common_path(paths, spent)
        yield (
            Finding(
                id="small_copies",
                ops=rows,
                title=f"{len(rows) / sample.steps:,.0f} small copies to the GPU per step in "
                f"{named(paths, place)}",
                path=place,
                sources=(),
                evidence={
                    "copies_per_step": round(len(rows) / sample.steps, 1),
                    "median_bytes": int(np.median(size)),
                    "bytes_per_step": int(size.sum() / sample.steps),
                },
                saves_ns=(0, 0),
                advice=(
                    "put them together on the host and copy once, from pinned memory with "
                    "non_blocking=True",
                    "make masks, positions and constants on the GPU, or copy them once before "
                    "the loop",
                ),
            ),
            Proposal(merge_uploads(sample, mine), 0.9),
        )


def _several(uploads: Column, stretch: Column) -> Column:
    """Bool per op: in a ``stretch`` (a number per op) with enough uploads to put together."""
    count = np.bincount(stretch[uploads], minlength=int(stretch.max(initial=0)) + 1)
    return np.asarray(count[stretch] >= UPLOADS)
