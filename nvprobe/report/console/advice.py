"""The findings of the terminal report: what to change, in the order of what it saves."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nvprobe.analysis.findings import Finding
from nvprobe.analysis.findings.model import StepSaving
from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.profiler_cost import ProfilerCost
from nvprobe.analysis.result import Analysis
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.format import ROLE_WORDS, of_a_step, percent, plain, size, span, time
from nvprobe.report.console.names import cut
from nvprobe.report.console.tables import more
from nvprobe.report.console.view import View

_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold", "info": "bold dim"}
_HOLDERS = 8
_FIRST = 5
"""Findings on the first screen."""
_ADVICE = 2
"""Lines of advice shown; all are in the JSON."""


def findings(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Each finding with its estimate and what to try."""
    return _listed(analysis, None, _ADVICE)


def first_findings(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Those that matter most: what, where, what it saves, what to try first."""
    return _listed(analysis, _FIRST, 1)


def _listed(analysis: Analysis, most: int | None, advice: int) -> RenderableType | None:
    found = analysis.findings
    if not found:
        return None
    window = int(analysis.devices.window_ns.sum())
    window = max(window, *(one.saves_ns[1] for one in found))
    shown = enumerate(found[:most], 1)
    parts = [_one(number, one, window, analysis.profiler, advice) for number, one in shown]
    left = 0 if most is None else len(found) - most
    return Group(Text("Findings", "bold"), *parts, *more(left, "finding", "--show findings"))


def memory_use(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Peak of each GPU, growth and driver calls per step, and who says so."""
    heads = [*_peaks_of_events(analysis), *_peaks_counted(analysis)]
    return Group(*(Text.assemble(("Memory", "bold"), head) for head in heads)) if heads else None


def _peaks_of_events(analysis: Analysis) -> list[str]:
    use = analysis.memory
    if use is None:
        return []
    paths, table, out = analysis.attribution.paths, use.devices, []
    for row, device in enumerate(table.device.tolist()):
        path = int(table.peak_path[row])
        more = "" if use.from_zero else " more than before the window,"
        source = "the driver's" if use.of_driver else "torch's"
        where = f" in {plain(cut(paths.shown(path), 60))}" if path >= 0 else ""
        out.append(
            f" of {_gpu(analysis, device)}: peak {size(int(table.peak_bytes[row]))}{more}"
            f"{_of(table.capacity_bytes[row])}{where}"
            f"{_grows(int(table.growth_bytes[row]), 'in the window')} ({source} events)"
        )
    return out


def _peaks_counted(analysis: Analysis) -> list[str]:
    if analysis.allocator is None:
        return []
    table, out = analysis.allocator.devices, []
    for row, device in enumerate(table.device.tolist()):
        calls_of = (table.device_allocs[row], table.device_frees[row], table.retries[row])
        taken, given, retries = ("–" if n == UNKNOWN else f"{n:,}" for n in calls_of)
        calls = (
            f"; in {counted(int(table.steps[row]), 'step')} {taken} allocations and {given} frees "
            f"of the driver, {retries} retries"
        )
        out.append(
            f" of {_gpu(analysis, device)}: peak {size(int(table.peak_bytes[row]))} in use, "
            f"{size(int(table.peak_reserved_bytes[row]))} reserved{_of(table.capacity_bytes[row])}"
            f"{_grows(int(table.growth_bytes[row]), 'per step')}{calls if table.steps[row] else ''}"
            " (allocator counters)"
        )
    return out


def _gpu(analysis: Analysis, device: int) -> str:
    return f"GPU {int(analysis.attribution.trace.devices.id[device])}" if device >= 0 else "a GPU"


def _of(capacity: int) -> str:
    return f" of {size(int(capacity))}" if capacity > 0 else ""


def _grows(growth: int, over: str) -> str:
    if growth in (0, UNKNOWN):
        return ""
    return f", {'+' if growth > 0 else '-'}{size(abs(growth))} {over}"


def memory_peak(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Who held memory at the peak of a snapshot; what is passing there can be checkpointed."""
    snapshot = analysis.snapshot
    if snapshot is None:
        return None
    lines: list[RenderableType] = []
    for peak in analysis.snapshot_peaks:
        head = f"Memory at the peak of GPU {peak.device}: {size(peak.peak_bytes)} allocated"
        lines.append(Text(head, "bold"))
        holders = peak.holders
        for row in range(min(_HOLDERS, len(holders))):
            where = snapshot.lines[int(holders.line[row])] or "origin not recorded"
            text = f"{size(int(holders.bytes[row]))}  {plain(where)}"
            passing = int(holders.passing_bytes[row])
            if passing * 2 > int(holders.bytes[row]):
                text += "  (passing: activation checkpointing would free it)"
            lines.append(Padding(Text(text), (0, 0, 0, 3)))
    return Group(*lines)


def _one(
    number: int, finding: Finding, window: int, profiler: ProfilerCost | None, advice: int
) -> RenderableType:
    title = Text(plain(finding.title), _STYLES[finding.severity])
    if where := _where(finding):
        title.append(f", {where}", "not bold")
    lines: list[RenderableType] = [title]
    if finding.step_saving is not None:
        known = advice > 1  # the first screen says so beside its steps
        lines.append(Text(f"saves {_of_step(finding.step_saving, number, known=known)}"))
    elif finding.saves_ns[1]:
        lines.append(Text(f"saves {_saving(finding.saves_ns, window, profiler)}"))
    lines += [_hanging("→", Text(plain(text))) for text in finding.advice[:advice]]
    return _hanging(f"{number}.", Group(*lines))


def _where(finding: Finding) -> str:
    """Its lines in words; those that the title names already are left out."""
    words = [
        f"{_word(finding, role)} {plain(source)}"
        for source, role in zip(finding.sources, finding.roles, strict=True)
        if not _names(finding.title, source)
    ]
    return ", ".join(words)


def _names(title: str, source: str) -> bool:
    """Whether a title has this line: ``net.py:31`` is neither ``net.py:3`` nor ``t.py:31``."""
    return re.search(rf"(?<![\w./-]){re.escape(source)}(?!\w)", title) is not None


def _word(finding: Finding, role: str) -> str:
    """What a line of a finding is called; of a function without a range, with its name."""
    function = finding.evidence.get("function")
    word = ROLE_WORDS.get(role, "near")
    if role != "called" or function in (None, "torch.compile"):
        return word
    names = [plain(one.rpartition(".")[2]) for one in str(function).split(", ")]
    return f"{' and '.join(names)} {word}"


def _hanging(mark: str, body: RenderableType) -> RenderableType:
    """``body`` beside its mark: lines that wrap begin where the first one does."""
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_row(mark, body)
    return grid


def _of_step(saving: StepSaving, number: int, *, known: bool) -> str:
    """Percent of the step first, then milliseconds of the unprofiled one, and how it is known."""
    low, high, step = saving.low, saving.high, saving.step_ns
    earlier = {2: "1", 3: "1 and 2"}.get(number, f"1 to {number - 1}")
    after = f"{saving.after_previous:.0f}% with {earlier} fixed"
    if round(saving.mid) == 0:
        return f"hardly anything by itself, {after}"
    ns = _times(round(step * low / 100) if round(low) else 0, round(step * high / 100))
    text = f"{of_a_step(low, saving.mid, high)}: {ns} of {time(step)} unprofiled"
    if known:
        text += " (measured)" if saving.calibration == "measured" else " (estimated)"
    if saving.instead_of is not None:
        return f"{text}; another way for {saving.instead_of}"
    return text if abs(saving.after_previous - saving.mid) < 1 else f"{text}; {after}"


def _saving(saves: tuple[int, int], window: int, profiler: ProfilerCost | None) -> str:
    """Milliseconds of the unprofiled step where it is known; never those that torch.profiler made.

    Without steps, and for nsys without a measurement, time of the window.
    """
    low, high = saves
    known = profiler is not None and profiler.source == "measured"
    if profiler is None or (profiler.backend == "nsys" and not known):
        return f"{_times(low, high)} of {time(window)} ({percent(high, window)} at most)"
    most = percent(high, window)
    share = f"{percent(low, window)} to {most}" if low else f"up to {most}"
    if not known:
        return f"{share} of a step"
    step = profiler.unprofiled_ns
    ns = _times(step * low // window, step * high // window)
    return f"{share} of a step: {ns} of {time(step)} unprofiled"


def _times(low: int, high: int) -> str:
    return span(low, high) if low else f"up to {time(high)}"
