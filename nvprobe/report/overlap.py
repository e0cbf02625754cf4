"""What runs at the same time: classes, streams and paths that overlap, and communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from nvprobe.analysis.overlap.combinations import Combinations, Pairs, combination_name
from nvprobe.analysis.overlap.communication import collective_names
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.report.schema import path_texts, rows
from nvprobe.report.waits import device_ids, stream_names
from nvprobe.trace import NO_NAME, NO_PAYLOAD, Column
from nvprobe.trace.rows import Row, is_, ns, pair, size

_MOST_PAIRS = 32
"""Pairs of streams that never met are listed for devices with up to so many streams."""
_CLASSES = "time per combination of classes, as in `compute+communication`"


class DeviceOverlap(Row, frozen=True):
    """Overlap on a GPU."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    classes: Annotated[dict[str, int], ns(_CLASSES)]


class StepOverlap(Row, frozen=True):
    """Overlap in a step."""

    index: Annotated[int, is_("number of the step")]
    classes: Annotated[dict[str, int], ns(_CLASSES)]


class PathOverlap(Row, frozen=True):
    """Overlap of the ops of a path."""

    path: Annotated[str | None, is_("the path")]
    classes: Annotated[dict[str, int], ns(_CLASSES)]


class StreamTotals(Row, frozen=True):
    """A stream of a GPU."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    process: Annotated[int, is_("id of the process")]
    stream: Annotated[int, is_("CUDA stream")]
    ops: Annotated[int, is_("GPU ops")]
    busy_ns: Annotated[int, ns("time in which it runs at least one")]
    alone_ns: Annotated[int, ns("of this, time in which no other stream of the GPU does")]


_PROCESSES = pair("first_process", "second_process", "ids of their processes")
_STREAMS = pair("first_stream", "second_stream", "the two streams")


class StreamPair(Row, frozen=True):
    """Two streams of a GPU that ran at once."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    processes: Annotated[tuple[int, int], _PROCESSES]
    streams: Annotated[tuple[int, int], _STREAMS]
    ns: Annotated[int, ns("time in which both ran")]


class PathPair(Row, frozen=True):
    """Two paths whose ops ran at once."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    first: Annotated[str | None, is_("one path")]
    second: Annotated[str | None, is_("the other")]
    ns: Annotated[int, ns("time in which both ran")]


class NeverTogether(Row, frozen=True):
    """Two streams of a GPU that both ran, and never at once."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    processes: Annotated[tuple[int, int], _PROCESSES]
    streams: Annotated[tuple[int, int], _STREAMS]


class Overlap(Row, frozen=True):
    """What ran at the same time."""

    classes: Annotated[dict[str, int], ns(_CLASSES)]
    by_device: Annotated[list[DeviceOverlap], is_("per GPU")]
    by_step: Annotated[list[StepOverlap], is_("per step")]
    by_path: Annotated[list[PathOverlap], is_("per path")]
    streams: Annotated[list[StreamTotals], is_("per stream")]
    pairs: Annotated[list[StreamPair], is_("streams that ran at once")]
    path_pairs: Annotated[list[PathPair], is_("paths that ran at once")]
    never_together: Annotated[list[NeverTogether], is_("streams that never did")]
    exposed_comm_ns: Annotated[int, ns("communication without compute beside it")]


class Collective(Row, frozen=True):
    """Communication by kernel and path, the most exposed first."""

    name: Annotated[str | None, is_("kernel")]
    collective: Annotated[str | None, is_("operation: `all_reduce`, `send_recv`, …")]
    path: Annotated[str | None, is_("path it belongs to")]
    count: Annotated[int, is_("kernels")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    exposed_ns: Annotated[int, ns("of this, without compute beside it")]
    longest_ns: Annotated[int, ns("the longest")]
    messages: Annotated[int | None, is_("messages of NCCL or torch (docs/inputs.md#payloads)")]
    bytes: Annotated[int | None, size("what they carry")]
    known_ops: Annotated[int | None, is_("kernels whose messages are known")]
    told_ops: Annotated[int | None, is_("the same as `known_ops`, by its name of before `/2`")]
    communicators: Annotated[list[str] | None, is_("communicators or process groups of these")]
    reductions: Annotated[list[str | None] | None, is_("their reductions: `sum`, `max`, …")]
    peers: Annotated[list[int] | None, is_("ranks of point-to-point messages")]


class ProcessCollective(Row, frozen=True):
    """Collectives of several processes of the capture: by process, GPU and path."""

    process: Annotated[int, is_("id of the process")]
    device: Annotated[int | None, is_("physical number of the GPU")]
    collective: Annotated[str | None, is_("operation: `all_reduce`, …")]
    path: Annotated[str | None, is_("path it belongs to")]
    count: Annotated[int, is_("collectives in which it meets other processes")]
    gpu_ns: Annotated[int, ns("sum of their durations here")]
    wait_ns: Annotated[int, ns("of this, until the last process arrived")]
    transfer_ns: Annotated[int, ns("the rest")]
    last: Annotated[int, is_("collectives at which this process arrives last")]
    awaited_ns: Annotated[int, ns("what the others wait in these, summed")]


def overlap(analysis: Analysis) -> Overlap | None:
    """Time by the classes that ran together; null without GPU records."""
    waits = analysis.waits
    if waits is None or not len(analysis.devices):
        return None
    over, steps = waits.overlap, analysis.steps
    total: dict[str, int] = {}
    for mask, length in zip(over.devices.mask.tolist(), over.devices.ns.tolist(), strict=True):
        name = combination_name(mask)
        total[name] = total.get(name, 0) + length
    device, path = device_ids(analysis, over.devices.group - 1), over.paths.group
    index = steps.index[over.steps.group].tolist()
    pairs = over.path_pairs
    return Overlap(
        classes=total,
        by_device=[DeviceOverlap(*one) for one in _combinations(over.devices, device)],
        by_step=[StepOverlap(*one) for one in _combinations(over.steps, index)],
        by_path=[
            PathOverlap(*one) for one in _combinations(over.paths, path_texts(analysis, path))
        ],
        streams=rows(
            StreamTotals,
            over.streams,
            **stream_names(analysis, waits, np.arange(len(over.streams))),
        ),
        pairs=_stream_pairs(analysis, waits, over.stream_pairs),
        path_pairs=rows(
            PathPair,
            pairs,
            device=device_ids(analysis, pairs.device - 1),
            first=path_texts(analysis, pairs.first),
            second=path_texts(analysis, pairs.second),
        ),
        never_together=_never_together(analysis, waits),
        exposed_comm_ns=waits.exposed_comm_ns,
    )


def collectives(analysis: Analysis) -> list[Collective] | None:
    """Communication by kernel and path; null without GPU records."""
    waits, trace = analysis.waits, analysis.attribution.trace
    if waits is None or not len(analysis.devices):
        return None
    table = waits.collectives
    return rows(
        Collective,
        table,
        name=trace.texts(table.name),
        collective=collective_names(trace, table.name),
        path=path_texts(analysis, table.path),
        **_messages(analysis, waits),
    )


def collectives_by_process(analysis: Analysis) -> list[ProcessCollective] | None:
    """Who waits for whom; null where no two processes of the capture meet in a collective."""
    waits, attribution = analysis.waits, analysis.attribution
    if waits is None or waits.met is None:
        return None
    table, trace = waits.met.by_process(attribution), attribution.trace
    return rows(
        ProcessCollective,
        table,
        process=trace.processes.pid[table.process].tolist(),
        device=device_ids(analysis, table.device),
        collective=collective_names(trace, table.name),
        path=path_texts(analysis, table.path),
    )


def _messages(analysis: Analysis, waits: Waits) -> dict[str, Sequence[Any]]:
    """What NCCL or torch says of messages; null where the capture has neither."""
    trace, table, carried = analysis.attribution.trace, waits.collectives, waits.messages
    if carried is None:
        names = "messages bytes known_ops told_ops communicators reductions peers"
        return {name: [None] * len(table) for name in names.split()}
    row, found = carried.row, carried.messages
    known = found.communicator != NO_PAYLOAD
    number = found.communicator.astype(np.uint64)
    return {
        "messages": table.messages.tolist(),
        "bytes": [size if size >= 0 else None for size in table.bytes.tolist()],
        "known_ops": table.known.tolist(),
        "told_ops": table.known.tolist(),
        "communicators": [
            [f"0x{c:016x}" for c in communicators] + trace.texts(np.array(groups, np.int64))
            for communicators, groups in zip(
                _each(row[known], number[known], len(table)),
                _each(row, found.group, len(table), NO_NAME),
                strict=True,
            )
        ],
        "reductions": [
            trace.texts(np.array(group, np.int64))
            for group in _each(row, found.reduction, len(table), NO_NAME)
        ],
        "peers": _each(row, found.peer, len(table), -1),
    }


def _each(row: Column, values: Column, size: int, absent: int | None = None) -> list[list[int]]:
    """The distinct values of each row but the absent one, in order."""
    kept = np.ones(len(row), bool) if absent is None else values != absent
    out: list[list[int]] = [[] for _ in range(size)]
    pairs = np.unique(np.rec.fromarrays([row[kept], values[kept]]))
    for place, value in pairs.tolist():
        out[place].append(value)
    return out


def _combinations(table: Combinations, labels: list[Any]) -> list[tuple[Any, dict[str, int]]]:
    """Each group's label with its time per combination of classes."""
    out: dict[int, tuple[Any, dict[str, int]]] = {}
    columns = (table.group.tolist(), labels, table.mask.tolist(), table.ns.tolist())
    for group, label, mask, length in zip(*columns, strict=True):
        out.setdefault(group, (label, {}))[1][combination_name(mask)] = length
    return list(out.values())


def _stream_pairs(analysis: Analysis, waits: Waits, pairs: Pairs) -> list[StreamPair]:
    streams = waits.streams
    return rows(
        StreamPair,
        pairs,
        device=device_ids(analysis, pairs.device - 1),
        processes=_two(streams.process, pairs.first, pairs.second),
        streams=_two(streams.stream, pairs.first, pairs.second),
    )


def _never_together(analysis: Analysis, waits: Waits) -> list[NeverTogether]:
    """Pairs of streams of one device that both ran, and never at once."""
    streams, met = waits.streams, waits.overlap.stream_pairs
    shared = set(zip(met.first.tolist(), met.second.tolist(), strict=True))
    first, second = [], []
    for device in np.unique(streams.device).tolist():
        found = np.flatnonzero(streams.device == device).tolist()
        if len(found) <= _MOST_PAIRS:
            pairs = [(a, b) for a in found for b in found if a < b and (a, b) not in shared]
            first += [a for a, _ in pairs]
            second += [b for _, b in pairs]
    one, other = np.array(first, np.int64), np.array(second, np.int64)
    return rows(
        NeverTogether,
        device=device_ids(analysis, streams.device[one]),
        processes=_two(streams.process, one, other),
        streams=_two(streams.stream, one, other),
    )


def _two(column: Column, first: Column, second: Column) -> list[tuple[int, int]]:
    return list(zip(column[first].tolist(), column[second].tolist(), strict=True))
