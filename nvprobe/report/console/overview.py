"""The first screen: verdict, steps, ledger, findings, the heaviest paths and idle places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.model import Kind, Method
from nvprobe.readers.input_errors import counted
from nvprobe.report.capture import program
from nvprobe.report.console import waits
from nvprobe.report.console.folding import Folds
from nvprobe.report.console.format import in_steps, per_step, percent, plain, span, time
from nvprobe.report.console.profiler import profiler
from nvprobe.report.console.tables import Column, names, numbers, table
from nvprobe.report.console.view import ALL, View, chosen, sorted_by
from nvprobe.trace import Clock
from nvprobe.trace import Column as Array

_WARNINGS = 3
_FEW = 5
_NEXT = 8
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
    known = dict.fromkeys(trace.texts(trace.devices.name[used]) if used else [])
    parts = [source.file for source in trace.sources]
    parts += [
        f"nsys {s.product_version}"
        for s in trace.sources
        if s.product_version and s.kind.startswith("nsys")
    ]
    parts += [f"{len(used)} × {name}" if len(used) > 1 else str(name) for name in known if name]
    return Text(plain(" · ".join(parts)) + _clock(trace.clock), "dim")


def _clock(clock: Clock) -> str:
    """How the times of two sources were brought together, as a line of its own."""
    if clock.kind == "shared" and clock.offset_ns is not None:
        low, high = (f"{bound / 1000:+.1f}" for bound in clock.offset_ns)
        return f"\none clock: torch's times are known to within {low} to {high} µs of nsys's"
    if clock.kind == "sequence" and clock.matched_share is not None:
        share = f"{int(clock.matched_share * 1000) / 10:g}%"
        return f"\ntwo runs, joined by the order of their kernels: {share} of nsys's match torch's"
    return ""


def heading(analysis: Analysis, view: View, width: int) -> RenderableType:
    """The one line to remember, and what to distrust."""
    listed = analysis.warnings if view.show == ALL else analysis.warnings[:_WARNINGS]
    parts = [Text(plain(analysis.verdict), "bold")]
    parts += [Text.assemble(("Warning: ", "yellow"), plain(text)) for text in listed]
    more = len(analysis.warnings) - len(listed)
    if more > 0:
        parts.append(Text(f"… {counted(more, 'more warning')} (--all)", "yellow"))
    return Group(*parts)


def steps_in_a_line(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """How many, how long, how they vary, and what the profiler makes of them."""
    spread = analysis.step_spread
    if spread is None:
        return None
    text = Text.assemble(("Steps: ", "bold"), f"{spread.count} of {time(spread.median_ns)}")
    if spread.longest_ns > spread.shortest_ns:
        between = span(spread.shortest_ns, spread.longest_ns)
        text.append(f" (median; {between}, the longest is step {spread.slowest})")
    busy = analysis.steps.shown.gpu_busy_ns
    if busy.any():
        text.append(f", GPU busy for {time(int(np.sort(busy)[len(busy) // 2]))}")
    return text.append(profiler(analysis)).append(_around(analysis), "dim")


def _around(analysis: Analysis) -> str:
    """What of a whole run lies around the steady steps, and is not counted."""
    left = analysis.left_out
    if left is None:
        return ""
    warmup = counted(left.warmup_steps, "step")
    parts = (
        (left.start_ns, "start-up"), (left.warmup_ns, f"warm-up of {warmup}"), (left.end_ns, "end")
    )  # fmt: skip
    listed = ", ".join(f"{what} {time(ns)}" for ns, what in parts if ns > 0)
    return f"; left out: {listed} (--all)"


def ledger(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Every op by method or reason; the shares are of GPU time."""
    book = analysis.ledger
    text = Text.assemble(("Ledger: ", "bold"))
    if not book.total.ops:
        outside = _outside(analysis)
        return text.append(f"no GPU ops{outside}") if outside else None
    a_step = per_step(analysis, book.total.gpu_ns)
    whole, ops = time(book.total.gpu_ns), counted(book.total.ops, "op")
    text.append(
        f"{a_step} of GPU time per step, {whole} and {ops} in all"
        if a_step
        else f"{ops}, {whole} of GPU time"
    )
    parts = []
    for method, entry in book.by_method.items():
        name = method.name.lower().replace("_", " ") if method.resolved else _REASONS[method]
        parts.append(f"{name} {percent(entry.gpu_ns, book.total.gpu_ns)}")
    if parts:
        text.append(" = " + " + ".join(parts))
    return text.append(_without_range(analysis), "dim").append(_outside(analysis), "dim")


def _outside(analysis: Analysis) -> str:
    """What the filters left out."""
    outside = analysis.attribution.outside
    if outside is None or analysis.left_out is not None:  # the line of steps has it
        return ""
    filters = plain(" ".join(outside.filters))
    ops, gpu = counted(outside.ops, "op"), time(outside.gpu_ns)
    return f"; outside {filters} and not counted: {ops}, {gpu} of GPU time"


def _without_range(analysis: Analysis) -> str:
    """Names of the threads that launched with no range open."""
    trace, threads = analysis.attribution.trace, analysis.ledger.threads_without_range
    if not threads:
        return ""
    largest = sorted(threads, key=lambda row: -threads[row].gpu_ns)[:3]
    named = [
        f"{plain(program(trace.text(int(trace.threads.name[row]))) or 'thread')} "
        f"(tid {int(trace.threads.tid[row])})"
        for row in largest
    ]
    return f"; no range was open on {', '.join(named)}"


def heaviest(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """The paths of the program with most time of their own: GPU time, else host time.

    What belongs to operators and other hidden ranges is the path's around them.
    """
    folds = view.fold(analysis)
    own, seen = _own(analysis, view, folds)
    rows = np.lexsort((np.arange(len(own)), -own))[: view.rows(_FEW)]
    rows = rows[own[rows] > 0]
    if not len(rows):
        return None
    calls = folds.sums(analysis.ranges.calls)
    what = "GPU" if analysis.ledger.total.ops else "Host"
    total = analysis.ledger.total.gpu_ns if what == "GPU" else int(own.sum())
    values = own[rows].tolist()
    return table(
        width,
        names("Heaviest paths", [folds.counted_text(row) for row in rows.tolist()]),
        numbers("Calls", [f"{calls[row]:,}" if calls[row] else "·" for row in rows], 1),
        *_a_step(analysis, what, rows, values, seen),
        numbers(what, [time(value) for value in values], 2),
        numbers(f"{what} %", [percent(value, total) for value in values]),
    )


def _own(analysis: Analysis, view: View, folds: Folds) -> tuple[Array, Array]:
    """(ns by group, bool per path: it lies in a step) of what belongs to no shown path below."""
    paths, table_ = analysis.attribution.paths, analysis.ranges
    hidden = view.hidden | {Kind.OPERATOR} if not view.kinds else view.hidden
    mine = chosen(analysis, view) & ~np.isin(paths.kind, [int(kind) for kind in hidden])
    if not mine.any():
        mine = chosen(analysis, view)
    host = sorted_by(analysis, "gpu") == "wall"
    values = table_.self_wall_ns if host else table_.gpu_self_ns
    at = paths.nearest(mine)
    known = (at >= 0) & (values != UNKNOWN)
    own = np.zeros(len(at), np.int64)
    np.add.at(own, folds.first[at[known]], values[known])
    stepping = in_steps(analysis)
    return own, paths.nearest(stepping) >= 0


def _a_step(
    analysis: Analysis, what: str, rows: Array, values: Sequence[int], seen: Array
) -> list[Column]:
    """A column of times per step, for paths that lie in steps."""
    if len(analysis.steps.shown) < 2:
        return []
    cells = [
        per_step(analysis, value) if seen[row] else "·"
        for row, value in zip(rows.tolist(), values, strict=True)
    ]
    return [numbers(f"{what}/step", cells)]


def idlest(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Why the GPU was idle, and the largest places of it."""
    text = waits.idle_in_a_line(analysis, _FEW - 1)
    if text is None:
        return None
    return Group(text, *waits.idle_places(analysis, view, width, view.rows(_FEW)))


def look_next(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """What the capture lacks, and the sections that have something to say."""
    lines = []
    if analysis.missing:
        lacking = ", ".join(dict.fromkeys(plain(one.what) for one in analysis.missing))
        lines.append(Text(f"Missing: {lacking} (--show missing says why, and what to do)", "dim"))
    waiting = int(analysis.devices.idle_ns.sum()) * 2 > int(analysis.devices.window_ns.sum())
    order = _WAITING if waiting else _WORKING
    known = [name for name in order if _says(analysis, name)]
    if known:
        lines.append(Text(f"Look next: --show {','.join(known[:_NEXT])}, or --all"))
    return Group(*lines) if lines else None


_WAITING = (
    "idle", "waits", "host", "ranges", "modules", "kernels", "operators", "copies", "overlap",
    "steps", "graphs", "memory",
)  # fmt: skip
_WORKING = (
    "kernels", "modules", "ranges", "operators", "copies", "overlap", "idle", "waits", "host",
    "steps", "graphs", "memory",
)  # fmt: skip


def _says(analysis: Analysis, name: str) -> bool:
    """Whether a section has something to show."""
    found = {
        "idle": analysis.devices.idle_ns.any(),
        "waits": analysis.waits is not None and len(analysis.waits.syncs.sites),
        "host": analysis.waits is not None and analysis.waits.host.idle_ns.any(),
        "ranges": analysis.ranges.calls.any(),
        "modules": analysis.modules,
        "kernels": len(analysis.kernels),
        "operators": analysis.operators,
        "copies": len(analysis.copies),
        "overlap": len(analysis.copies),
        "steps": len(analysis.steps.shown),
        "graphs": analysis.compiled_graphs,
        "memory": analysis.memory or analysis.allocator or analysis.snapshot_peaks,
    }
    return bool(found[name])
