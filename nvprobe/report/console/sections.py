"""The sections of the terminal report, each a function of an Analysis; none computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.model import UNITS, UNKNOWN, FoundBy
from nvprobe.analysis.result import Analysis
from nvprobe.readers.input_errors import printable
from nvprobe.report.console import waits
from nvprobe.report.console.advice import findings, memory_peak, memory_use
from nvprobe.report.console.code import modules, operators
from nvprobe.report.console.critical import critical
from nvprobe.report.console.folding import Folds
from nvprobe.report.console.format import (
    in_steps,
    kernel_name,
    per_step,
    percent,
    plain,
    size,
    span,
    time,
)
from nvprobe.report.console.graphs import compiled
from nvprobe.report.console.inference import phases
from nvprobe.report.console.tables import Column as TableColumn
from nvprobe.report.console.tables import more, names, numbers, table
from nvprobe.report.console.view import SORTS, Node, View, sorted_by, visible_tree
from nvprobe.trace import Column

Section: TypeAlias = Callable[[Analysis, View, int], "RenderableType | None"]


def devices(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Each GPU, where there are several."""
    use, trace = analysis.devices, analysis.attribution.trace
    if len(use) < 2:
        return None
    labels = []
    for device in use.device.tolist():
        known = 0 <= device < len(trace.devices)
        name = trace.text(int(trace.devices.name[device])) if known else None
        labels.append(f"GPU {int(trace.devices.id[device]) if known else '?'} {name or ''}")
    pairs = list(zip(use.busy_ns.tolist(), use.window_ns.tolist(), strict=True))
    return table(
        width,
        names("Device", labels),
        numbers("Ops", [f"{ops:,}" for ops in use.ops.tolist()], 3),
        numbers("Busy", [time(busy) for busy, _ in pairs]),
        numbers("Busy %", [percent(busy, window) for busy, window in pairs]),
        numbers("Idle", [time(idle) for idle in use.idle_ns.tolist()], 1),
        numbers("Window", [time(window) for _, window in pairs], 2),
    )


_COLUMNS = {
    "calls": ("Calls", 3),
    "wall": ("Wall", 5),
    "self-wall": ("Self wall", 9),
    "gpu": ("GPU", 2),
    "self": ("Self GPU", 6),
    "busy": ("Busy", 8),
    "idle": ("Idle", 7),
    "sync": ("Sync", 11),
    "ops": ("Ops", 10),
    "span": ("Span", 12),
}
"""Head of each quantity of the tree, and how soon it is left out where the terminal is narrow."""
_OF_GPU = ("gpu", "self", "busy", "idle", "sync", "ops", "span")
_PER_STEP = {"wall": 4, "gpu": 1}


def tree(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """The ranges with what belongs to each; what they are sorted by is always among it."""
    folds = view.fold(analysis)
    nodes, hidden = visible_tree(analysis, view, folds)
    if not nodes:
        return None
    quantities = _Quantities(analysis, folds, [node.path for node in nodes])
    sort, gpu = sorted_by(analysis, view.sort), bool(analysis.ledger.total.ops)
    columns = []
    for key, (head, rank) in _COLUMNS.items():
        if not gpu and key in _OF_GPU and key != sort:
            continue
        a_step = key in _PER_STEP and len(analysis.steps.shown) > 1
        if a_step:
            first = 0 if key == sort else _PER_STEP[key]
            columns.append(numbers(f"{head}/step", quantities.per_step(key), first))
        last = 0 if key == sort and not a_step else rank
        columns.append(numbers(head, quantities.cells(key), last))
        if key == "gpu":
            columns.append(numbers("GPU %", quantities.shares()))
    if any(each := quantities.each("wall" if sort == "order" else sort)):
        columns.append(numbers("Each", each, 4))
    label = names("Range", [_label(folds, node) for node in nodes])
    return Group(table(width, label, *columns), *more(hidden, "range", "--top, --depth, --filter"))


def _label(folds: Folds, node: Node) -> str:
    """The name, indented; how many siblings it stands for."""
    name = printable(folds.name(node.path), 400).replace("/", "\\/")
    many = folds.folded(node.path)
    return "  " * node.depth + name + (f" ×{many}" if many > 1 else "")


class _Quantities:
    """Cells of the lines of the tree; folded siblings are summed."""

    def __init__(self, analysis: Analysis, folds: Folds, rows: list[int]) -> None:
        self.analysis, self.folds, self.rows = analysis, folds, rows
        self.ops = self.sums("ops")

    def values(self, key: str) -> Column:
        """A quantity of every path, before anything is folded."""
        found = getattr(self.analysis.ranges, SORTS[key])
        return np.full(len(self.analysis.ranges), UNKNOWN) if found is None else found

    def sums(self, key: str) -> list[int]:
        """A quantity of each line; UNKNOWN where it is unknown of its first path."""
        values = self.values(key)
        known = np.where(values == UNKNOWN, UNKNOWN, self.folds.sums(values))
        return [int(known[row]) for row in self.rows]

    def cells(self, key: str) -> list[str]:
        """A dot stands for what a path does not have: nothing of it lies inside a filter."""
        values = self.sums(key)
        if key in ("calls", "ops"):
            return [f"{value:,}" if value else "·" for value in values]
        has = self.ops if key in _OF_GPU[:3] or key == "span" else values
        return [time(value) if any_ else "·" for value, any_ in zip(values, has, strict=True)]

    def per_step(self, key: str) -> list[str]:
        """Means over the steps, of what lies in steps."""
        paths = self.analysis.attribution.paths
        inside = paths.nearest(in_steps(self.analysis)) >= 0
        return [
            per_step(self.analysis, value) if inside[row] and value else "·"
            for row, value in zip(self.rows, self.sums(key), strict=True)
        ]

    def shares(self) -> list[str]:
        """Percent of all GPU time."""
        total = self.analysis.ledger.total.gpu_ns
        values = zip(self.sums("gpu"), self.ops, strict=True)
        return [percent(gpu, total) if ops else "·" for gpu, ops in values]

    def each(self, key: str) -> list[str]:
        """From the least to the greatest of the siblings that a line stands for."""
        values, first = self.values(key), self.folds.first
        low, high = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), UNKNOWN)
        np.minimum.at(low, first, values)
        np.maximum.at(high, first, values)
        count = key in ("calls", "ops")
        return [
            ""
            if self.folds.folded(row) < 2 or low[row] == UNKNOWN
            else f"{low[row]:,} to {high[row]:,}"
            if count
            else span(int(low[row]), int(high[row]))
            for row in self.rows
        ]


def kernels(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """The kernels with most GPU time and the path that owns most of each."""
    shown = analysis.kernels.take(np.arange(min(view.rows(), len(analysis.kernels))))
    if not len(shown):
        return None
    total = analysis.ledger.total.gpu_ns
    doubt = ["?" if suspect else "" for suspect in shown.suspect_ops.tolist()]
    own = list(zip(shown.gpu_ns.tolist(), doubt, strict=True))
    listed = table(
        width,
        names("Kernel", [kernel_name(name) for name in _texts(analysis, shown.name)]),
        numbers("Ops", [f"{ops:,}" for ops in shown.ops.tolist()], 2),
        *_each_step(analysis, shown.gpu_ns),
        numbers("GPU", [time(gpu) + mark for gpu, mark in own], 3),
        numbers("GPU %", [percent(gpu, total) + mark for gpu, mark in own]),
        names("Mostly in", _paths(analysis, view, shown.top_path), 1),
    )
    return Group(listed, *more(len(analysis.kernels) - len(shown), "kernel"))


def _each_step(analysis: Analysis, values: Column) -> list[TableColumn]:
    """GPU time per step, where all of the captured time is of steps or near to it."""
    if len(analysis.steps.shown) < 2:
        return []
    return [numbers("GPU/step", [per_step(analysis, value) for value in values.tolist()])]


def _texts(analysis: Analysis, rows: Column) -> list[str | None]:
    return analysis.attribution.trace.texts(rows)


def _paths(analysis: Analysis, view: View, rows: Column) -> list[str]:
    folds = view.fold(analysis)
    return [folds.text(row) if row >= 0 else "–" for row in rows.tolist()]


def copies(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Copies and sets by kind."""
    shown = analysis.copies.take(np.arange(min(view.rows(), len(analysis.copies))))
    if not len(shown):
        return None
    total = analysis.ledger.total.gpu_ns
    listed = table(
        width,
        names("Copy", [name or "(unnamed)" for name in _texts(analysis, shown.name)]),
        numbers("Ops", [f"{ops:,}" for ops in shown.ops.tolist()], 2),
        numbers("Bytes", [size(amount) for amount in shown.bytes.tolist()]),
        *_each_step(analysis, shown.gpu_ns),
        numbers("GPU", [time(gpu) for gpu in shown.gpu_ns.tolist()], 4),
        numbers("GPU %", [percent(gpu, total) for gpu in shown.gpu_ns.tolist()], 3),
        names("Mostly in", _paths(analysis, view, shown.top_path), 1),
    )
    return Group(listed, *more(len(analysis.copies) - len(shown), "kind"))


def steps(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Steps with their spread; of many, the slowest."""
    all_, spread = analysis.steps.shown, analysis.step_spread
    if spread is None:
        return None
    rows = np.sort(np.argsort(-all_.wall_ns, kind="stable")[: view.rows()])
    shown, trace = all_.take(rows), analysis.attribution.trace
    several = len(set(all_.process.tolist())) > 1
    pids = [str(int(pid)) for pid in trace.processes.pid[shown.process]]
    of_units = [UNITS[FoundBy(found)] for found in shown.found_by.tolist()]
    paths = _paths(analysis, view, shown.path)
    marked = np.where(shown.path >= 0, paths, of_units).tolist()
    labels = zip(marked, shown.index.tolist(), strict=True)
    gpu = [
        numbers("GPU", list(map(time, shown.gpu_ns.tolist())), 1),
        numbers("Busy", list(map(time, shown.gpu_busy_ns.tolist()))),
        numbers("Ops", [f"{ops:,}" for ops in shown.ops.tolist()], 2),
    ]
    listed = table(
        width,
        names("Step", [f"{path} {index}" for path, index in labels]),
        *([numbers("Process", pids)] if several else []),
        numbers("Wall", list(map(time, shown.wall_ns.tolist()))),
        *(gpu if analysis.ledger.total.ops else []),
    )
    return Group(listed, *more(len(all_) - len(shown), "faster step"))


def spans(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Start/end ranges: beside the tree."""
    shown = analysis.spans.take(np.arange(min(view.rows(), len(analysis.spans))))
    if not len(shown):
        return None
    listed = table(
        width,
        names("Span (start/end range)", [n or "(unnamed)" for n in _texts(analysis, shown.name)]),
        numbers("Calls", [f"{calls:,}" for calls in shown.calls.tolist()], 1),
        numbers("Wall", list(map(time, shown.wall_ns.tolist()))),
        numbers("Longest", list(map(time, shown.longest_ns.tolist())), 2),
    )
    return Group(listed, *more(len(analysis.spans) - len(shown), "span"))


def missing(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """What this file cannot say, and what would record it."""
    parts = [
        Text.assemble(
            (f"No {plain(one.what)}: ", "bold dim"),
            f"{plain(one.why).rstrip('.')}. To have it: {plain(one.how)}.",
        )
        for one in analysis.missing
    ]
    return Group(*parts) if parts else None


SECTIONS: dict[str, tuple[Section, ...]] = {
    "findings": (findings,),
    "ranges": (devices, tree, spans),
    "idle": (waits.idle,),
    "waits": (waits.syncs,),
    "host": (waits.host,),
    "critical": (critical,),
    "modules": (modules,),
    "kernels": (kernels,),
    "operators": (operators,),
    "copies": (copies,),
    "overlap": (waits.overlap, waits.meetings),
    "steps": (phases, steps),
    "graphs": (compiled,),
    "memory": (memory_use, memory_peak),
    "missing": (missing,),
}
"""What ``--show`` takes, in the order of ``--all``; one with nothing to show returns ``None``."""
