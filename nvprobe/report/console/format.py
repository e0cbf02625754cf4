"""Numbers and untrusted texts as they stand on a terminal."""

from __future__ import annotations

import re

from rich.text import Text

from nvprobe.analysis.code_places import FUNCTION, LINE, Line
from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.verdict import duration, short_path
from nvprobe.readers.input_errors import printable

__all__ = [
    "ROLE_WORDS",
    "kernel_name",
    "left_cut",
    "line_in_words",
    "path_cut",
    "percent",
    "plain",
    "size",
    "time",
]

_LONGEST = 400
_NOISE = re.compile(r"\bvoid |\(anonymous namespace\)::|\b(?:at::native|at_cuda_detail|cutlass)::")

ROLE_WORDS = {
    "line": "at",
    "function": "in the function at",
    "entered": "range entered at",
    "called": "called at",
    "from": "from",
    "defined": "function defined at",
    "loop": "in the loop at",
    "made": "made by the function at",
    "made_apart": "made in workers by the function at",
}
"""What a line is called, by its role (`nvprobe.analysis.code_places`)."""
_LINE = re.compile(r"(?:.*/)?(?P<file>[^/]+:\d+)(?P<function> \(.*\))$")
_WRAPPER = re.compile(r"^Kernel2?<(\w+)>.*")


def plain(text: str | None, style: str = "") -> Text:
    """Untrusted text: no markup, no control characters, one line."""
    return Text(printable(text or "(unnamed)", _LONGEST), style=style, no_wrap=True)


def left_cut(text: str | None, width: int) -> Text:
    """A line of code in so many columns: it loses folders first, then the function's name."""
    whole = printable(text, _LONGEST) if text else "–"
    line = _LINE.match(whole)
    if line and len(whole) > width < len(line["file"]) + len(line["function"]) + 1:
        whole = whole.removesuffix(line["function"])
    cut = whole if len(whole) <= width else "…" + whole[1 - width :]
    return Text(cut, no_wrap=True)


def line_in_words(line: Line | None, width: int) -> Text:
    """A line and what it is, ``called at train.py:31``; a line that was running is just named."""
    if line is None:
        return Text("(no line known)")
    words = "" if line.role in (LINE, FUNCTION) else f"{ROLE_WORDS.get(line.role, 'near')} "
    return Text(words) + left_cut(line.source, max(10, width - len(words)))


def path_cut(path: str | None, width: int) -> Text:
    """A path of ranges in so many columns, by whole names where they fit."""
    return Text(printable(short_path(path, width), _LONGEST) if path else "–", no_wrap=True)


def kernel_name(name: str | None) -> Text:
    """A demangled kernel name without what all of them have: namespaces, CUTLASS's wrapper."""
    return plain(_WRAPPER.sub(r"\1", _NOISE.sub("", name)) if name else None)


def time(ns: int) -> str:
    """``23.4 ms``; a dash where it cannot be known."""
    return "–" if ns == UNKNOWN else duration(ns)


def percent(part: int, whole: int) -> str:
    """``45.1 %`` of the whole, a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "–"


def size(number: int) -> str:
    """Bytes with three significant digits: ``1.25 GB``."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= scale:
            value = number / scale
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{number} B"
