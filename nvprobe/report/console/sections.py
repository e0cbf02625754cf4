"""The sections of the terminal report, each a function of an Analysis; none computes."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nvprobe.analysis.model import Steps
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Method
from nvprobe.readers.input_errors import counted
from nvprobe.report.console import waits
from nvprobe.report.console.advice import findings, memory_peak, memory_use
from nvprobe.report.console.code import modules, operators
from nvprobe.report.console.format import (
    kernel_name,
    path_cut,
    percent,
    plain,
    size,
    time,
)
from nvprobe.report.console.graphs import compiled
from nvprobe.report.console.profiler import profiler
from nvprobe.report.console.tables import new_table
from nvprobe.report.console.view import TreeView, visible_tree
from nvprobe.trace import Clock

__all__ = ["SECTIONS", "title"]

_WIDE, _WIDER = 100, 120
_REASONS = {
    Method.LAUNCHED_BEFORE_WINDOW: "launched before the window",
    Method.NO_LAUNCH_RECORD: "without launch record",
    Method.UNIFIED_MEMORY: "unified memory",
    Method.OPAQUE_GRAPH: "graph launched outside any range",
    Method.NO_RANGE_OPEN: "with no range open",
}


def title(analysis: Analysis) -> Text:
    """What was read: files, product, devices."""
    trace = analysis.attribution.trace
    used = [row for row in analysis.devices.device.tolist() if 0 <= row < len(trace.devices)]
    names = dict.fromkeys(trace.texts(trace.devices.name[used]) if used else [])
    parts = [source.file for source in trace.sources]
    parts += [
        f"nsys {s.product_version}"
        for s in trace.sources
        if s.product_version and s.kind.startswith("nsys")
    ]
    parts += [f"{len(used)} × {name}" if len(used) > 1 else str(name) for name in names if name]
    text = plain(" · ".join(parts), "dim")
    text.append(_clock(trace.clock), "dim")
    return text


def _clock(clock: Clock) -> str:
    """How the times of two sources were brought together, as a line of its own."""
    if clock.kind == "shared" and clock.offset_ns is not None:
        low, high = (f"{bound / 1000:+.1f}" for bound in clock.offset_ns)
        return f"\none clock: torch's times are known to within {low} to {high} µs of nsys's"
    if clock.kind == "sequence" and clock.matched_share is not None:
        share = f"{int(clock.matched_share * 1000) / 10:g}%"
        return f"\ntwo runs, joined by the order of their kernels: {share} of nsys's match torch's"
    return ""


def verdict(analysis: Analysis, view: TreeView, width: int) -> RenderableType:
    """The one line to remember."""
    text = plain(analysis.verdict, "bold")
    text.no_wrap = False
    return text


def ledger(analysis: Analysis, view: TreeView, width: int) -> RenderableType:
    """Every op by method or reason; the shares are of GPU time."""
    book = analysis.ledger
    text = Text("Ledger: ", "bold")
    if not book.total.ops:
        return text.append("no GPU ops", "").append(_outside(analysis), "dim")
    text.append(f"{counted(book.total.ops, 'op')}, {time(book.total.gpu_ns)} of GPU time", "")
    parts = []
    for method, entry in book.by_method.items():
        name = method.name.lower().replace("_", " ") if method.resolved else _REASONS[method]
        parts.append(
            f"{name} {percent(entry.gpu_ns, book.total.gpu_ns)} ({counted(entry.ops, 'op')})"
        )
    if parts:
        text.append(" = " + " + ".join(parts), "")
    text.append(_without_range(analysis), "dim")
    text.append(_outside(analysis), "dim")
    return text


def _outside(analysis: Analysis) -> str:
    """What the filters left out."""
    outside = analysis.attribution.outside
    if outside is None:
        return ""
    filters = plain(" ".join(outside.filters)).plain
    ops, gpu = counted(outside.ops, "op"), time(outside.gpu_ns)
    return f"; outside {filters} and not counted: {ops}, {gpu} of GPU time"


def _without_range(analysis: Analysis) -> str:
    """Names of the threads that launched with no range open."""
    trace, threads = analysis.attribution.trace, analysis.ledger.threads_without_range
    if not threads:
        return ""
    largest = sorted(threads, key=lambda row: -threads[row].gpu_ns)[:3]
    names = [
        f"{plain(trace.text(int(trace.threads.name[row])) or 'thread').plain} "
        f"(tid {int(trace.threads.tid[row])})"
        for row in largest
    ]
    return f"; no range was open on {', '.join(names)}"


def devices(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Each GPU, where there are several."""
    use, trace = analysis.devices, analysis.attribution.trace
    if len(use) < 2:
        return None
    table = new_table("Device", "Ops", "Busy", "Busy %", "Idle", "Window")
    for row, device in enumerate(use.device.tolist()):
        known = 0 <= device < len(trace.devices)
        name = trace.text(int(trace.devices.name[device])) if known else None
        number = int(trace.devices.id[device]) if known else "?"
        window = int(use.window_ns[row])
        table.add_row(
            plain(f"GPU {number}{f' {name}' if name else ''}"),
            f"{int(use.ops[row]):,}",
            time(int(use.busy_ns[row])),
            percent(int(use.busy_ns[row]), window),
            time(int(use.idle_ns[row])),
            time(window),
        )
    return table


def tree(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """The ranges with what belongs to each."""
    nodes, more = visible_tree(analysis, view)
    if not nodes:
        return None
    quantities, total = analysis.ranges, analysis.ledger.total.gpu_ns
    names = ["Range", "Calls", "Wall", "Self wall"]
    if total:
        names = ["Range", "Calls", "Wall", "GPU", "GPU %"]
        names += ["Self GPU", "Busy"] if width >= _WIDE else []
        names += ["Ops", "Span"] if width >= _WIDER else []
    table = new_table(*names)
    paths = analysis.attribution.paths
    for node in nodes:
        row = node.path
        gpu = int(quantities.gpu_ns[row])
        label = plain("  " * node.depth + str(paths.names[int(paths.name[row])]))
        cells = {
            "Calls": f"{int(quantities.calls[row]):,}",
            "Wall": time(int(quantities.wall_ns[row])),
            "Self wall": time(int(quantities.self_wall_ns[row])),
            "GPU": time(gpu) if quantities.ops[row] else "·",
            "GPU %": percent(gpu, total) if quantities.ops[row] else "·",
            "Self GPU": time(int(quantities.gpu_self_ns[row])) if gpu else "·",
            "Busy": time(int(quantities.gpu_busy_ns[row])) if gpu else "·",
            "Ops": f"{int(quantities.ops[row]):,}",
            "Span": time(int(quantities.gpu_span_ns[row])) if gpu else "·",
        }
        table.add_row(label, *(cells[name] for name in names[1:]))
    if more > 0:
        return Group(
            table, Text(f"… {counted(more, 'more range')} (--rows, --depth, --filter)", "dim")
        )
    return table


def kernels(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """The kernels with most GPU time and the path that owns most of each."""
    shown = analysis.kernels.take(np.arange(min(view.kernels, len(analysis.kernels))))
    if not len(shown):
        return None
    total, paths = analysis.ledger.total.gpu_ns, analysis.attribution.paths
    limit = max(18, width // 3 - 6)
    table = new_table("Kernel", "Ops", "GPU", "GPU %", "Mostly in", Mostly_in=limit)
    names = analysis.attribution.trace.texts(shown.name)
    for row, name in enumerate(names):
        path, gpu = int(shown.top_path[row]), int(shown.gpu_ns[row])
        doubt = "?" if shown.suspect_ops[row] else ""
        table.add_row(
            kernel_name(name),
            f"{int(shown.ops[row]):,}",
            time(gpu) + doubt,
            percent(gpu, total) + doubt,
            path_cut(paths.text(path) if path >= 0 else None, limit),
        )
    more = len(analysis.kernels) - len(shown)
    if more > 0:
        return Group(table, Text(f"… {counted(more, 'more kernel')} (--kernels)", "dim"))
    return table


def copies(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Copies and sets by kind."""
    table_, total = analysis.copies, analysis.ledger.total.gpu_ns
    if not len(table_):
        return None
    limit, paths = max(18, width // 3 - 6), analysis.attribution.paths
    table = new_table("Copy", "Ops", "Bytes", "GPU", "GPU %", "Mostly in", Mostly_in=limit)
    for row, name in enumerate(analysis.attribution.trace.texts(table_.name)):
        path = int(table_.top_path[row])
        table.add_row(
            plain(name),
            f"{int(table_.ops[row]):,}",
            size(int(table_.bytes[row])),
            time(int(table_.gpu_ns[row])),
            percent(int(table_.gpu_ns[row]), total),
            path_cut(paths.text(path) if path >= 0 else None, limit),
        )
    return table


def steps(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Steps with their spread; of many, the slowest."""
    table, spread = analysis.steps, analysis.step_spread
    if spread is None:
        return None
    order = np.argsort(-table.wall_ns, kind="stable")[: view.steps]
    order = np.sort(order)
    several = len(set(table.process.tolist())) > 1
    gpu = ("GPU", "Busy", "Ops") if analysis.ledger.total.ops else ()
    out = new_table("Step", *(["Process"] if several else []), "Wall", *gpu)
    pid = analysis.attribution.trace.processes.pid
    names = {int(p): analysis.attribution.paths.shown(int(p)) for p in np.unique(table.path)}
    for row in order.tolist():
        out.add_row(
            plain(f"{names[int(table.path[row])]} {int(table.index[row])}"),
            *([str(int(pid[table.process[row]]))] if several else []),
            time(int(table.wall_ns[row])),
            *(_gpu_of_step(table, row) if gpu else ()),
        )
    longest, median = spread.longest_ns, spread.median_ns
    summary = f"{counted(spread.count, 'step')}: median {time(median)}"
    if spread.count > 1:
        summary += f", {time(spread.shortest_ns)} to {time(longest)} (step {spread.slowest})"
    if spread.count > len(order):
        summary += f"; the {len(order)} slowest are shown"
    return Group(out, Text(summary, "dim"))


def _gpu_of_step(table: Steps, row: int) -> tuple[str, str, str]:
    gpu, busy = int(table.gpu_ns[row]), int(table.gpu_busy_ns[row])
    return time(gpu), time(busy), f"{int(table.ops[row]):,}"


def spans(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Start/end ranges: beside the tree."""
    rows, trace = analysis.spans, analysis.attribution.trace
    if not len(rows):
        return None
    table = new_table("Span (start/end range)", "Calls", "Wall", "Longest")
    for row, name in enumerate(trace.texts(rows.name)[: view.rows]):
        table.add_row(
            plain(name),
            f"{int(rows.calls[row]):,}",
            time(int(rows.wall_ns[row])),
            time(int(rows.longest_ns[row])),
        )
    return table


def warnings(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """What to distrust."""
    return _paragraphs([("Warning: ", "yellow", text) for text in analysis.warnings])


def missing(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """What this file cannot say, and what would record it."""
    return _paragraphs(
        [(f"No {m.what}: ", "bold dim", f"{m.why}. To have it: {m.how}.") for m in analysis.missing]
    )


def _paragraphs(entries: list[tuple[str, str, str]]) -> RenderableType | None:
    if not entries:
        return None
    table = Table.grid(padding=(0, 0, 0, 0))
    for head, style, body in entries:
        text = Text(plain(head).plain, style)
        text.append(plain(body).plain, "")
        table.add_row(Padding(text, (0, 0, 0, 0)))
    return table


SECTIONS = (
    verdict,
    profiler,
    findings,
    memory_use,
    memory_peak,
    ledger,
    devices,
    tree,
    waits.idle,
    waits.syncs,
    waits.host,
    modules,
    compiled,
    kernels,
    operators,
    copies,
    waits.overlap,
    steps,
    spans,
    warnings,
    missing,
)
"""In the order of the report; a section that has nothing to show returns ``None``."""
