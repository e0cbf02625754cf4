"""Names cut to a width: from their middle, and never the part that tells two of them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from nvprobe.attribution.model import shown_path

_BETWEEN = re.compile(r"(?<!\\)/")
"""A slash inside a name of a path is written with a backslash before it."""
_WORD = re.compile(r"[A-Za-z0-9]*$")
_LINE = re.compile(r"(?:.*/)?(?P<file>[^/]+:\d+)(?P<function> \(.*\))?$")


def apart(texts: Sequence[str], width: int) -> list[str]:
    """Each text in so many columns; different texts stay different where that is possible."""
    out = {text: cut(text, width) for text in texts}
    _tell_apart(out, list(out), width)
    return [shown_path(out[text]) for text in texts]


def cut(text: str, width: int) -> str:
    """A path, a line of code or a name in so many columns."""
    if cell_len(text) <= width:
        return text
    if line := _LINE.match(text):
        return _line(text, line, width)
    first, *rest = _BETWEEN.split(text)
    if not rest:
        return _name(text, width)
    leads = (f"{first}/…/", "…/") if len(rest) > 1 else (f"{first}/", "…/")
    for lead in leads if cell_len(first) * 4 <= width else leads[1:]:
        for begin in range(lead == f"{first}/…/", len(rest)):
            short = lead + "/".join(rest[begin:])
            if cell_len(short) <= width:
                return short
    return "…/" + _name(rest[-1], width - 2) if width > 8 else _name(rest[-1], width)


def _line(text: str, line: re.Match[str], width: int) -> str:
    """A line of code loses folders first, then the function's name."""
    function = line["function"] or ""
    if cell_len(line["file"] + function) + 1 > width:
        text = text.removesuffix(function)
    return text if cell_len(text) <= width else "…" + _end(text, width - 1)


def _name(text: str, width: int) -> str:
    """The begin and the end of one name; a name of a kernel says what it is at its begin."""
    end = max((width - 1) // 3, 0)
    head = set_cell_size(text, max(width - 1 - end, 0))
    return f"{head}…{_end(text, end)}"[: max(width, 0)]


def _end(text: str, width: int) -> str:
    """The last columns of a text."""
    return set_cell_size(text[::-1], width).rstrip()[::-1] if width > 0 else ""


def _tell_apart(out: dict[str, str], texts: list[str], width: int) -> None:
    """Cut those again that look the same, so that each keeps what comes after what they share."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(out[text], []).append(text)
    for same in groups.values():
        if len(same) < 2:
            continue
        pairs = zip(min(same), max(same), strict=False)
        shared = next((at for at, (a, b) in enumerate(pairs) if a != b), min(map(len, same)))
        for text in same:
            out[text] = _from(text, shared, width)
        if len({out[text] for text in same}) > 1:
            _tell_apart(out, same, width)


def _from(text: str, shared: int, width: int) -> str:
    """A cut that keeps the name, or the word, in which a text begins to differ from others."""
    third = width // 3
    begin = max((slash.end() for slash in _BETWEEN.finditer(text[:shared])), default=0)
    if shared - begin > third:
        begin = shared - len(_WORD.search(text[:shared])[0])  # type: ignore[index]
    lead = text[:begin] if begin <= third else f"{set_cell_size(text, third - 1)}…"
    if begin > third and text[begin - 1] == "/":
        lead = "…/"
    rest, left = text[begin:], width - cell_len(lead)
    if cell_len(rest) <= left:
        return lead + rest
    first, *more = _BETWEEN.split(rest)
    short = f"{first}/…/{more[-1]}" if len(more) > 1 else rest
    return lead + (short if cell_len(short) <= left else f"{set_cell_size(rest, left - 1)}…")
