"""A comparison as one HTML file: both sides beside each other, without script and network.

Every figure is one of the document (``model.py``). Colors repeat what the texts say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from nvprobe.analysis.verdict import duration
from nvprobe.attribution.model import shown_path
from nvprobe.comparison.icicle import LEGEND, color, icicles
from nvprobe.comparison.model import Comparison, Counter, Part, PathChange, StepComparison, Time
from nvprobe.comparison.words import (
    COLUMNS,
    STATUS,
    amount_in_words,
    bounds,
    change,
    count,
    counted,
    noise_in_words,
    parts_shown,
    path_names,
    profiler_share,
    share,
    spent,
    step_name,
    what_in_words,
)
from nvprobe.report.page.still import escaped, panel, still_page, tile

MOST_ROWS = 500
"""Rows of each table; the JSON has all."""
MOST_BARS = 12
_FIGURE = '<td class="figure'
_FALL = 300
"""Width of the bars of the parts."""


def page(found: Comparison) -> str:
    """The file."""
    style = (files(__package__) / "page.css").read_text("utf-8")
    return still_page("comparison", _sections(found), style)


def _sections(found: Comparison) -> Iterator[str]:
    yield _head(found)
    yield _gate(found)
    for step in found.steps:
        yield _times(step, found)
        yield _parts(step)
        yield _icicles(step)
        yield _paths(step)
        yield _kernels(step)
    if not found.steps:
        yield _counts("Counts of the capture", found.counters)
    yield _graphs(found)
    yield _findings(found)
    yield _differences(found)
    yield _runs(found)


def _head(found: Comparison) -> str:
    notes = [f"times cannot be compared: {one.what}: {one.before or '–'} before, "
             f"{one.after or '–'} after" for one in found.differences if one.decides]  # fmt: skip
    notes += [f"only one side has these steps: {name}" for name in found.unmatched]
    warnings = "".join(f"<li>{escaped(line)}</li>" for line in notes)
    tiles = ""
    if found.steps:
        step = found.steps[0]
        shown = step.step
        tiles = "".join((
            tile("Before", duration(shown.before_ns), _compared(step.steps[0])),
            tile("After", duration(shown.after_ns), _compared(step.steps[1])),
            tile("Change", f"{change(shown.change_ns)} ({share(shown)})",
                 f"95% bounds: {bounds(shown)}"),
        ))  # fmt: skip
    return f"<h1>{escaped(found.verdict)}</h1>" + (
        f'<ul class="warnings">{warnings}</ul>' if warnings else ""
    ) + (f'<div class="tiles">{tiles}</div>' if tiles else "")  # fmt: skip


def _compared(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'} compared"


def _gate(found: Comparison) -> str:
    if found.gate is None:
        return ""
    order = {"fail": 0, "cannot tell": 1, "pass": 2}
    checks = sorted(found.gate.checks, key=lambda one: order[one.outcome])
    rows = [(_text(one.outcome, "short"), _text(one.line), _text(one.limit)) for one in checks]
    return panel(
        f"Gate: {found.gate.outcome}", _table("Checks", ("Outcome", "Check", "Limit"), rows)
    )


def _times(step: StepComparison, found: Comparison) -> str:
    rows = [(_text("as profiled"), *_time(step.step))]
    if step.unprofiled is not None:
        name = f"without the profiler ({step.unprofiled_source})"
        rows.append((_text(name), *_time(step.unprofiled)))
    for one in step.amounts:
        name = amount_in_words(one.name)
        rows.append((_text(name.strip(), "indented" if name != one.name else ""), *_time(one)))
    caption = "" if found.noise is None else f"{noise_in_words(found)}."
    times = panel(f"{step_name(step)}: times", _table("Times", ("Time", *COLUMNS), rows), caption)
    return times + _counts(f"{step_name(step)}: counts", [*step.counters, *found.counters])


def _counts(title: str, counters: Sequence[Counter]) -> str:
    rows = [
        (_text(one.name), _text("per step" if one.per_step else "capture"),
         _figure(count(one.before)), _figure(count(one.after)),
         _figure(counted(one), "strong" if one.changed else ""))
        for one in counters if one.before or one.after
    ]  # fmt: skip
    heads = ("Count", "Of", "Before", "After", "Change")
    return panel(title, _table("Counts", heads, rows)) if rows else ""


def _parts(step: StepComparison) -> str:
    """The difference as a waterfall: each bar starts where the one above it ends."""
    shown = parts_shown(step, MOST_BARS)
    bars = _falls(shown)
    rows = [
        (_text(shown_path(part.path or "(no range)")),
         _text(what_in_words(part.what), "short"),
         *_time(part)[:3], f"<td>{bar}</td>")
        for part, bar in zip(shown, bars, strict=True)
    ]  # fmt: skip
    total = step.step
    rows.append((_text("the step", "strong"), _text(""), *_time(total)[:3], "<td></td>"))
    heads = ("Path", "What", "Before", "After", "Change", "From before (top) to after (bottom)")
    caption = (
        f"All parts add up to the difference of the step, {change(total.change_ns)}; "
        "pale bars: not beyond the noise."
    )
    caption += f" {profiler_share(step) or ''}".rstrip()
    title = f"{step_name(step)}: the difference in parts"
    return panel(title, _table("Parts", heads, rows), caption)


def _falls(parts: Sequence[Part]) -> Iterator[str]:
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.change_ns)
    low = min(ends)
    scale = (_FALL - 2) / max(max(ends) - low, 1)
    for part, begin in zip(parts, ends, strict=False):
        left = (min(begin, begin + part.change_ns) - low) * scale
        if not part.change_ns:
            yield ""
            continue
        kind = f"{'r' if part.change_ns > 0 else 'b'}{3 if part.changed else 2}"
        yield (
            f'<svg class="fall {kind}" viewBox="0 0 {_FALL} 14" aria-hidden="true"><rect '
            f'x="{left:.1f}" y="1" width="{max(abs(part.change_ns) * scale, 0.8):.1f}" '
            'height="12"/></svg>'
        )


def _icicles(step: StepComparison) -> str:
    drawn = icicles(step)
    if drawn is None:
        return ""
    keys = "".join(
        f'<li class="key"><svg class="{kind}" aria-hidden="true"><rect width="15" height="12"/>'
        f"</svg>{escaped(words)}</li>"
        for kind, words in LEGEND
    )
    inside = f'<ul class="keys-list">{keys}</ul>' + "".join(
        f"<h3>{side}</h3>{drawing}"
        for side, drawing in zip(("Before", "After"), drawn, strict=True)
    )
    caption = "One scale for both; the width of a box is the time of a step, with what is below it."
    if step.step.bounds_ns is None:
        caption += " No bounds are known from so few steps, so no change has a color."
    title = f"{step_name(step)}: {spent(step).replace('Host', 'host')} by path"
    return panel(title, inside, caption)


def _paths(step: StepComparison) -> str:
    rows = [_path(one) for one in step.paths if one.gpu is not None or one.gpu_ns is not None]
    if not rows:
        return ""
    return panel(
        f"{step_name(step)}: paths", _table("Paths", (f"{spent(step)} of", "", *COLUMNS), rows)
    )


def _path(one: PathChange) -> tuple[str, ...]:
    names = shown_path(path_names(one) if one.after is None or one.before else one.after)
    status = _text("" if one.status == "same" else one.status, "short")
    if one.gpu is not None:
        return (_text(names), status, *_time(one.gpu))
    time = _figure(duration(one.gpu_ns or 0), exact=one.gpu_ns)
    none = _figure("–")
    return (_text(names), status, *((none, time) if one.before is None else (time, none)),
            *3 * (none,))  # fmt: skip


def _kernels(step: StepComparison) -> str:
    if not step.kernels:
        return ""
    rows = [(_text(one.name), *_time(one)) for one in step.kernels]
    return panel(f"{step_name(step)}: kernels", _table("Kernels", ("GPU time of", *COLUMNS), rows))


def _graphs(found: Comparison) -> str:
    if not found.graphs:
        return ""
    rows = [
        (_text(f"{one.id} {one.phase}"), _text(one.status, "short"),
         *(_figure("–" if ns is None else duration(ns), exact=ns)
           for ns in (*one.gpu_ns, *one.host_ns)),
         *(_figure("–" if ops is None else count(ops)) for ops in one.ops),
         _text(" → ".join(dict.fromkeys(why for why in one.break_reason if why))))
        for one in found.graphs
    ]  # fmt: skip
    heads = ("Graph", "", "GPU before", "GPU after", "Host before", "Host after", "Ops before",
             "Ops after", "Ends because")  # fmt: skip
    return panel("Compiled graphs", _table("Compiled graphs", heads, rows))


def _findings(found: Comparison) -> str:
    if not found.findings:
        return ""
    style = {"same": "", "gone": "better", "new": "worse"}
    rows = [
        (_text(STATUS[one.status], f"short {style[one.status]}"), _text(one.before or "–"),
         _text(one.after or "–"))
        for one in found.findings
    ]  # fmt: skip
    return panel("Findings", _table("Findings", ("", "Before", "After"), rows))


def _differences(found: Comparison) -> str:
    if not found.differences:
        return ""
    rows = [(_text(one.what, "worse" if one.decides else ""), _text(one.before or "–"),
             _text(one.after or "–")) for one in found.differences]  # fmt: skip
    return panel("Not the same", _table("Differences", ("What", "Before", "After"), rows))


def _runs(found: Comparison) -> str:
    rows = [
        (
            _text(side, "short"),
            _text(", ".join(run.files)),
            _figure(str(run.steps)),
            _text(run.verdict),
        )
        for side, runs in (("before", found.before), ("after", found.after))
        for run in runs
    ]
    return panel("Runs", _table("Runs", ("Side", "Files", "Steps", "Verdict"), rows))


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as markup; ``name`` is for those who cannot see it."""
    first = rows[0] if rows else [""] * len(heads)
    head = "".join(
        f'<th scope="col" class="{"figure" if cell.startswith(_FIGURE) else "text"}">'
        f"{escaped(one)}</th>"
        for one, cell in zip(heads, first, strict=True)
    )
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows[:MOST_ROWS])
    more = len(rows) - MOST_ROWS
    note = f'<p class="more">{more} more in the JSON (-o file.json)</p>' if more > 0 else ""
    tall = " tall" if len(rows) > 20 else ""
    return (f'<div class="table-scroller{tall}" tabindex="0" role="region" aria-label="{name}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
            f"</div>{note}")  # fmt: skip


def _text(text: str, style: str = "") -> str:
    return f'<td class="text {style}">{escaped(text)}</td>'


def _figure(text: str, style: str = "", exact: int | None = None) -> str:
    title = "" if exact is None else f' title="{exact:,} ns"'
    return f'{_FIGURE} {style}"{title}>{escaped(text)}</td>'


def _time(time: Time) -> tuple[str, str, str, str, str]:
    """Before, after, change, share, bounds."""
    style = {"r": "worse", "b": "better", "n": ""}[color(time)[0]]
    return (
        _figure(duration(time.before_ns), exact=time.before_ns),
        _figure(duration(time.after_ns), exact=time.after_ns),
        _figure(change(time.change_ns), style, time.change_ns),
        _figure(share(time), style),
        _figure(bounds(time)),
    )
