"""GPU time by path before and after, as two icicles of one scale, colored by the change.

Red is slower and blue is faster, in three steps; gray is not beyond the noise. Boxes with a dashed
border are paths of one side alone. Each change also stands in its box as a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvprobe.analysis.verdict import duration
from nvprobe.comparison.alignment import above
from nvprobe.comparison.model import PathChange, StepComparison, Time
from nvprobe.comparison.words import change, share
from nvprobe.report.page.still import escaped

WIDTH, BOX = 1200, 22
LEAST_WIDTH = 1.5
"""Narrower boxes are left out; the table of paths has them."""
MOST_LEVELS = 24
_LETTER = 6.4
"""About the width of a letter: what goes beyond its box is cut."""
_STEPS = (0.05, 0.25)
LEGEND = (
    ("b3", "25% faster or more"), ("b2", "5 to 25% faster"), ("b1", "less than 5% faster"),
    ("n", "not beyond the noise"),
    ("r1", "less than 5% slower"), ("r2", "5 to 25% slower"), ("r3", "25% slower or more"),
    ("b1 alone", "only before"), ("r1 alone", "only after"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Box:
    """A path of one side."""

    name: str
    ns: int
    change: PathChange


def color(time: Time) -> str:
    """The class of a change: `n`, or `r` (slower) and `b` (faster) with 1 to 3."""
    if not time.changed or not time.change_ns:
        return "n"
    part = abs(time.change_ns) / time.before_ns if time.before_ns else 1.0
    return f"{'r' if time.change_ns > 0 else 'b'}{1 + sum(part >= step for step in _STEPS)}"


def icicles(step: StepComparison) -> tuple[str, str] | None:
    """The drawings before and after; None where no path has a time."""
    sides = [_boxes(step.paths, after=after) for after in (False, True)]
    tops = [sum(one.ns for one in boxes.get("", ())) for boxes in sides]
    if not max(tops):
        return None
    scale = WIDTH / max(tops)
    before, after = (_draw(boxes, scale, name)
                     for boxes, name in zip(sides, ("before", "after"), strict=True))  # fmt: skip
    return before, after


def _boxes(paths: Sequence[PathChange], *, after: bool) -> dict[str, list[_Box]]:
    """The boxes of a side by the path around them, in an order that both sides share."""
    out: dict[str, list[_Box]] = {}
    for one in sorted(paths, key=_greatest, reverse=True):
        name, time = (one.after if after else one.before), one.gpu
        ns = one.gpu_ns if time is None else time.after_ns if after else time.before_ns
        if name and ns:
            out.setdefault(above(name), []).append(_Box(name, ns, one))
    return out


def _greatest(one: PathChange) -> int:
    return max(one.gpu.before_ns, one.gpu.after_ns) if one.gpu else one.gpu_ns or 0


def _draw(boxes: dict[str, list[_Box]], scale: float, side: str) -> str:
    placed = list(_place(boxes, scale))
    height = BOX * (1 + max((level for _, level, _, _ in placed), default=0))
    drawn = "".join(_box(*one) for one in placed)
    label = f"Time by path, {side}; the table of paths has the same figures"
    return (f'<svg class="icicle" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
            f"{drawn}</svg>")  # fmt: skip


def _place(boxes: dict[str, list[_Box]], scale: float) -> Iterator[tuple[_Box, int, float, float]]:
    """Each box with its level, left edge and width; those below never reach beyond one above."""
    waiting = [("", 0, 0.0, float(WIDTH))]
    while waiting:
        around, level, left, width = waiting.pop()
        below = boxes.get(around, [])
        total = sum(one.ns for one in below) * scale
        part = min(1.0, width / total) if total else 1.0  # ops at once are counted by each
        for one in below:
            wide = one.ns * scale * part
            if wide >= LEAST_WIDTH:
                yield one, level, left, wide
                if level + 1 < MOST_LEVELS:
                    waiting.append((one.name, level + 1, left, wide))
            left += wide


def _box(one: _Box, level: int, left: float, wide: float) -> str:
    words, time = _words(one), one.change.gpu
    kind = color(time) if time else f"{'b1' if one.change.after is None else 'r1'} alone"
    text = ""
    if wide > 24:
        last = one.name.removeprefix(above(one.name)).lstrip("/").replace("\\/", "/")
        label = _fitting(last, words, int((wide - 8) / _LETTER))
        text = f'<text x="4" y="{BOX / 2 + 3}">{escaped(label)}</text>'
    title = f"{one.name}: {duration(one.ns)}" if time is None else (
        f"{one.name}: {duration(time.before_ns)} to {duration(time.after_ns)}, "
        f"{change(time.change_ns)}")  # fmt: skip
    return (
        f'<svg class="{kind}" x="{left:.2f}" y="{level * BOX}" width="{wide:.2f}" height="{BOX}">'
        f"<title>{escaped(f'{title} ({words})')}</title>"
        f'<rect x="0.5" y="0.5" width="{max(wide - 1, 0.5):.2f}" height="{BOX - 1}"/>{text}</svg>'
    )


def _words(one: _Box) -> str:
    if one.change.gpu is None:
        return "only before" if one.change.after is None else "only after"
    return share(one.change.gpu)


def _fitting(name: str, words: str, letters: int) -> str:
    """Name and change, the name cut; the name alone where there is little space."""
    if letters >= len(words) + 7:
        most = letters - len(words) - 2
        return f"{_cut(name, most)}  {words}"
    return _cut(name, letters)


def _cut(name: str, letters: int) -> str:
    """A name without its middle: siblings differ at their ends."""
    if len(name) <= letters:
        return name
    tail = max(letters - 1, 1) // 2
    return f"{name[: max(letters - 1 - tail, 1)]}…{name[len(name) - tail :]}"
