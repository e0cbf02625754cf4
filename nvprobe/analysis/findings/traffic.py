"""Findings about copies and communication that nothing hides, and about graph replays.

*Alone* is time in which only these ops run on the device. It can be hidden beside compute as far
as there is compute: low ends are half of that for copies, which a program can start earlier, and
nothing for communication, whose result the next kernel may need.

A collective also waits for its last rank, and waiting for a peer is nobody's saving. Where the
peers are in the capture it shows how long. One rank alone does not; but what a message takes longer
than the fastest one of its kind and size is not transfer, and is left out of what can be gained.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sampled import kernels_named
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.attribution.intervals import union_length
from nvprobe.trace import Column, OpKind

HOST_TO_DEVICE, PAGEABLE = 1, 1
SHORT_NODE_NS = 10_000
GAPPY = 0.1
"""Gaps that take less of the replays than this are what the hardware needs between nodes."""
_REDUCTIONS = r"(?i)all_?reduce|reduce_?scatter"
_OTHER_RANKS = (
    "look at the other ranks too (nvprobe ranks): a collective waits for the slowest of them, and "
    "then no network is at fault and nothing here saves it",
)
_STREAM_WAITS = tuple(
    f"torch.cuda.{name}" for name in ("Stream.wait_stream", "Stream.wait_event", "Event.wait")
)


SHORTEST_NS = 50_000
"""Shorter uploads are figures for a library's own kernels, such as those of a sharded model."""


def exposed_copies(evidence: Evidence) -> Iterator[Finding]:
    """Uploads from pinned memory with nothing beside them."""
    ops = evidence.ops
    copies = (
        (ops.kind == OpKind.MEMCPY) & (ops.copy_kind == HOST_TO_DEVICE)
        & (ops.source_memory != PAGEABLE) & evidence.trusted
        & (evidence.attribution.duration >= SHORTEST_NS)
    )  # fmt: skip
    alone = evidence.alone_ns(copies, ~copies)
    if not alone:
        return
    rows = np.flatnonzero(copies)
    compute = evidence.classes.activity == Activity.COMPUTE
    on_compute = evidence.on_compute_streams(rows)
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    place = named(evidence.attribution.paths, path)
    hideable = min(alone, evidence.alone_ns(compute, copies))
    yield Finding(
        id="exposed_copy",
        ops=rows,
        functions=() if on_compute else _STREAM_WAITS,
        title=f"Copies to the GPU in {place} run alone: "
        + ("they share the stream of the compute" if on_compute else "the compute waits for them"),
        path=path,
        sources=(),
        evidence={
            "copies": len(rows),
            "bytes": int(ops.bytes[rows].sum()),
            "copy_ns": int(evidence.attribution.duration[rows].sum()),
            "alone_ns": alone,
            "own_stream": 0 if on_compute else 1,
        },
        saves_ns=(hideable // 2, alone),
        advice=(
            "copy on a stream of its own, a step ahead"
            if on_compute
            else "start the copy of the next batch before this batch is computed, and wait for it "
            "only where its data are first used",
            "copy less: smaller types, decode or augment on the GPU",
        ),
    )


def exposed_communication(evidence: Evidence) -> Iterator[Finding]:
    """Collectives with no compute beside them."""
    communication = evidence.classes.activity == Activity.COMMUNICATION
    compute = evidence.classes.activity == Activity.COMPUTE
    exposed = evidence.alone_ns(communication, compute)
    if not exposed:
        return
    rows = np.flatnonzero(communication & evidence.trusted)
    total = int(evidence.attribution.duration[rows].sum())
    stream = evidence.waits.streams.of_op
    shared = bool(np.isin(stream[rows], np.unique(stream[compute])).any())
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    transfer = min(exposed, _exposed_transfer(evidence, rows))
    yield Finding(
        id="exposed_communication",
        ops=rows,
        title=f"{exposed / max(total, 1):.0%} of communication in "
        f"{named(evidence.attribution.paths, path)} has no compute beside it",
        path=path,
        sources=(),
        evidence={
            "exposed_ns": exposed,
            "communication_ns": total,
            "reduction_ns": int(
                evidence.attribution.duration[
                    rows[kernels_named(evidence, rows, _REDUCTIONS)]
                ].sum()
            ),
            "operations": len(rows),
            "on_a_compute_stream": int(shared),
            "beyond_the_fastest_ns": exposed - transfer,
        },
        saves_ns=(0, transfer),
        advice=(
            "start collectives asynchronously (async_op=True) on their own stream and wait where "
            "the result is used"
            if shared
            else "they have a stream of their own already: start them earlier, or wait for the "
            "result later, with other compute between",
            *(_OTHER_RANKS if evidence.waits.met is None else ()),
            "larger or smaller buckets; functional collectives under torch.compile",
        ),
    )


def transfer_share(evidence: Evidence) -> Column:
    """float64 per op: how much of it is transfer at most, 1 where nothing shows that.

    Where all ranks are in the capture they show it; else messages of one size and kind do.
    """
    share = np.ones(len(evidence.ops))
    carried, met = evidence.waits.messages, evidence.waits.met
    if met is not None:
        duration = np.maximum(evidence.attribution.duration[met.op], 1)
        share[met.op] = met.arrivals.transfer_ns / duration
    if carried is None or not len(carried.messages):
        return share
    rows, place = distinct(carried.messages.op)
    size = sums(place, carried.messages.bytes, len(rows))
    _, code = distinct(evidence.ops.name[rows].astype(np.int64))
    _, code = distinct(code.astype(np.int64) << 48 | np.minimum(size, (1 << 48) - 1))
    duration = np.maximum(evidence.attribution.duration[rows], 1)
    fastest = np.full(int(code.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(fastest, code, duration)
    share[rows] = np.minimum(share[rows], fastest[code] / duration)
    return share


def _exposed_transfer(evidence: Evidence, rows: Column) -> int:
    """What of the exposed time of some ops is transfer at most."""
    ops, share = evidence.ops, transfer_share(evidence)[rows]
    lone = evidence.waits.exposed.between(ops.device[rows] + 1, ops.start[rows], ops.end[rows])
    fastest = np.rint(share * evidence.attribution.duration[rows]).astype(np.int64)
    return int(np.minimum(lone, fastest).sum())


def graph_gaps(evidence: Evidence) -> Iterator[Finding]:
    """Replays of CUDA graphs in which the GPU idles between small nodes."""
    ops = evidence.ops
    rows = np.flatnonzero((ops.graph_node != 0) & evidence.trusted)
    if not len(rows):
        return
    key = ops.correlation[rows] * (len(evidence.trace.processes) + 1) + ops.process[rows]
    key = key * (len(evidence.trace.devices) + 1) + ops.device[rows]
    keys, replay = distinct(key)
    start, end, size = ops.start[rows], ops.end[rows], len(keys)
    first, last = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(first, replay, start)
    np.maximum.at(last, replay, end)
    busy = union_length(replay, start, end, size)
    idle = int((last - first - busy).sum())
    mean = int(evidence.attribution.duration[rows].mean())
    if mean > SHORT_NODE_NS or idle < GAPPY * (idle + int(busy.sum())):
        return
    path = common_path(evidence.attribution.paths, _by_path(evidence, rows))
    yield Finding(
        id="graph_gaps",
        ops=rows,
        title=f"Replays of CUDA graphs in {named(evidence.attribution.paths, path)} idle between "
        f"nodes of {mean / 1000:.1f} µs",
        path=path,
        sources=(),
        evidence={
            "replays": size,
            "nodes": len(rows),
            "mean_node_ns": mean,
            "idle_inside_ns": idle,
            "busy_inside_ns": int(busy.sum()),
        },
        saves_ns=(0, idle),
        advice=(
            "fewer and larger nodes: torch.compile before capture fuses them",
            "larger batches in a graph, pooled by batch size",
        ),
    )


def _by_path(evidence: Evidence, rows: Column) -> Column:
    return sums(
        np.where(evidence.attribution.owner[rows] >= 0, evidence.attribution.owner[rows],
                 len(evidence.attribution.paths.parent)),
        evidence.attribution.duration[rows], len(evidence.attribution.paths.parent) + 1,
    )  # fmt: skip
