"""Waiting in the JSON document: ``syncs``, ``idle``, ``overlap``, ``collectives``, ``host``."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.analysis.overlap.combinations import Combinations, combination_name
from nvprobe.analysis.overlap.communication import collective_names
from nvprobe.analysis.overlap.concurrency import Pairs
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.charges import by
from nvprobe.analysis.waiting.hostwork import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.model import Method
from nvprobe.report.rows import Row, path_texts, records
from nvprobe.trace import NO_NAME, NO_PAYLOAD, Column

__all__ = ["collectives", "host", "idle", "overlap", "syncs"]

_MOST_PAIRS = 32
"""Pairs of streams that never met are listed for devices with up to so many streams."""


def syncs(analysis: Analysis) -> list[Row] | None:
    """Synchronising calls by call site, the costliest first; null without calls."""
    waits, trace = analysis.waits, analysis.attribution.trace
    if waits is None or not trace.calls.recorded:
        return None
    sites = waits.syncs.sites
    return records(
        {
            "call": trace.texts(sites.call),
            "path": path_texts(analysis, sites.path),
            "source": _labels(waits.syncs.labels.to_pylist(), sites.source),
            "operator": _labels(waits.syncs.labels.to_pylist(), sites.operator),
            "count": sites.count.tolist(),
            "wait_ns": sites.wait_ns.tolist(),
            "busy_ns": sites.busy_ns.tolist(),
            "bubble_ns": sites.bubble_ns.tolist(),
            "device": _devices(analysis, sites.device),
            "stream": [stream if stream >= 0 else None for stream in sites.stream.tolist()],
            "awaited_op": trace.texts(sites.op),
        }
    )


def idle(analysis: Analysis) -> Row:
    """Idle time by cause, and by cause within paths, devices, steps and streams."""
    waits, devices = analysis.waits, analysis.devices
    if not len(devices):
        return {"total_ns": None, "causes": None, "by_path": None}
    total = int(devices.idle_ns.sum())
    if waits is None:
        return {"total_ns": total, "causes": None, "by_path": None}
    charges = waits.idle
    causes = dict.fromkeys((cause.label for cause in Cause), 0)
    for cause, ns in zip(*by(charges, "cause"), strict=True):
        causes[Cause(cause).label] = int(ns)
    path, cause, ns = by(charges, "path", "cause")
    return {
        "total_ns": total,
        "gaps": len(waits.gaps),
        "causes": causes,
        "unknown": _unknown(analysis, waits),
        "by_path": _by_cause({"path": path_texts(analysis, path)}, cause, ns),
        "by_device": _by_device(analysis, waits),
        "by_step": _by_step(analysis, waits),
        "by_stream": _by_stream(analysis, waits),
        "by_line": _by_line(waits),
        "lost_launches": int(analysis.steps.missing_launches.sum()) if len(analysis.steps) else 0,
    }


def host(analysis: Analysis) -> list[Row] | None:
    """Host time between launches by path, operator and Python frame."""
    waits = analysis.waits
    if waits is None or not analysis.attribution.trace.calls.recorded:
        return None
    table, operator = waits.host, waits.operators.of(waits.host.path)
    return records(
        {
            "path": path_texts(analysis, table.path),
            "operator": operator,
            "line": _labels(waits.line_labels, table.line),
            "launches": table.launches.tolist(),
            "host_ns": table.host_ns.tolist(),
            "idle_ns": table.idle_ns.tolist(),
            "samples": [None] * len(table) if table.samples is None else table.samples.tolist(),
        }
    )


def overlap(analysis: Analysis) -> Row | None:
    """Time by the classes that ran together; null without GPU records."""
    waits = analysis.waits
    if waits is None or not len(analysis.devices):
        return None
    over, steps = waits.overlap, analysis.steps
    total: dict[str, int] = {}
    for mask, ns in zip(over.devices.mask.tolist(), over.devices.ns.tolist(), strict=True):
        name = combination_name(mask)
        total[name] = total.get(name, 0) + ns
    by_device = _combinations(over.devices, _devices(analysis, over.devices.group - 1), "device")
    return {
        "classes": total,
        "by_device": by_device,
        "by_step": _combinations(over.steps, steps.index[over.steps.group].tolist(), "index"),
        "by_path": _combinations(over.paths, path_texts(analysis, over.paths.group), "path"),
        "streams": _streams(analysis, waits),
        "pairs": _stream_pairs(analysis, waits, over.stream_pairs),
        "path_pairs": records(
            {
                "device": _devices(analysis, over.path_pairs.device - 1),
                "first": path_texts(analysis, over.path_pairs.first),
                "second": path_texts(analysis, over.path_pairs.second),
                "ns": over.path_pairs.ns.tolist(),
            }
        ),
        "never_together": _never_together(analysis, waits),
        "exposed_comm_ns": waits.exposed_comm_ns,
    }


def collectives(analysis: Analysis) -> list[Row] | None:
    """Communication by kernel and path, the most exposed first."""
    waits, trace = analysis.waits, analysis.attribution.trace
    if waits is None or not len(analysis.devices):
        return None
    table = waits.collectives
    return records(
        {
            "name": trace.texts(table.name),
            "collective": collective_names(trace, table.name),
            "path": path_texts(analysis, table.path),
            "count": table.count.tolist(),
            "gpu_ns": table.gpu_ns.tolist(),
            "exposed_ns": table.exposed_ns.tolist(),
            "longest_ns": table.longest_ns.tolist(),
            **_messages(analysis),
        }
    )


def _messages(analysis: Analysis) -> dict[str, list[Any]]:
    """What NCCL says of its messages; null where the capture has none of its payloads."""
    waits, trace = analysis.waits, analysis.attribution.trace
    assert waits is not None
    table, carried = waits.collectives, waits.messages
    names = ("messages", "bytes", "told_ops", "communicators", "reductions", "peers")
    if carried is None:
        return {name: [None] * len(table) for name in names}
    row, found = carried.row, carried.messages
    known = found.communicator != NO_PAYLOAD
    number = found.communicator.astype(np.uint64)
    columns = (
        table.messages.tolist(),
        [size if size >= 0 else None for size in table.bytes.tolist()],
        table.told.tolist(),
        [[f"0x{c:016x}" for c in group] for group in _each(row[known], number[known], len(table))],
        [
            trace.texts(np.array(group, np.int64))
            for group in _each(row, found.reduction, len(table), NO_NAME)
        ],
        _each(row, found.peer, len(table), -1),
    )
    return dict(zip(names, columns, strict=True))


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


def _by_cause(columns: dict[str, list[Any]], cause: Column, ns: Column) -> list[Row]:
    labels = [Cause(value).label for value in cause.tolist()]
    return records({**columns, "cause": labels, "ns": ns.tolist()})


def _unknown(analysis: Analysis, waits: Waits) -> dict[str, int]:
    """Why no call is known for the ops that ended gaps, with the time of those gaps."""
    method = analysis.attribution.method[waits.gaps.op]
    lost = waits.gaps.thread < 0
    return {
        Method(value).name.lower(): int(waits.gaps.length[lost & (method == value)].sum())
        for value in np.unique(method[lost]).tolist()
    }


def _by_device(analysis: Analysis, waits: Waits) -> list[Row]:
    device, cause, ns = by(waits.idle, "device", "cause")
    return _by_cause({"device": _devices(analysis, device)}, cause, ns)


def _by_step(analysis: Analysis, waits: Waits) -> list[Row]:
    """Rows by step; index and process are null for the time outside all steps."""
    step, cause, ns = by(waits.idle, "step", "cause")
    steps = analysis.steps
    index = [int(steps.index[row]) if row >= 0 else None for row in step.tolist()]
    process = [int(steps.process[row]) if row >= 0 else None for row in step.tolist()]
    return _by_cause({"index": index, "process": process}, cause, ns)


def _by_stream(analysis: Analysis, waits: Waits) -> list[Row]:
    """Rows by the stream whose op ended the gap."""
    stream, cause, ns = by(waits.idle, "stream", "cause")
    return _by_cause(_stream_names(analysis, waits, stream), cause, ns)


def _by_line(waits: Waits) -> list[Row]:
    """Rows by line; ``samples`` where the line is an estimate from so many Python samples."""
    return [
        {"line": row.line, "samples": row.samples, "cause": row.cause.label, "ns": row.ns}
        for row in waits.idle_by_line()
    ]


def _stream_names(analysis: Analysis, waits: Waits, rows: Column) -> dict[str, list[Any]]:
    lanes = waits.streams
    return {
        "device": _devices(analysis, lanes.device[rows]),
        "process": lanes.process[rows].tolist(),
        "stream": lanes.stream[rows].tolist(),
    }


def _combinations(table: Combinations, groups: list[Any], name: str) -> list[Row]:
    """One row a group with its classes and combinations."""
    out: dict[int, Row] = {}
    columns = (table.group.tolist(), groups, table.mask.tolist(), table.ns.tolist())
    for group, label, mask, ns in zip(*columns, strict=True):
        row = out.setdefault(group, {name: label, "classes": {}})
        row["classes"][combination_name(mask)] = ns
    return list(out.values())


def _streams(analysis: Analysis, waits: Waits) -> list[Row]:
    use = waits.overlap.streams
    return records(
        {
            **_stream_names(analysis, waits, np.arange(len(use))),
            "ops": use.ops.tolist(),
            "busy_ns": use.busy_ns.tolist(),
            "alone_ns": use.alone_ns.tolist(),
        }
    )


def _stream_pairs(analysis: Analysis, waits: Waits, pairs: Pairs) -> list[Row]:
    lanes = waits.streams
    return records(
        {
            "device": _devices(analysis, pairs.device - 1),
            "processes": _two(lanes.process, pairs.first, pairs.second),
            "streams": _two(lanes.stream, pairs.first, pairs.second),
            "ns": pairs.ns.tolist(),
        }
    )


def _never_together(analysis: Analysis, waits: Waits) -> list[Row]:
    """Pairs of streams of one device that both ran, and never at once."""
    lanes, met = waits.streams, waits.overlap.stream_pairs
    shared = set(zip(met.first.tolist(), met.second.tolist(), strict=True))
    first, second = [], []
    for device in np.unique(lanes.device).tolist():
        rows = np.flatnonzero(lanes.device == device).tolist()
        if len(rows) <= _MOST_PAIRS:
            pairs = [(a, b) for a in rows for b in rows if a < b and (a, b) not in shared]
            first += [a for a, _ in pairs]
            second += [b for _, b in pairs]
    one, other = np.array(first, np.int64), np.array(second, np.int64)
    return records(
        {
            "device": _devices(analysis, lanes.device[one]),
            "processes": _two(lanes.process, one, other),
            "streams": _two(lanes.stream, one, other),
        }
    )


def _two(column: Column, first: Column, second: Column) -> list[list[int]]:
    return [
        list(pair) for pair in zip(column[first].tolist(), column[second].tolist(), strict=True)
    ]
