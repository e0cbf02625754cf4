"""Waiting in the terminal report: idle causes, synchronizing calls, overlap, host time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.overlap.combinations import combination_name
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.host_time import by_label
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.folding import Folds
from nvprobe.report.console.format import line_in_words, per_step, percent, time
from nvprobe.report.console.tables import Column, more, names, numbers, table, words
from nvprobe.report.console.view import View
from nvprobe.trace import Column as Array

_NO_LINES = "lines are known with nvprobe launch --python-samples"
_COMBINATIONS = 6
"""So many combinations are shown; the JSON has all."""


def idle(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Why the GPU was idle: one line, then where (``--by``)."""
    text = idle_in_a_line(analysis)
    if text is None or view.by == "cause":
        return text
    return Group(text, *idle_places(analysis, view, width, view.rows()))


def idle_in_a_line(analysis: Analysis, most: int | None = None) -> Text | None:
    """Idle time per step and of the window, by cause (``most`` of them)."""
    waits, total = analysis.waits, int(analysis.devices.idle_ns.sum())
    if waits is None or not total:
        return None
    window = int(analysis.devices.window_ns.sum())
    text = Text.assemble(("Idle: ", "bold"))
    of_steps = analysis.steps.shown.idle_ns
    if len(analysis.steps.shown) > 1 and of_steps is not None:
        text.append(f"{per_step(analysis, int(of_steps.sum()))} per step, ")
    text.append(f"{time(total)} of {time(window)} ({percent(total, window)}) = ")
    cause, ns = by(waits.idle, "cause")
    order = np.argsort(-ns, kind="stable")
    shares = zip(cause[order].tolist(), ns[order].tolist(), strict=True)
    parts = [(Cause(c).words, n) for c, n in shares]
    if most is not None and len(parts) > most:
        parts = [*parts[: most - 1], ("others", sum(n for _, n in parts[most - 1 :]))]
    return text.append(" + ".join(f"{word} {percent(n, total)}" for word, n in parts))


def idle_places(analysis: Analysis, view: View, width: int, rows: int) -> list[RenderableType]:
    """The places with most idle time, as ``--by`` asks."""
    waits, total = analysis.waits, int(analysis.devices.idle_ns.sum())
    if waits is None or not total or view.by == "cause":
        return []
    if view.by == "line":
        return _by_line(analysis, waits, width, rows)
    labels, cause, ns = _places(analysis, waits, view)
    heads = {"path": "Idle in", "stream": "Idle before", "step": "Idle in step"}
    order = np.argsort(-ns, kind="stable")
    shown = order[:rows].tolist()
    steps = view.by == "path"
    out = table(
        width,
        names(heads[view.by], [labels[row] for row in shown]),
        words("Cause", [Cause(cause[row]).words for row in shown]),
        *_idle_columns(analysis, [int(ns[row]) for row in shown], total, steps=steps),
    )
    return [out, *more(len(order) - len(shown), "place", "--top, --by")]


def _idle_columns(analysis: Analysis, ns: list[int], total: int, *, steps: bool) -> list[Column]:
    """A step, the window, and the share of all idle time."""
    a_step = [per_step(analysis, value) for value in ns] if steps else []
    return [
        *([numbers("Idle/step", a_step)] if any(a_step) else []),
        numbers("Idle", [time(value) for value in ns], 1 if any(a_step) else 0),
        numbers("Idle %", [percent(value, total) for value in ns]),
    ]


def _by_line(analysis: Analysis, waits: Waits, width: int, most: int) -> list[RenderableType]:
    """The lines with most idle time; how many samples they rest on, where they rest on samples."""
    rows = waits.idle_by_line()
    shown, total = rows[:most], int(analysis.devices.idle_ns.sum())
    seen = ["" if row.samples is None else f"{row.samples:,}" for row in shown]
    out = table(
        width,
        names("Idle at", [line_in_words(row.line) for row in shown]),
        words("Cause", [row.cause.words for row in shown]),
        *_idle_columns(analysis, [row.ns for row in shown], total, steps=True),
        *([numbers("Samples", seen, 2)] if waits.sampled is not None else []),
    )
    parts: list[RenderableType] = [out, *more(len(rows) - len(shown), "place", "--top, --by")]
    if waits.lines is None and waits.sampled is None and not any(row.line for row in rows):
        launched = analysis.attribution.trace.profiling is not None
        foreign = "" if launched else ", or with_stack=True of torch.profiler"
        parts.append(Text(f"{_NO_LINES}{foreign}", "dim"))
    if waits.sampled is not None:
        seen_in = counted(waits.sampled.samples, "Python sample")
        note = f"lines of host time and launch calls are an estimate from {seen_in} in idle time"
        parts.append(Text(note, "dim"))
    return parts


def _places(analysis: Analysis, waits: Waits, view: View) -> tuple[list[str], Array, Array]:
    """(label, cause, ns) of every place that idle time is charged to."""
    rows, cause, ns = by(waits.idle, view.by, "cause")
    if view.by == "path":
        return _folded_places(analysis, view, rows, cause, ns)
    if view.by == "step":
        index = analysis.steps.index
        found = [f"step {int(index[row])}" if row >= 0 else "(no step)" for row in rows.tolist()]
        return found, cause, ns
    streams, ids = waits.streams, analysis.attribution.trace.devices.id
    pairs = zip(streams.stream[rows].tolist(), streams.device[rows].tolist(), strict=True)
    found = [
        f"stream {stream}" + (f" of GPU {int(ids[device])}" if 0 <= device < len(ids) else "")
        for stream, device in pairs
    ]
    return found, cause, ns


def _folded_places(
    analysis: Analysis, view: View, rows: Array, cause: Array, ns: Array
) -> tuple[list[str], Array, Array]:
    """Idle time by path, siblings that are alike together."""
    folds = view.fold(analysis)
    group = np.append(folds.first, -1)[rows]
    key, code = np.unique(np.stack([group, cause.astype(np.int64)]), axis=1, return_inverse=True)
    found = [folds.counted_text(int(row)) if row >= 0 else "(no range)" for row in key[0]]
    return found, key[1], sums(code.ravel(), ns, key.shape[1])


def syncs(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Where the host waits for the GPU."""
    waits = analysis.waits
    if waits is None or not len(waits.syncs.sites):
        return None
    found = waits.syncs
    sites, labels = found.sites.take(np.arange(min(view.rows(), len(found.sites)))), found.labels
    folds = view.fold(analysis)
    calls, places = [], []
    own = zip(
        analysis.attribution.trace.texts(sites.call), _texts(labels, sites.operator),
        _texts(labels, sites.source), waits.sync_places(), sites.path.tolist(), strict=False,
    )  # fmt: skip
    for call, operator, source, begun, path in own:
        calls.append(f"{operator} ({call})" if operator else str(call))
        around = folds.text(path) if path >= 0 else "–"
        places.append(source or (line_in_words(begun) if begun else around))
    out = table(
        width,
        names("Waits for the GPU", calls),
        numbers("Calls", [f"{count:,}" for count in sites.count.tolist()], 2),
        numbers("Wait", list(map(time, sites.wait_ns.tolist()))),
        numbers("GPU idle", list(map(time, sites.bubble_ns.tolist())), 1),
        names("Where", places),
    )
    return Group(out, *more(len(found.sites) - len(sites), "call site"))


def _texts(labels: pa.Array, rows: Array) -> list[str | None]:
    """Texts of rows of labels, None for -1."""
    texts = labels.to_pylist()
    return [texts[row] if row >= 0 else None for row in rows.tolist()]


def overlap(analysis: Analysis, view: View, width: int) -> RenderableType | None:
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
    text = Text.assemble(("Overlap: ", "bold"))
    parts = sorted(shares.items(), key=lambda item: -item[1])
    most = view.rows(_COMBINATIONS)
    rest = sum(ns for _, ns in parts[most:])
    parts = [*parts[:most], *([("others", rest)] if rest else [])]
    text.append(" + ".join(f"{name} {percent(ns, busy)}" for name, ns in parts))
    if waits.exposed_comm_ns:
        text.append(f"; exposed communication {time(waits.exposed_comm_ns)}")
    return text


def meetings(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Collectives by process, where several processes of the capture meet in them."""
    waits, attribution = analysis.waits, analysis.attribution
    if waits is None or waits.met is None:
        return None
    found, trace = waits.met.by_process(attribution), attribution.trace
    shown = found.take(np.arange(min(len(found), view.rows())))
    ids = [int(trace.devices.id[row]) if row >= 0 else None for row in shown.device.tolist()]
    folds = view.fold(analysis)
    out = table(
        width,
        words("Process", [str(pid) for pid in trace.processes.pid[shown.process].tolist()]),
        numbers("GPU", ["–" if one is None else str(one) for one in ids], 3),
        numbers("Collectives", [f"{count:,}" for count in shown.count.tolist()], 2),
        numbers("Waiting", list(map(time, shown.wait_ns.tolist()))),
        numbers("Transfer", list(map(time, shown.transfer_ns.tolist()))),
        numbers("Last", [f"{last:,}" for last in shown.last.tolist()]),
        names("Where", [folds.text(row) if row >= 0 else "–" for row in shown.path.tolist()], 1),
    )
    return Group(out, *more(len(found) - len(shown), "row"))


def host(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Python and dispatch between launches, where the GPU waited for it.

    By Python frame where there are any, else by operator, else by range.
    """
    waits = analysis.waits
    if waits is None or not len(waits.host):
        return None
    folds = view.fold(analysis)
    labels, rows = by_label(waits.host, _host_labels(analysis, waits, folds))
    idle_somewhere = int(np.count_nonzero(rows.idle_ns))
    if not idle_somewhere:
        return None
    shown = rows.take(np.arange(min(idle_somewhere, view.rows())))
    inside = [folds.text(path) if path >= 0 else "(no range)" for path in shown.path.tolist()]
    out = table(
        width,
        names("Host work", labels[: len(shown)]),
        numbers("Launches", [f"{count:,}" for count in shown.launches.tolist()], 3),
        numbers("Host", list(map(time, shown.host_ns.tolist())), 1),
        numbers("GPU idle", list(map(time, shown.idle_ns.tolist()))),
        names("Mostly in", inside, 2),
    )
    return Group(out, *more(idle_somewhere - len(shown), "place"))


def _host_labels(analysis: Analysis, waits: Waits, folds: Folds) -> list[str]:
    """What to call the host work of each row."""
    table_, lines = waits.host, waits.line_labels
    operators = waits.operators.of(table_.path)
    found = zip(table_.line.tolist(), operators, table_.path.tolist(), strict=True)
    return [
        lines[line]
        if line >= 0
        else operator or (folds.name(int(folds.first[path])) if path >= 0 else "(no range)")
        for line, operator, path in found
    ]
