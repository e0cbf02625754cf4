"""Waiting in the document: syncs, idle time, overlap, collectives and host time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np

from nvprobe.analysis.overlap.combinations import Combinations, combination_name
from nvprobe.analysis.overlap.communication import collective_names
from nvprobe.analysis.overlap.concurrency import Pairs
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.charges import by
from nvprobe.analysis.waiting.hostwork import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Method
from nvprobe.report.schema import Row, is_, ns, pair, path_texts, rows, size
from nvprobe.trace import NO_NAME, NO_PAYLOAD, Column

__all__ = [
    "Collective", "Host", "Idle", "IdleByDevice", "IdleByLine", "IdleByPath", "IdleByStep",
    "IdleByStream", "NeverTogether", "Overlap", "PathPair", "StreamPair", "StreamTotals", "Sync",
    "collectives", "host", "idle", "overlap", "syncs",
]  # fmt: skip

R = TypeVar("R", bound=Row)
_MOST_PAIRS = 32
"""Pairs of streams that never met are listed for devices with up to so many streams."""
_CAUSE = "`sync`, `input`, `host`, `launch_call`, … (docs/waiting.md)"
_CLASSES = "time per combination of classes, as in `compute+communication`"


class Sync(Row, frozen=True):
    """Synchronizing calls of one call site, the costliest first."""

    call: Annotated[str | None, is_("CUDA function")]
    path: Annotated[str | None, is_("path in which it is called")]
    source: Annotated[str | None, is_("line that calls it")]
    operator: Annotated[str | None, is_("PyTorch operator around it")]
    count: Annotated[int, is_("calls")]
    wait_ns: Annotated[int, ns("time that the host spends inside")]
    busy_ns: Annotated[int, ns("of this, time in which the GPU runs something")]
    bubble_ns: Annotated[int, ns("GPU idle time that the calls cause")]
    device: Annotated[int | None, is_("physical number of the GPU")]
    stream: Annotated[int | None, is_("awaited stream, where one is known")]
    awaited_op: Annotated[str | None, is_("op that ends most of the waits")]


class IdleByPath(Row, frozen=True):
    """Idle time by path and cause."""

    path: Annotated[str | None, is_("path it is charged to")]
    cause: Annotated[str, is_(_CAUSE)]
    ns: Annotated[int, ns("GPU idle time")]


class IdleByDevice(Row, frozen=True):
    """Idle time by GPU and cause."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    cause: Annotated[str, is_(_CAUSE)]
    ns: Annotated[int, ns("GPU idle time")]


class IdleByStep(Row, frozen=True):
    """Idle time by step and cause; null outside all steps."""

    index: Annotated[int | None, is_("number of the step")]
    process: Annotated[int | None, is_("id of its process")]
    cause: Annotated[str, is_(_CAUSE)]
    ns: Annotated[int, ns("GPU idle time")]


class IdleByStream(Row, frozen=True):
    """Idle time by the stream whose op ended the gap, and cause."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    process: Annotated[int, is_("id of the process")]
    stream: Annotated[int, is_("CUDA stream")]
    cause: Annotated[str, is_(_CAUSE)]
    ns: Annotated[int, ns("GPU idle time")]


class IdleByLine(Row, frozen=True):
    """Idle time by line of the program and cause."""

    line: Annotated[str | None, is_("`file:line`")]
    samples: Annotated[int | None, is_("Python samples it is estimated from; null if exact")]
    cause: Annotated[str, is_(_CAUSE)]
    ns: Annotated[int, ns("GPU idle time")]


class Idle(Row, frozen=True):
    """Why the GPU waits (docs/waiting.md); each breakdown adds up to `total_ns`."""

    total_ns: Annotated[int | None, ns("sum of `devices[].idle_ns`; null without GPU ops")]
    gaps: Annotated[int | None, is_("intervals of idle time")]
    causes: Annotated[dict[str, int] | None, ns("idle time per cause")]
    unknown: Annotated[dict[str, int] | None, ns("of `unknown`: idle time per reason")]
    by_path: Annotated[list[IdleByPath] | None, is_("per path")]
    by_device: Annotated[list[IdleByDevice] | None, is_("per GPU")]
    by_step: Annotated[list[IdleByStep] | None, is_("per step")]
    by_stream: Annotated[list[IdleByStream] | None, is_("per stream")]
    by_line: Annotated[list[IdleByLine] | None, is_("per line of the program")]
    lost_launches: Annotated[int | None, is_("launch calls in steps without a GPU record")]


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
    messages: Annotated[int | None, is_("messages of NCCL (docs/inputs.md#payloads)")]
    bytes: Annotated[int | None, size("what they carry")]
    known_ops: Annotated[int | None, is_("kernels whose messages are known")]
    communicators: Annotated[list[str] | None, is_("communicators of the messages")]
    reductions: Annotated[list[str | None] | None, is_("their reductions: `sum`, `max`, …")]
    peers: Annotated[list[int] | None, is_("ranks of point-to-point messages")]


class Host(Row, frozen=True):
    """Host time between launches, by path, operator and line."""

    path: Annotated[str | None, is_("path")]
    operator: Annotated[str | None, is_("PyTorch operator")]
    line: Annotated[str | None, is_("line of the program")]
    launches: Annotated[int, is_("launches that follow it")]
    host_ns: Annotated[int, ns("host time before these launches")]
    idle_ns: Annotated[int, ns("of this, with an idle GPU")]
    samples: Annotated[int | None, is_("Python samples that gave the line; null if exact")]


def syncs(analysis: Analysis) -> list[Sync] | None:
    """Synchronizing calls by call site; null without calls."""
    waits, trace = analysis.waits, analysis.attribution.trace
    if waits is None or not trace.calls.recorded:
        return None
    sites, labels = waits.syncs.sites, waits.syncs.labels.to_pylist()
    return rows(
        Sync,
        sites,
        call=trace.texts(sites.call),
        path=path_texts(analysis, sites.path),
        source=_labels(labels, sites.source),
        operator=_labels(labels, sites.operator),
        device=_devices(analysis, sites.device),
        stream=[stream if stream >= 0 else None for stream in sites.stream.tolist()],
        awaited_op=trace.texts(sites.op),
    )


def idle(analysis: Analysis) -> Idle:
    """Idle time by cause, and by cause within paths, devices, steps, streams and lines."""
    waits, devices, steps = analysis.waits, analysis.devices, analysis.steps
    total = int(devices.idle_ns.sum()) if len(devices) else None
    if waits is None or total is None:
        return Idle(total, *[None] * 9)
    causes = dict.fromkeys((cause.label for cause in Cause), 0)
    for cause, length in zip(*by(waits.idle, "cause"), strict=True):
        causes[Cause(cause).label] = int(length)
    path, cause, length = by(waits.idle, "path", "cause")
    return Idle(
        total_ns=total,
        gaps=len(waits.gaps),
        causes=causes,
        unknown=_unknown(analysis, waits),
        by_path=_by_cause(IdleByPath, cause, length, path=path_texts(analysis, path)),
        by_device=_by_device(analysis, waits),
        by_step=_by_step(analysis, waits),
        by_stream=_by_stream(analysis, waits),
        by_line=[IdleByLine(r.line, r.samples, r.cause.label, r.ns) for r in waits.idle_by_line()],
        lost_launches=int(steps.missing_launches.sum()) if len(steps) else 0,
    )


def host(analysis: Analysis) -> list[Host] | None:
    """Host time between launches; null without calls."""
    waits = analysis.waits
    if waits is None or not analysis.attribution.trace.calls.recorded:
        return None
    table = waits.host
    return rows(
        Host,
        table,
        path=path_texts(analysis, table.path),
        operator=waits.operators.of(table.path),
        line=_labels(waits.line_labels, table.line),
    )


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
    device, path = _devices(analysis, over.devices.group - 1), over.paths.group
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
            **_stream_names(analysis, waits, np.arange(len(over.streams))),
        ),
        pairs=_stream_pairs(analysis, waits, over.stream_pairs),
        path_pairs=rows(
            PathPair,
            pairs,
            device=_devices(analysis, pairs.device - 1),
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


def _messages(analysis: Analysis, waits: Waits) -> dict[str, Sequence[Any]]:
    """What NCCL says of its messages; null where the capture has none of its payloads."""
    trace, table, carried = analysis.attribution.trace, waits.collectives, waits.messages
    if carried is None:
        names = "messages bytes known_ops communicators reductions peers"
        return {name: [None] * len(table) for name in names.split()}
    row, found = carried.row, carried.messages
    known = found.communicator != NO_PAYLOAD
    number = found.communicator.astype(np.uint64)
    return {
        "messages": table.messages.tolist(),
        "bytes": [size if size >= 0 else None for size in table.bytes.tolist()],
        "known_ops": table.told.tolist(),
        "communicators": [
            [f"0x{c:016x}" for c in group] for group in _each(row[known], number[known], len(table))
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


def _labels(labels: list[str], rows: Column) -> list[str | None]:
    return [labels[row] if row >= 0 else None for row in rows.tolist()]


def _devices(analysis: Analysis, rows: Column) -> list[int | None]:
    """Ids of device rows, null where the source names none."""
    ids = analysis.attribution.trace.devices.id
    return [int(ids[row]) if 0 <= row < len(ids) else None for row in rows.tolist()]


def _by_cause(kind: type[R], cause: Column, length: Column, **columns: Sequence[Any]) -> list[R]:
    labels = [Cause(value).label for value in cause.tolist()]
    return rows(kind, cause=labels, ns=length.tolist(), **columns)


def _unknown(analysis: Analysis, waits: Waits) -> dict[str, int]:
    """Why no call is known for the ops that ended gaps, with the time of those gaps."""
    method = analysis.attribution.method[waits.gaps.op]
    lost = waits.gaps.thread < 0
    return {
        Method(value).name.lower(): int(waits.gaps.length[lost & (method == value)].sum())
        for value in np.unique(method[lost]).tolist()
    }


def _by_device(analysis: Analysis, waits: Waits) -> list[IdleByDevice]:
    device, cause, length = by(waits.idle, "device", "cause")
    return _by_cause(IdleByDevice, cause, length, device=_devices(analysis, device))


def _by_step(analysis: Analysis, waits: Waits) -> list[IdleByStep]:
    """Rows by step; index and process are null for the time outside all steps."""
    step, cause, length = by(waits.idle, "step", "cause")
    steps = analysis.steps
    index = [int(steps.index[row]) if row >= 0 else None for row in step.tolist()]
    process = [int(steps.process[row]) if row >= 0 else None for row in step.tolist()]
    return _by_cause(IdleByStep, cause, length, index=index, process=process)


def _by_stream(analysis: Analysis, waits: Waits) -> list[IdleByStream]:
    """Rows by the stream whose op ended the gap."""
    stream, cause, length = by(waits.idle, "stream", "cause")
    return _by_cause(IdleByStream, cause, length, **_stream_names(analysis, waits, stream))


def _stream_names(analysis: Analysis, waits: Waits, found: Column) -> dict[str, Sequence[Any]]:
    streams = waits.streams
    return {
        "device": _devices(analysis, streams.device[found]),
        "process": streams.process[found].tolist(),
        "stream": streams.stream[found].tolist(),
    }


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
        device=_devices(analysis, pairs.device - 1),
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
        device=_devices(analysis, streams.device[one]),
        processes=_two(streams.process, one, other),
        streams=_two(streams.stream, one, other),
    )


def _two(column: Column, first: Column, second: Column) -> list[tuple[int, int]]:
    return list(zip(column[first].tolist(), column[second].tolist(), strict=True))
