"""Kernels and copies by name, and their traits."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.kernels.classes import Activity, Family, OpClasses, classify_kinds
from nvprobe.analysis.kernels.occupancy import LaunchFit, kernel_fit
from nvprobe.analysis.model import Copies, Kernels
from nvprobe.attribution.intervals import sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, OpKind, Ops, Table, column

_COMPUTE = (OpKind.KERNEL, OpKind.GRAPH)


def kernels(attribution: Attribution, suspect: Column) -> Kernels:
    """Kernels and whole-graph records by name; ``suspect`` is a bool per op."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(np.isin(ops.kind, _COMPUTE))
    key, group = distinct(ops.name[rows].astype(np.int64) << 8 | ops.kind[rows])
    size = len(key)
    duration, doubtful = attribution.duration[rows], suspect[rows]
    gpu = _summed(group, duration, size)
    suspect_ns = _summed(group, np.where(doubtful, duration, 0), size)
    longest = np.zeros(size, np.int64)
    np.maximum.at(longest, group, duration)
    short_name = np.empty(size, np.int32)
    short_name[group[::-1]] = ops.short_name[rows[::-1]]
    top_path, top_ns = _top_path(attribution.owner[rows], group, duration, size)
    table = Kernels(
        name=key >> 8,
        short_name=short_name,
        kind=key & 0xFF,
        ops=np.bincount(group, minlength=size),
        gpu_ns=gpu,
        longest_ns=longest,
        top_path=top_path,
        top_path_ns=top_ns,
        suspect_ops=np.bincount(group[doubtful], minlength=size),
        suspect_ns=suspect_ns,
    )
    return table.take(np.argsort(suspect_ns - gpu, kind="stable"))


def copies(attribution: Attribution) -> Copies:
    """Copies and sets by name."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(~np.isin(ops.kind, _COMPUTE))
    key, group = distinct(ops.name[rows].astype(np.int64) << 8 | ops.kind[rows])
    size = len(key)
    gpu = _summed(group, attribution.duration[rows], size)
    table = Copies(
        name=key >> 8,
        kind=key & 0xFF,
        ops=np.bincount(group, minlength=size),
        gpu_ns=gpu,
        bytes=_summed(group, np.maximum(ops.bytes[rows], 0), size),
        top_path=_top_path(attribution.owner[rows], group, attribution.duration[rows], size)[0],
    )
    return table.take(np.argsort(-gpu, kind="stable"))


def suspect_ops(ops: Ops, valid: Column) -> Column:
    """Bool per op: it still runs when its successor on the same stream has come and gone.

    Work on one stream is serial. Nodes of a graph are not (branches run side by side and carry the
    stream of the launch), nor is anything said of impossible times.
    """
    suspect = np.zeros(len(valid), bool)
    rows = np.flatnonzero(valid & (ops.graph_node == 0) & (ops.kind != OpKind.GRAPH))
    _, stream = _streams(ops, rows)
    order = sorted_by(stream, ops.start[rows])
    rows, stream = rows[order], stream[order]
    start, end = ops.start[rows], ops.end[rows]
    contains = (
        (stream[:-1] == stream[1:])
        & (start[:-1] < start[1:])
        & (end[:-1] > end[1:])
        & (start[1:] < end[1:])
    )
    suspect[rows[:-1][contains]] = True
    return suspect


def _streams(ops: Ops, rows: Column) -> tuple[Column, Column]:
    """A dense code per (process, device, context, stream)."""
    code = np.zeros(len(rows), np.int64)
    values: Column = np.empty(0, np.int64)
    for part in (ops.process, ops.device, ops.context, ops.stream):
        _, digit = distinct(part[rows].astype(np.int64))
        values, code = distinct(code.astype(np.int64) << 32 | digit)
    return values, code


def _summed(group: Column, values: Column, size: int) -> Column:
    out = np.zeros(size, np.int64)
    np.add.at(out, group, values)
    return out


def _top_path(owner: Column, group: Column, duration: Column, size: int) -> tuple[Column, Column]:
    """Per group: the owner path (or -1) with most of its time, and that time."""
    pair, code = distinct(group.astype(np.int64) << 32 | (owner.astype(np.int64) + 1))
    time = _summed(code, duration, len(pair))
    order = np.argsort(time, kind="stable")  # the last assignment to a group stays: the longest
    top, top_ns = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    top[pair[order] >> 32] = (pair[order] & 0xFFFFFFFF) - 1
    top_ns[pair[order] >> 32] = time[order]
    return top, top_ns


@dataclass(frozen=True, slots=True)
class KernelTraits(Table):
    """One row a row of the analysis' kernels; NaN or -1 where it cannot be known."""

    activity: Column = column("i1")
    """:class:`~nvprobe.analysis.kernels.classes.Activity`."""
    family: Column = column("i1")
    """:class:`~nvprobe.analysis.kernels.classes.Family`."""
    precision: Column = column("i1")
    tensor_cores: Column = column("i1")
    occupancy: Column = column("f8")
    """Theoretical, 0 to 1: the mean over launches, weighted by time."""
    waves: Column = column("f8")
    tail: Column = column("f8")
    limiter: Column = column("i1")
    """:class:`~nvprobe.analysis.kernels.occupancy.Limiter` of the longest launch."""


def _mostly_talks(attribution: Attribution, kernels: Kernels, classes: OpClasses) -> Column:
    """Bool per kernel: most of its time communicates, as the ranges around it say."""
    ops = attribution.trace.ops
    talks = classes.activity == Activity.COMMUNICATION
    size = len(attribution.trace.strings)
    rows = np.flatnonzero(talks & (ops.name >= 0))
    spent = sums(ops.name[rows], attribution.duration[rows], size)
    return (kernels.name >= 0) & (2 * np.append(spent, 0)[kernels.name] > kernels.gpu_ns)


def kernel_traits(
    attribution: Attribution, kernels: Kernels, classes: OpClasses, fit: LaunchFit | None
) -> KernelTraits:
    """Judge each kernel by its name, and by the geometry of its launches where recorded."""
    judged = classify_kinds(attribution.trace, kernels.name, kernels.kind)
    talks = _mostly_talks(attribution, kernels, classes)
    unknown = np.full(len(kernels), np.nan)
    occupancy, waves, tail, limiter = unknown, unknown, unknown, np.full(len(kernels), -1)
    by_name = kernel_fit(attribution, fit) if fit is not None else None
    if by_name is not None and len(by_name.name):
        at = np.searchsorted(by_name.name, kernels.name)
        at = np.minimum(at, len(by_name.name) - 1)
        known = by_name.name[at] == kernels.name
        occupancy = np.where(known, by_name.occupancy[at], np.nan)
        waves = np.where(known, by_name.waves[at], np.nan)
        tail = np.where(known, by_name.tail[at], np.nan)
        limiter = np.where(known, by_name.limiter[at], -1)
    return KernelTraits(
        activity=np.where(talks, np.int8(Activity.COMMUNICATION), judged.activity),
        family=np.where(talks, np.int8(Family.COMMUNICATION), judged.family),
        precision=judged.precision,
        tensor_cores=judged.tensor_cores,
        occupancy=occupancy,
        waves=waves,
        tail=tail,
        limiter=limiter,
    )


_GENERIC = re.compile(
    r"\w*elementwise_kernel\w*|distribution_\w+|reduce_kernel|multi_tensor_apply_kernel"
    r"|_kernel_agent|device_kernel|[Kk]ernel2?"
)
"""Kernels that say nothing without their arguments."""
_CUTLASS = re.compile(r"\b[Kk]ernel2?<(?P<of>\w+)>")
_PART = re.compile(r"(?P<of>[A-Za-z_]\w*)\s*[<(]")
_WRAPPER = re.compile(
    r"gpu_(index_)?kernel(_impl\w*)?|(A|B)?(Unary|Binary|Ternary|Pointwise)(Op\w*)?Functor"
    r"|func_wrapper_t|ReduceOp|\w*Metadata|enable_\w+|operator|lambda|array|Array|void|const"
)
"""Arguments that hold the one that says what is computed."""


def short_kernel_name(name: str, short: str) -> str:
    """``reduce_kernel<sum_functor>`` of a kernel's demangled name and the profiler's short one."""
    if not _GENERIC.fullmatch(short):
        return short
    arguments = name.partition(f"{short}<")[2]
    if wrapped := _CUTLASS.search(name):
        return wrapped["of"]
    found = (part["of"] for part in _PART.finditer(arguments))
    inner = next((part for part in found if not _WRAPPER.fullmatch(part)), None)
    return f"{short}<{inner}>" if inner else short
