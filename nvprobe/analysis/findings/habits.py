"""Causes that lie in what a step does around its kernels: a table of habits of training loops.

Each row says how its calls are found in the sampled steps and which of them a change leaves out.
To add one: a function that marks events, a row in ``HABITS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.same_modules import evaluations
from nvprobe.analysis.findings.sampled import BACKWARD, PAGEABLE, Sampled
from nvprobe.analysis.findings.sources import named, times
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.replay.edits.calls import made_before, unblocked, without
from nvprobe.analysis.replay.edits.waits import less_often, remove_sync
from nvprobe.analysis.replay.levels import Edit
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.attribution.model import Kind
from nvprobe.trace import Column

FORWARD = r"(?i)^(## )?forward( ##)?$"
OPTIMIZER = r"(?i)^(optim(izer)?(_step)?|Optimizer\.step.*|(## )?optimizer( ##)?)$"
EVALUATION = r"(?i)^(eval(uat(e|ion))?|valid(at(e|ion))?)(_(step|loop|epoch))?$"
NEAR = 4
"""Launches before a wait that may compute what it waits for."""
LARGE_BYTES = 1_000_000
METRICS_BYTES = 64
"""More than a few numbers: a result, not a metric."""
RETURNED = 2
"""Uploads among the passes of an evaluation, after such a result was read."""
NEARLY_ALL = 0.9
"""Of the launches; a few small kernels end before their calls by chance."""
HALF_FULL = 0.5
"""Of the GPU's memory: a peak below leaves enough for what checkpoints compute again."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Calls that are found by what they do, and are not needed."""

    id: str
    find: Callable[[Sampled], Column]
    """Bool per event."""
    title: str
    """With ``{path}`` and ``{count}``, events per step, or ``{times}``: once, 2 times."""
    advice: tuple[str, ...]
    least: float = 1
    """Events per step, at least."""
    edit: Callable[[Sample, Column], Edit] = without
    effort: float = 1.0


def _nan_checks(steps: Sampled) -> Column:
    """Reads in a backward pass of whether any value is not a number: anomaly mode."""
    checks = steps.launched(steps.kernels(r"or_kernel_cuda"))
    backward = steps.on_autograd | steps.below(BACKWARD)
    waits = steps.waiting & backward
    near = steps.just_before(waits, checks, NEAR)
    waits &= _after(near, NEAR)
    compares = steps.launched(steps.kernels(r"compare_(eq|ne)|CompareEqFunctor|CompareFunctor"))
    found = waits | near | steps.just_before(near, compares, 1)
    return np.asarray(found | steps.just_before(waits, steps.reads, 1))


def _after(mine: Column, count: int) -> Column:
    """Bool per event: one of ``mine`` is among the ``count`` events before."""
    out = np.zeros(len(mine), bool)
    for distance in range(1, count + 1):
        out[distance:] |= mine[:-distance]
    return out


def _optimizer_reads(steps: Sampled) -> Column:
    return np.asarray(steps.waiting & steps.below(OPTIMIZER) & _for_reads(steps))


def _for_reads(steps: Sampled) -> Column:
    """Waits for a copy to the host, or such a copy that waits."""
    return np.asarray(steps.waiting & (steps.reads | np.append(False, steps.reads[:-1])))


def _host_tensors(steps: Sampled) -> Column:
    """Uploads from pageable memory in a forward pass."""
    pageable = steps.evidence.ops.source_memory[steps.sample.op] == PAGEABLE
    forward = steps.below(FORWARD) | steps.below(r".", Kind.MODULE)
    return np.asarray(steps.launched(steps.uploads & pageable) & forward & ~steps.on_autograd)


def _large_downloads(steps: Sampled) -> Column:
    large = steps.evidence.ops.bytes[steps.sample.op] >= LARGE_BYTES
    return np.asarray(steps.reads & steps.launched(large) & ~steps.below(EVALUATION))


def _evaluation(steps: Sampled) -> Column:
    """All that an evaluation does inside of a step.

    A pass without gradients whose result goes through the host into the next such pass, as a
    policy's actions do, is none: the step is made of them.
    """
    paths, step = steps.evidence.attribution.paths, steps.sample.step
    found = np.zeros(len(paths.parent), bool)
    found[list(evaluations(steps.evidence, steps.ranges(EVALUATION)))] = True
    mine = np.append(paths.nearest(found) >= 0, False)[steps.sample.path]
    results = steps.evidence.ops.bytes[steps.sample.op] > METRICS_BYTES
    read = steps.reads & steps.launched(results)
    sent = steps.launched(steps.uploads)
    for one in np.unique(step[mine]).tolist():
        rows = np.flatnonzero(mine & (step == one))
        between = slice(rows[0], rows[-1])
        returned = sent[between] & (np.cumsum(read[between]) > 0)
        if np.count_nonzero(returned) >= RETURNED:
            mine[rows] = False
    return mine


def _recomputed(steps: Sampled) -> Column:
    """What checkpoints compute again, where the GPU has memory for it."""
    use = steps.evidence.allocator
    if use is None or not len(use.devices):
        return np.zeros(len(steps.sample.events), bool)
    peak, capacity = use.devices.peak_bytes, use.devices.capacity_bytes
    fits = bool(np.all((peak > 0) & (capacity > 0) & (peak < HALF_FULL * capacity)))
    return steps.recomputed if fits else np.zeros(len(steps.sample.events), bool)


def _tuning(steps: Sampled) -> Column:
    """Products and convolutions that are timed: the host waits for the end of each."""
    family = steps.evidence.classes.family[steps.sample.op]
    tuned = steps.launched(np.isin(family, (Family.CONVOLUTION, Family.GEMM, Family.TRITON)))
    calls = steps.evidence.trace.calls
    rows = steps.sample.events.call
    names = steps.evidence.trace.texts(np.unique(calls.name))
    events = np.isin(
        calls.name, np.unique(calls.name)[["EventSynchronize" in (n or "") for n in names]]
    )
    waits = steps.waiting & (rows >= 0) & events[rows]
    timed = steps.just_before(waits, tuned, 1)
    return np.asarray(timed | (waits & _after(timed, 1)))


def _optimizer_casts(steps: Sampled) -> Column:
    """Casts between precisions in an optimizer's step."""
    casts = steps.kernels(r"(bfloat16|float16)_copy_kernel|direct_copy_kernel|LoadWithCast")
    return np.asarray(steps.launched(casts) & steps.below(OPTIMIZER))


def _held_launches(steps: Sampled) -> Column:
    """Launches that last until their kernels have ended, where nearly all do."""
    sample, ops = steps.sample, steps.evidence.ops
    end = np.full(len(sample.events), np.iinfo(np.int64).max)
    np.minimum.at(end, sample.model.ops.event, ops.end[sample.op])
    launches = steps.launched(steps.kernels(r"")) & ~steps.waiting
    held = launches & (sample.events.end >= end)
    nearly_all = int(held.sum()) >= NEARLY_ALL * max(int(launches.sum()), 1)
    return held if nearly_all else np.zeros(len(held), bool)


HABITS: tuple[Habit, ...] = (
    Habit(
        "blocking_launches",
        _held_launches,
        "Every launch in {path} waits for its kernel: {count} per step",
        (
            "unset CUDA_LAUNCH_BLOCKING: it is for finding the line of an error",
            "look for a debugger or another profiler that serializes kernels",
        ),
        least=30,
        edit=unblocked,
    ),
    Habit(
        "anomaly_mode",
        _nan_checks,
        "Every gradient in {path} is checked for NaN on the host: {count} calls per step",
        ("torch.autograd.set_detect_anomaly(False): switch it on to look for a fault, then off",),
        least=16,
    ),
    Habit(
        "optimizer_reads",
        _optimizer_reads,
        "The optimizer in {path} reads values from the GPU {times} per step",
        (
            "fused=True, or capturable=True, for an optimizer whose state or learning rate is on "
            "the GPU",
            "keep step counts and learning rates of the scheduler as Python numbers",
        ),
        least=2,
        edit=remove_sync,
    ),
    Habit(
        "host_tensors",
        _host_tensors,
        "Tensors made on the host are copied to the GPU inside {path}, {times} per step",
        (
            "make masks, positions and constants on the GPU, once: register_buffer",
            "where they change, make them with the batch, pinned, and copy with non_blocking=True",
        ),
        edit=made_before,
    ),
    Habit(
        "large_download",
        _large_downloads,
        "Whole tensors in {path} are copied to the host, {times} per step",
        (
            "reduce on the GPU and copy the result; every hundredth step",
            'to("cpu", non_blocking=True) into pinned memory where all of it is needed',
        ),
    ),
    Habit(
        "evaluation_in_step",
        _evaluation,
        "A model runs without gradients, as for an evaluation, in every step: {path}",
        (
            "where nothing else in the step needs its result: evaluate every so many steps, with "
            "torch.inference_mode() and larger batches",
        ),
        edit=less_often,
        effort=0.8,
    ),
    Habit(
        "needless_checkpoints",
        _recomputed,
        "Modules in {path} run again in the backward pass, and the GPU has memory for them",
        (
            "activation checkpointing of fewer blocks, or none: the peak is below half of the "
            "GPU's memory",
            "selective checkpoints that keep products and compute the rest again",
        ),
        least=10,
        effort=0.9,
    ),
    Habit(
        "tuning_in_steps",
        _tuning,
        "Kernels are timed against one another in every step, in {path}: {count} calls",
        (
            "torch.backends.cudnn.benchmark = False where shapes change in each step, or pad them "
            "to a few",
            "max-autotune and Triton's autotune before the loop, with a key that does not change",
        ),
        least=4,
    ),
    Habit(
        "optimizer_casts",
        _optimizer_casts,
        "The optimizer in {path} casts parameters one by one: {count} launches per step",
        (
            "FP32 copies that are kept and written by one call (torch._foreach_copy_)",
            "fused=True: the optimizer reads bfloat16 gradients itself",
        ),
        least=8,
        effort=0.9,
    ),
)


def habits(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Each row of the table whose calls come back in every step."""
    steps = Sampled(evidence, sample)
    for habit in HABITS:
        events = habit.find(steps) & (sample.events.call >= 0)
        each = np.bincount(sample.step[events], minlength=sample.steps)[: sample.steps]
        if np.median(each) < habit.least:
            continue
        ops = sample.op[steps.started_by(events)]
        path = steps.place(events)
        e = sample.model.events
        yield (
            Finding(
                id=habit.id,
                ops=ops,
                title=habit.title.format(
                    path=named(evidence.attribution.paths, path),
                    count=f"{np.median(each):,.0f}",
                    times=times(float(np.median(each))),
                ),
                path=path,
                sources=_lines(evidence, sample, events),
                evidence={
                    "calls_per_step": round(float(np.mean(each)), 1),
                    "waits_per_step": round(
                        int(np.count_nonzero(events & steps.waiting)) / sample.steps, 1
                    ),
                    "gpu_ns_per_step": int(evidence.attribution.duration[ops].sum())
                    // sample.steps,
                    "host_ns_per_step": int((e.gap + e.dur)[events].sum()) // sample.steps,
                },
                saves_ns=(0, 0),
                advice=habit.advice,
            ),
            Proposal(habit.edit(sample, events), habit.effort),
        )


def _lines(evidence: Evidence, sample: Sample, events: Column) -> tuple[str, ...]:
    """The marked lines of the waits among ``events``, in the order of their count."""
    syncs = evidence.waits.syncs
    rows = sample.events.waits[events]
    source = syncs.sites.source[syncs.site[rows[rows >= 0]]]
    labels, count = np.unique(source[source >= 0], return_counts=True)
    order = labels[np.argsort(-count, kind="stable")][:3]
    return tuple(str(syncs.labels[int(row)].as_py()) for row in order)
