"""The report of a job as one HTML file: no script, no network, drawn once in SVG.

A strip of the ranks by how late each is, a map of ranks by steps, and a typical step with all ranks
on one clock. Texts are escaped; the style sheet is that of the report of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvprobe.analysis.verdict import duration
from nvprobe.ranks.document import Document
from nvprobe.ranks.job import Job
from nvprobe.ranks.late_findings import by_replay
from nvprobe.report.page.still import escaped, panel, still_page, tile
from nvprobe.trace import Column

MOST_ROWS = 256
"""Rows of the map and bars of the strip; beyond, a row is the latest of several ranks."""
MOST_LANES = 24
WIDTH = 1200
_ROW, _LANE, _LEFT = 14, 22, 84
_COLD, _HOT = (226, 236, 245), (197, 66, 0)
_WAITING, _TRANSFER, _STEP = "#e69f00", "#0072b2", "#8a9aa8"
_OWN_STYLE = """
table { border-collapse: collapse; } td, th { padding: 3px 14px 3px 0; text-align: right; }
td:first-child, th:first-child { text-align: left; }
"""


def page(job: Job, found: Document) -> str:
    """The file."""
    parts = [_head(found), _findings(found), _strip(found), _maps(found), _timeline(job, found)]
    return still_page(f"{len(found.ranks)} ranks", parts, _OWN_STYLE)


def _head(found: Document) -> str:
    clock = duration(found.clock.error_ns) if found.clock.error_ns is not None else "not aligned"
    waited = sum(one.wait_ns or 0 for one in found.ranks)
    total = sum(one.communication_ns for one in found.ranks)
    tiles = (
        ("Ranks", f"{len(found.ranks)}" + (f" of {found.world_size}" if found.world_size else "")),
        ("Steps", f"{len(found.steps)}"),
        ("Error of the clocks", clock),
        ("Waiting in collectives", f"{waited / total:.0%}" if total else "–"),
    )
    shown = "".join(tile(name, value) for name, value in tiles)
    lines = [*found.warnings, *(f"{one.source} was left out: {one.error}" for one in found.failed)]
    notes = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f'<h1>{escaped(found.verdict)}</h1><div class="tiles">{shown}</div>' + (
        f'<ul class="warnings">{notes}</ul>' if notes else ""
    )


def _findings(found: Document) -> str:
    items = []
    for one in found.findings:
        saves = f" saves at most {duration(one.saves_ns)} per step" if one.saves_ns else ""
        lines = [line for line in (by_replay(one), *one.try_) if line]
        advice = "".join(f"<li>{escaped(line)}</li>" for line in lines)
        items.append(
            f'<li class="finding"><div class="finding-head"><span class="chip {one.severity}">'
            f"{one.severity}</span><h3>{escaped(one.title)}</h3>"
            f'<span class="saves">{escaped(saves)}</span></div><ul>{advice}</ul></li>'
        )
    if not items:
        return ""
    inside = "".join(items)
    return f'<section class="panel"><h2>Findings</h2><ol class="findings">{inside}</ol></section>'


def _binned(found: Document, values: Column) -> tuple[Column, list[str]]:
    """At most `MOST_ROWS` rows of a table with one row per rank: the greatest of each bin."""
    numbers = [one.rank for one in found.ranks]
    size = -(-len(numbers) // MOST_ROWS)
    first = range(0, len(numbers), size)
    rows = np.array([values[low : low + size].max(axis=0) for low in first])
    ends = [min(low + size, len(numbers)) - 1 for low in first]
    names = [
        f"rank {numbers[low]}" if low == end else f"ranks {numbers[low]}–{numbers[end]}"
        for low, end in zip(first, ends, strict=True)
    ]
    return rows, names


def _strip(found: Document) -> str:
    """One bar a rank: the delay it adds in a typical step."""
    late = np.array([one.late_ns or 0 for one in found.ranks], np.int64)
    if not late.any():
        return ""
    values, names = _binned(found, late)
    wide, most = max(3.0, min(40.0, (WIDTH - 20) / len(values))), int(values.max())
    bars = "".join(
        f'<rect x="{row * wide:.1f}" y="{100 - 96 * value / most:.1f}" width="{wide - 1:.1f}" '
        f'height="{96 * value / most:.1f}" fill="{_color(value / most)}"><title>'
        f"{escaped(name)}: {duration(int(value))}</title></rect>"
        for row, (value, name) in enumerate(zip(values.tolist(), names, strict=True))
    )
    every = max(1, round(20 / wide))
    labels = "".join(
        f'<text x="{row * wide + 1:.1f}" y="113">{name.rpartition(" ")[2]}</text>'
        for row, name in enumerate(names)
        if row % every == 0
    )
    inside = _svg(len(values) * wide, 118, bars + labels, "Delay that each rank adds")
    caption = f"delay that each rank adds per step, at most {duration(most)}"
    return panel("Who is late", inside, caption)


def _maps(found: Document) -> str:
    """Ranks by steps: added delays, and waiting."""
    if not found.steps:
        return ""
    out = []
    for title, name, caption in (
        ("Delays by rank and step", "late_ns", "what each rank adds"),
        ("Waiting by rank and step", "wait_ns", "what each rank waits in collectives"),
    ):
        columns = [[value or 0 for value in getattr(step, name)] for step in found.steps]
        values, names = _binned(found, np.array(columns, np.int64).T)
        if values.any():
            indices = [step.index for step in found.steps]
            out.append(panel(title, _map(values, names, indices), _scale(caption, values)))
    return "\n".join(out)


def _scale(caption: str, values: Column) -> str:
    return f"{caption}; the darkest is {duration(int(values.max()))}"


def _map(values: Column, names: Sequence[str], steps: Sequence[int]) -> str:
    wide, most = max(4.0, min(60.0, (WIDTH - _LEFT) / len(steps))), int(values.max())
    cells = [
        f'<rect x="{_LEFT + column * wide:.1f}" y="{row * _ROW}" width="{wide - 1:.1f}" '
        f'height="{_ROW - 1}" fill="{_color(value / most)}"><title>{escaped(names[row])}, step '
        f"{steps[column]}: {duration(value)}</title></rect>"
        for row, line in enumerate(values.tolist())
        for column, value in enumerate(line)
    ]
    labels = [
        f'<text x="0" y="{row * _ROW + 10}">{escaped(name)}</text>'
        for row, name in enumerate(names)
    ]
    bottom = len(names) * _ROW
    every = max(1, round(48 / wide))
    labels += [
        f'<text x="{_LEFT + column * wide:.1f}" y="{bottom + 12}">{index}</text>'
        for column, index in enumerate(steps)
        if column % every == 0
    ]
    return _svg(_LEFT + len(steps) * wide, bottom + 16, "".join(cells + labels), "Ranks by steps")


def _timeline(job: Job, found: Document) -> str:
    """A typical step of all ranks on one clock: where each waits and where data move."""
    chosen = _typical_step(job)
    if chosen is None:
        return ""
    members, met = job.members, job.delays.arrivals
    rows = np.flatnonzero(members.step == chosen)
    lanes = _lanes(job, np.unique(members.rank[rows]))
    rows = rows[np.isin(members.rank[rows], lanes)]
    begin, end = int(members.start[rows].min()), int(members.end[rows].max())
    scale = (WIDTH - _LEFT) / max(end - begin, 1)
    shapes = [
        f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{lane * _LANE + 8}" y2="{lane * _LANE + 8}" '
        f'stroke="{_STEP}"/><text x="0" y="{lane * _LANE + 12}">rank {job.numbers[rank]}</text>'
        for lane, rank in enumerate(lanes)
    ]
    place = {rank: lane for lane, rank in enumerate(lanes)}
    for row in rows.tolist():
        start, wait = int(members.start[row]) - begin, int(met.wait_ns[row])
        top = place[int(members.rank[row])] * _LANE
        kind = job.texts[int(members.kind[row])]
        words = f"{kind}: waits {duration(wait)}, transfer {duration(int(met.transfer_ns[row]))}"
        shapes += [
            f'<rect x="{_LEFT + left * scale:.2f}" y="{top}" width="{max(long * scale, 0.4):.2f}" '
            f'height="16" fill="{color}"><title>{escaped(words)}</title></rect>'
            for left, long, color in (
                (start, wait, _WAITING),
                (start + wait, int(met.transfer_ns[row]), _TRANSFER),
            )
            if long
        ]
    left_out = "" if len(lanes) == len(job.numbers) else f"; {len(lanes)} ranks are shown"
    caption = (
        f"{duration(end - begin)} from the first arrival to the last end; orange: waiting, blue: "
        f"transfer{left_out}"
    )
    inside = _svg(WIDTH, len(lanes) * _LANE, "".join(shapes), "A step of all ranks")
    return panel(f"Step {chosen}, all ranks on one clock", inside, caption)


def _typical_step(job: Job) -> int | None:
    """The step whose greatest delay is the median of all, without the first."""
    if not job.delays.by_steps or not len(job.members):
        return None
    most = job.delays.by_step.max(axis=0)
    rows = np.arange(len(most))[1:] if len(most) > 2 else np.arange(len(most))
    order = rows[np.argsort(most[rows], kind="stable")]
    return int(job.delays.steps[order[len(order) // 2]])


def _lanes(job: Job, ranks: Column) -> list[int]:
    """Rows of at most `MOST_LANES` ranks: stragglers, and others evenly from all."""
    late = [one.rank for one, _ in job.stragglers if one.rank in ranks][: MOST_LANES // 2]
    others = np.setdiff1d(ranks, late)
    few = min(MOST_LANES - len(late), len(others))
    taken = others[np.linspace(0, len(others) - 1, few).astype(np.int64)] if few else others[:0]
    return sorted({*late, *taken.tolist()})


def _svg(width: float, height: float, inside: str, label: str) -> str:
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}">'
        f"{inside}</svg>"
    )


def _color(share: float) -> str:
    """From cold to hot."""
    parts = (round(low + (high - low) * share**0.7) for low, high in zip(_COLD, _HOT, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)
