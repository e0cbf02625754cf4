"""Waiting in the document: syncs, idle time and host time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Method
from nvprobe.report.schema import path_texts, rows
from nvprobe.trace import Column
from nvprobe.trace.rows import Row, is_, ns

R = TypeVar("R", bound=Row)
_MOST_PAIRS = 32
"""Pairs of streams that never met are listed for devices with up to so many streams."""
_CAUSE = "`sync`, `input`, `host`, `launch_call`, … (docs/waiting.md)"


class Sync(Row, frozen=True):
    """Synchronizing calls of one call site, the costliest first."""

    call: Annotated[str | None, is_("CUDA function")]
    path: Annotated[str | None, is_("path in which it is called")]
    source: Annotated[str | None, is_("line that calls it")]
    place: Annotated[str | None, is_("where no `source` is known, a line around it")]
    place_role: Annotated[str | None, is_('what `place` is (docs/findings.md, "Which line")')]
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
    role: Annotated[str | None, is_('what the line is (docs/findings.md, "Which line")')]
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
    places = waits.sync_places()
    return rows(
        Sync,
        sites,
        call=trace.texts(sites.call),
        path=path_texts(analysis, sites.path),
        source=_labels(labels, sites.source),
        place=[place and place.source for place in places],
        place_role=[place and place.role for place in places],
        operator=_labels(labels, sites.operator),
        device=device_ids(analysis, sites.device),
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
        by_line=[
            IdleByLine(source, role, one.samples, one.cause.label, one.ns)
            for one in waits.idle_by_line()
            for source, role in [one.line or (None, None)]
        ],
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


def _labels(labels: list[str], rows: Column) -> list[str | None]:
    return [labels[row] if row >= 0 else None for row in rows.tolist()]


def device_ids(analysis: Analysis, rows: Column) -> list[int | None]:
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
    return _by_cause(IdleByDevice, cause, length, device=device_ids(analysis, device))


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
    return _by_cause(IdleByStream, cause, length, **stream_names(analysis, waits, stream))


def stream_names(analysis: Analysis, waits: Waits, found: Column) -> dict[str, Sequence[Any]]:
    """Device, process and stream of rows of ``waits.streams``."""
    streams = waits.streams
    return {
        "device": device_ids(analysis, streams.device[found]),
        "process": streams.process[found].tolist(),
        "stream": streams.stream[found].tolist(),
    }
