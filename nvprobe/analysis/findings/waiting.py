"""Findings about an idle GPU: synchronizing calls, pageable copies, data, allocation.

Idle is charged to causes and paths by :mod:`nvprobe.analysis.waiting.idle`; these rules only say
what the charges mean. Low ends are half of the idle time: under a profiler the host is slower than
alone, so the gaps are longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nvprobe.analysis.findings.calls import pinned_idle
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named, program_paths
from nvprobe.analysis.grouping import sums
from nvprobe.analysis.waiting.host_causes import HOST_LATE, Cause
from nvprobe.attribution.intervals import union_length
from nvprobe.trace import Column, OpKind
from nvprobe.trace.cuda_calls import DEVICE_MEMORY, CallRole, calls_with

PAGEABLE, HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 1, 2
SLOWEST_PINNED_BYTES_NS = 12.0
"""Bytes a nanosecond that pinned memory reaches on any current bus (PCIe 3, 16 lanes)."""
LITTLE = 0.02
_WHOLE_DEVICE = "DeviceSynchronize"
"""A call that torch makes for no value that is read, wherever its line is known."""
MANY = 20
"""Without steps: done as often as this, it is done in a loop."""
_SHOW_LINES = (
    "see which line it is: nvprobe launch marks it, and "
    "torch.cuda.set_sync_debug_mode('warn') prints it"
)
_SHOW_UNMARKED = "no line is marked for it: nvprobe launch --python-backtraces names it"


def synchronization(evidence: Evidence) -> Iterator[Finding]:
    """Calls that made the host wait and so left the GPU without work: one finding a line."""
    syncs, paths = evidence.waits.syncs, evidence.attribution.paths
    if not len(syncs.calls) or not evidence.idle_trusted:
        return
    memory = (*DEVICE_MEMORY, CallRole.HOST_ALLOCATION)
    allocating = calls_with(evidence.trace, memory)[syncs.calls.call]
    rows = np.flatnonzero(~_of_uploads(evidence) & ~allocating)
    sites = syncs.sites
    program = np.append(program_paths(paths), -1)
    # The copy and the wait of one .item() are two calls: a known line or operator joins them.
    keys = [
        (int(sites.source[s]), int(sites.operator[s]) if sites.source[s] < 0 else -1,
         int(program[sites.path[s]]) if sites.source[s] < 0 else -1,
         int(sites.call[s]) if sites.source[s] < 0 and sites.operator[s] < 0 else -1)
        for s in range(len(sites))
    ]  # fmt: skip
    distinct = sorted(set(keys))
    group = np.array([distinct.index(key) for key in keys])[syncs.site[rows]]
    bubble = sums(group, syncs.bubble_ns[rows], len(distinct))
    for one in np.argsort(-bubble, kind="stable").tolist():
        mine = rows[group == one]
        if bubble[one] > 0 and _in_a_loop(evidence, len(mine)):
            yield _synchronization(evidence, mine, int(bubble[one]))


def _in_a_loop(evidence: Evidence, count: int) -> bool:
    """Whether something done ``count`` times is done again and again, not while starting up."""
    return count >= (2 if evidence.repeats else MANY)


def _synchronization(evidence: Evidence, rows: Column, bubble: int) -> Finding:
    """The finding of one line, or of one operator or call in one path."""
    syncs, paths = evidence.waits.syncs, evidence.attribution.paths
    sites = syncs.sites
    site = int(syncs.site[rows[np.argmax(syncs.bubble_ns[rows])]])
    source, operator = _label(evidence, sites.source[site]), _label(evidence, sites.operator[site])
    call = evidence.trace.text(int(sites.call[site])) or "a call"
    path = int(np.append(program_paths(paths), -1)[sites.path[site]])
    downloads = _downloads(evidence, syncs.calls.op[rows])
    reads = operator or ("a copy to the host" if len(downloads) else None)
    whole = _WHOLE_DEVICE in call or (source is None and "Synchronize" in call)
    explicit = not len(downloads) and operator is None and whole
    what = f"{reads or call} in {named(paths, path)}"
    if source:
        what = f"{source} ({operator})" if operator else source
    same = sites.call[syncs.site[rows]] == sites.call[site]
    return Finding(
        id="explicit_sync" if explicit else "implicit_sync",
        title=f"{what} blocks the host and starves the GPU",
        path=path,
        sources=(source,) if source else (),
        evidence={
            "call": call,
            "operator": operator,
            "count": int(same.sum()),
            "wait_ns": int(syncs.calls.wait_ns[rows].sum()),
            "busy_ns": int(syncs.calls.busy_ns[rows].sum()),
            "bubble_ns": bubble,
        },
        saves_ns=(bubble // 2, bubble + _cost_of(evidence, downloads) + _lead(evidence, rows)),
        touches=syncs.calls.call[rows],
        advice=(
            ("remove it from the loop; measure with CUDA events instead",)
            if explicit
            else (
                *(() if source or not evidence.on_nvidia else (_show_line(evidence),)),
                "do not read the value every step: keep it on the device, or read it one step late",
                "replace a data-dependent `if` by torch.where, nonzero by a mask",
            )
        ),
    )


def _lead(evidence: Evidence, rows: Column) -> int:
    """How far the host would be ahead without some waits, where the GPU waits for it later.

    By no more than it waited while the GPU worked.
    """
    if not evidence.repeats:
        return 0
    late = int(evidence.idle(*HOST_LATE).sum())
    return min(int(evidence.waits.syncs.calls.busy_ns[rows].sum()), late)


def _show_line(evidence: Evidence) -> str:
    """How to find the line; where the run was instrumented, that alone does not do it."""
    return _SHOW_UNMARKED if evidence.trace.sidecar.recorded else _SHOW_LINES


def _downloads(evidence: Evidence, op: Column) -> Column:
    """The awaited ops that are copies to the host."""
    ops, op = evidence.ops, np.unique(op[op >= 0])
    return op[(ops.kind[op] == OpKind.MEMCPY) & (ops.copy_kind[op] == DEVICE_TO_HOST)]


def _cost_of(evidence: Evidence, op: Column) -> int:
    """GPU time of some ops and of queueing before them: gone with the value that was read."""
    gaps = evidence.waits.gaps
    before = np.isin(gaps.op, op)
    return int(evidence.attribution.duration[op].sum() + (gaps.end - gaps.queued)[before].sum())


def _label(evidence: Evidence, row: Any) -> str | None:
    return str(evidence.waits.syncs.labels[int(row)].as_py()) if row >= 0 else None


def _pageable_uploads(evidence: Evidence) -> Column:
    """bool per op: an upload from pageable memory whose call lasted for at least half of it.

    The driver copies such memory piece by piece while the host stands in the call; whether that
    returns just before or just after the last piece has arrived is chance.
    """
    ops, calls = evidence.ops, evidence.trace.calls
    out = (ops.kind == OpKind.MEMCPY) & (ops.copy_kind == HOST_TO_DEVICE)
    out &= (ops.source_memory == PAGEABLE) & (evidence.attribution.call >= 0)
    if not out.any():
        return out
    rows = np.flatnonzero(out)
    call = evidence.attribution.call[rows]
    held = 2 * (calls.end[call] - calls.start[call]) >= evidence.attribution.duration[rows]
    out[rows[~held]] = False
    return out


def _of_uploads(evidence: Evidence) -> Column:
    """bool per synchronizing call: it is such an upload, or the wait for one."""
    op = evidence.waits.syncs.calls.op
    return np.append(_pageable_uploads(evidence), False)[op]


def pageable_copies(evidence: Evidence) -> Iterator[Finding]:
    """Uploads from ordinary memory that blocked the host.

    Low end: the same bytes at the rate of the slowest bus, still in the way. High end: copies
    hidden beside compute, and no bubble.
    """
    syncs, paths = evidence.waits.syncs, evidence.attribution.paths
    calls = evidence.trace.calls
    op = np.flatnonzero(_pageable_uploads(evidence))
    call = evidence.attribution.call[op]
    op = op[evidence.in_steady(calls.start[call])]
    if not len(op) or not _in_a_loop(evidence, len(op)):
        return
    rows = np.flatnonzero(np.isin(syncs.calls.op, op))
    call = np.unique(evidence.attribution.call[op])
    copied, size = evidence.attribution.duration[op], evidence.ops.bytes[op]
    mask = np.zeros(len(evidence.ops), bool)
    mask[op] = True
    bubble = int(syncs.bubble_ns[rows].sum()) if evidence.idle_trusted else 0
    alone = evidence.alone_ns(mask, ~mask)
    faster = int(np.maximum(copied - size / SLOWEST_PINNED_BYTES_NS, 0).sum())
    by_path = np.zeros(len(paths.parent) + 1, np.int64)
    np.add.at(by_path, evidence.attribution.owner[op], copied)
    path = common_path(paths, by_path)
    labels = {_label(evidence, row) for row in syncs.sites.source[np.unique(syncs.site[rows])]}
    sources = tuple(sorted(label for label in labels if label))
    where = f"at {sources[0]}" if len(sources) == 1 else f"in {named(paths, path)}"
    yield Finding(
        id="pageable_copy",
        title=f"Copies from pageable memory {where} hold the host",
        path=path,
        sources=sources,
        evidence={
            "copies": len(op),
            "bytes": int(size.sum()),
            "copy_ns": int(copied.sum()),
            "wait_ns": int((calls.end[call] - calls.start[call]).sum()),
            "bubble_ns": bubble,
            "gigabytes_per_s": round(float(size.sum()) / max(int(copied.sum()), 1), 2),
        },
        saves_ns=(min(faster, alone), alone + bubble),
        touches=op,
        advice=(
            "pin the memory (DataLoader(pin_memory=True) or tensor.pin_memory()) and copy with "
            "non_blocking=True",
            "copy the next batch on a side stream while this one is computed"
            if evidence.on_compute_streams(op)
            else "they have a stream of their own already: pinned, they can run beside compute",
        ),
    )


def input_wait(evidence: Evidence) -> Iterator[Finding]:
    """The GPU is idle while the launching thread waits for data.

    High end: host and launch idle too, as a host that need not wait runs ahead of the GPU, but by
    no more than it waited. Where it waits for longer than it works, host and launch idle are no
    finding of their own.
    """
    if not evidence.idle_trusted or not evidence.repeats:
        return
    idle, paths = evidence.idle(Cause.INPUT), evidence.attribution.paths
    total = int(idle.sum())
    if total < LITTLE * evidence.window_ns:
        return
    path = common_path(paths, idle)
    host = evidence.idle(*HOST_LATE)
    waited = _host_waits_for_data(evidence)
    yield Finding(
        id="input_wait",
        idle=host if total >= int(host.sum()) else None,
        title=f"The GPU waits for data in {named(paths, path)}",
        path=path,
        sources=(),
        evidence={
            "idle_ns": total,
            "share_of_window": _share(total, evidence),
            "host_ns": waited,
        },
        saves_ns=(total // 2, min(total + int(host.sum()), max(total, waited))),
        advice=(
            "DataLoader(num_workers=…, persistent_workers=True, prefetch_factor=…): prepare "
            "batches in worker processes",
            "pin_memory=True with non_blocking copies; decode or augment on the GPU",
        ),
    )


def _host_waits_for_data(evidence: Evidence) -> int:
    """Time that launching threads spend in ranges that wait for data, in the steady steps."""
    thread, start, end = evidence.waits.inputs
    rows = evidence.in_steady(start) & np.isin(thread, evidence.waits.gaps.thread)
    threads = len(evidence.trace.threads)
    return int(union_length(thread[rows], start[rows], end[rows], threads).sum())


def allocation(evidence: Evidence) -> Iterator[Finding]:
    """The driver allocates or frees in every step, where a caching allocator should not.

    High end: also the synchronization of frees, and the calls' own time.
    """
    calls = evidence.trace.calls
    if not evidence.idle_trusted or not evidence.repeats:
        return
    rows = np.flatnonzero(calls_with(evidence.trace, DEVICE_MEMORY))
    rows = rows[evidence.in_steady(calls.start[rows])]
    if len(rows) < len(evidence.steady):
        return
    syncs, paths = evidence.waits.syncs, evidence.attribution.paths
    waiting = np.isin(syncs.calls.call, rows)
    bubble = int(syncs.bubble_ns[waiting].sum())
    idle = np.maximum(evidence.idle(Cause.ALLOCATION) - pinned_idle(evidence), 0)
    total = int(idle.sum()) + bubble
    path_of = evidence.attribution.open.at(calls.thread[rows], calls.start[rows])
    spent = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(spent, path_of, calls.end[rows] - calls.start[rows])
    path = common_path(paths, spent)
    freed = int(calls_with(evidence.trace, [CallRole.DEVICE_FREE])[rows].sum())
    yield Finding(
        id="allocator",
        title="Memory is taken from the driver in every step (cudaMalloc, cudaFree) in "
        f"{named(paths, path)}",
        path=path,
        sources=(),
        functions=("torch.cuda.empty_cache",) if freed else (),
        calls=rows,
        touches=rows,
        evidence={
            "allocating_calls": len(rows) - freed,
            "freeing_calls": freed,
            "calls_ns": int((calls.end[rows] - calls.start[rows]).sum()),
            "idle_ns": int(idle.sum()),
            "bubble_ns": bubble,
        },
        saves_ns=(total // 2, max(total, int((calls.end[rows] - calls.start[rows]).sum()))),
        advice=(
            "do not call torch.cuda.empty_cache() in the loop",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where memory is fragmented "
            "(newer torch: PYTORCH_ALLOC_CONF)",
            "reuse buffers of fixed size; fewer different shapes",
        ),
    )


def _share(ns: int, evidence: Evidence) -> float:
    return round(ns / evidence.window_ns, 4) if evidence.window_ns else 0.0
