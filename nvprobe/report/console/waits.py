"""Waiting in the terminal report: idle causes, synchronizing calls, overlap, host time."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.code_places import Line
from nvprobe.analysis.overlap.combinations import combination_name
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.host_time import by_label
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.format import left_cut, line_in_words, path_cut, percent, plain, time
from nvprobe.report.console.tables import new_table
from nvprobe.report.console.view import TreeView
from nvprobe.trace import Column

__all__ = ["host", "idle", "overlap", "syncs"]

_LINES = 8
"""Rows of each table; the JSON has all."""
_NO_LINES = (
    "lines are known with nvprobe launch --python-samples, or with_stack=True of torch.profiler"
)
_COMBINATIONS = 6
"""So many combinations are shown; the JSON has all."""
_WORDS = {
    Cause.SYNC: "sync",
    Cause.ALLOCATION: "allocation",
    Cause.COMPILATION: "compilation",
    Cause.COLLECTIVE: "collective",
    Cause.INPUT: "input",
    Cause.LAUNCH_CALL: "launch call",
    Cause.OTHER_CALL: "other calls",
    Cause.HOST: "host",
    Cause.DEVICE_WAIT: "device wait",
    Cause.UNKNOWN: "unknown",
}


def idle(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Why the GPU was idle: one line, then where (``--by``)."""
    waits, total = analysis.waits, int(analysis.devices.idle_ns.sum())
    if waits is None or not total:
        return None
    window = int(analysis.devices.window_ns.sum())
    text = Text("Idle: ", "bold")
    text.append(f"{time(total)} of {time(window)} ({percent(total, window)}) = ", "")
    cause, ns = by(waits.idle, "cause")
    order = np.argsort(-ns, kind="stable")
    shares = zip(cause[order].tolist(), ns[order].tolist(), strict=True)
    text.append(" + ".join(f"{_WORDS[Cause(c)]} {percent(n, total)}" for c, n in shares), "")
    if view.by == "cause":
        return text
    if view.by == "line":
        return Group(text, *_by_line(waits, total, width))
    labels, cause, ns = _places(analysis, waits, view.by)
    heads = {"path": "Idle in", "stream": "Idle before", "step": "Idle in step"}
    out = new_table(heads[view.by], "Cause", "Idle", "Idle %")
    order = np.argsort(-ns, kind="stable")
    for row in order[:_LINES].tolist():
        own = int(ns[row])
        name = path_cut(labels[row], max(20, width - 45))
        out.add_row(name, _WORDS[Cause(cause[row])], time(own), percent(own, total))
    return Group(text, out, *_more(len(order) - _LINES, "more place", "--by, --json"))


def _by_line(waits: Waits, total: int, width: int) -> list[RenderableType]:
    """The lines with most idle time; how many samples they rest on, where they rest on samples."""
    rows = waits.idle_by_line()
    sampled = waits.sampled is not None
    out = new_table("Idle at", "Cause", "Idle", "Idle %", *(["Samples"] if sampled else []))
    for row in rows[:_LINES]:
        name = line_in_words(row.line, max(20, width - 45 - 10 * sampled))
        seen = ["" if row.samples is None else f"{row.samples:,}"] if sampled else []
        out.add_row(name, _WORDS[row.cause], time(row.ns), percent(row.ns, total), *seen)
    parts: list[RenderableType] = [out]
    parts += _more(len(rows) - _LINES, "more place", "--by, --json")
    if not any(row.line for row in rows):
        parts.append(Text(_NO_LINES, "dim"))
    if waits.sampled is not None:
        seen_in = counted(waits.sampled.samples, "Python sample")
        note = f"lines of host time and launch calls are an estimate from {seen_in} in idle time"
        parts.append(Text(note, "dim"))
    return parts


def _places(analysis: Analysis, waits: Waits, what: str) -> tuple[list[str], Column, Column]:
    """(label, cause, ns) of every place that idle time is charged to."""
    rows, cause, ns = by(waits.idle, what, "cause")
    if what == "path":
        paths = analysis.attribution.paths
        known = {row: paths.text(row) if row >= 0 else "(no range)" for row in set(rows.tolist())}
        return [known[row] for row in rows.tolist()], cause, ns
    if what == "step":
        index = analysis.steps.index
        names = [f"step {int(index[row])}" if row >= 0 else "(no step)" for row in rows.tolist()]
        return names, cause, ns
    streams, ids = waits.streams, analysis.attribution.trace.devices.id
    pairs = zip(streams.stream[rows].tolist(), streams.device[rows].tolist(), strict=True)
    names = [
        f"stream {stream}" + (f" of GPU {int(ids[device])}" if 0 <= device < len(ids) else "")
        for stream, device in pairs
    ]
    return names, cause, ns


def syncs(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Where the host waits for the GPU."""
    waits = analysis.waits
    if waits is None or not len(waits.syncs.sites):
        return None
    found = waits.syncs
    sites, labels = found.sites, found.labels.to_pylist()
    trace, paths = analysis.attribution.trace, analysis.attribution.paths
    limit = max(18, width // 3)
    out = new_table("Waits for the GPU", "Calls", "Wait", "GPU idle", "Where", Where=limit)
    calls = trace.texts(sites.call[:_LINES])
    for row, (call, begun) in enumerate(zip(calls, waits.sync_places(), strict=False)):
        operator = labels[sites.operator[row]] if sites.operator[row] >= 0 else None
        source = labels[sites.source[row]] if sites.source[row] >= 0 else None
        path = paths.text(int(sites.path[row])) if sites.path[row] >= 0 else None
        out.add_row(
            plain(f"{operator} ({call})" if operator else call),
            f"{int(sites.count[row]):,}",
            time(int(sites.wait_ns[row])),
            time(int(sites.bubble_ns[row])),
            _where(source, begun, path, limit),
        )
    return Group(out, *_more(len(sites) - _LINES, "more call site", "--json"))


def _where(source: str | None, begun: Line | None, path: str | None, width: int) -> Text:
    """The line that calls, else a line around it, else the path."""
    if source:
        return left_cut(source, width)
    return line_in_words(begun, width) if begun else path_cut(path, width)


def overlap(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """What ran beside what, where anything but compute ran."""
    waits = analysis.waits
    if waits is None:
        return None
    table_ = waits.overlap.devices
    shares: dict[str, int] = {}
    for mask, ns in zip(table_.mask.tolist(), table_.ns.tolist(), strict=True):
        name = combination_name(mask).replace("_", " ").replace("+", " with ")
        shares[name] = shares.get(name, 0) + ns
    busy = sum(shares.values())
    if not busy or set(shares) == {"compute"}:
        return None
    text = Text("Overlap: ", "bold")
    parts = sorted(shares.items(), key=lambda item: -item[1])
    rest = sum(ns for _, ns in parts[_COMBINATIONS:])
    parts = [*parts[:_COMBINATIONS], *([("others", rest)] if rest else [])]
    text.append(" + ".join(f"{name} {percent(ns, busy)}" for name, ns in parts), "")
    if waits.exposed_comm_ns:
        text.append(f"; exposed communication {time(waits.exposed_comm_ns)}", "")
    return text


def host(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Python and dispatch between launches, where the GPU waited for it.

    By Python frame where there are any, else by operator, else by range.
    """
    waits = analysis.waits
    if waits is None or not len(waits.host):
        return None
    names, rows = by_label(waits.host, _host_labels(analysis, waits))
    shown = int(np.count_nonzero(rows.idle_ns))
    if not shown:
        return None
    paths, limit = analysis.attribution.paths, max(18, width // 3)
    lines = bool(waits.line_labels)
    out = new_table("Host work", "Launches", "Host", "GPU idle", "Mostly in", Mostly_in=limit)
    for row, name in enumerate(names[: min(shown, _LINES)]):
        path = int(rows.path[row])
        out.add_row(
            left_cut(name, max(20, width - limit - 36)) if lines else plain(name),
            f"{int(rows.launches[row]):,}",
            time(int(rows.host_ns[row])),
            time(int(rows.idle_ns[row])),
            path_cut(paths.text(path) if path >= 0 else "(no range)", limit),
        )
    return Group(out, *_more(shown - _LINES, "more place", "--json"))


def _host_labels(analysis: Analysis, waits: Waits) -> list[str]:
    """What to call the host work of each row."""
    table, paths = waits.host, analysis.attribution.paths
    lines = waits.line_labels
    names = paths.names.to_pylist()
    return [
        lines[line]
        if line >= 0
        else operator or (names[paths.name[path]] if path >= 0 else "(no range)")
        for line, operator, path in zip(
            table.line.tolist(),
            waits.operators.of(table.path),
            table.path.tolist(),
            strict=True,
        )
    ]


def _more(number: int, noun: str, options: str) -> list[Text]:
    return [Text(f"… {counted(number, noun)} ({options})", "dim")] if number > 0 else []
