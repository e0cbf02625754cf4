"""Numbers and untrusted texts as they stand on a terminal."""

from __future__ import annotations

import re

import numpy as np

from nvprobe.analysis.code_places import FUNCTION, LINE, Line
from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.verdict import duration
from nvprobe.readers.input_errors import printable
from nvprobe.trace import Column

_LONGEST = 400
_LONGEST_NAME = 10_000
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
_WRAPPER = re.compile(r"^Kernel2?<(\w+)>.*")


def plain(text: str | None) -> str:
    """Untrusted text: no control characters, one line."""
    return printable(text or "(unnamed)", _LONGEST)


def line_in_words(line: Line | None) -> str:
    """A line and what it is, ``called at train.py:31``; a line that was running is just named."""
    if line is None:
        return "(no line known)"
    words = "" if line.role in (LINE, FUNCTION) else f"{ROLE_WORDS.get(line.role, 'near')} "
    return words + line.source


def kernel_name(name: str | None) -> str:
    """A demangled kernel name without what all of them have: namespaces, CUTLASS's wrapper."""
    short = name[:_LONGEST_NAME] if name else ""
    return _WRAPPER.sub(r"\1", _NOISE.sub("", short)) or "(unnamed)"


def time(ns: int) -> str:
    """``23.4 ms``; a dash where it cannot be known."""
    return "–" if ns == UNKNOWN else duration(ns)


def per_step(analysis: Analysis, ns: int) -> str:
    """The mean over the steps; nothing where there are none."""
    count = len(analysis.steps.shown)
    return time(round(ns / count)) if count > 1 and ns != UNKNOWN else ""


def in_steps(analysis: Analysis) -> Column:
    """Bool per path: it is a step's own; every path where no range marks the steps."""
    path = analysis.steps.path
    out = np.zeros(len(analysis.attribution.paths.parent), bool)
    out[path[path >= 0]] = True
    return out | bool((path < 0).any())


def span(low: int, high: int) -> str:
    """Two times as one reads them: ``1.16 to 2.22 ms``."""
    first, last = time(low), time(high)
    if first == last:
        return last
    same = first.rpartition(" ")[2] == last.rpartition(" ")[2]
    return f"{first.rpartition(' ')[0] if same else first} to {last}"


def of_a_step(low: float, mid: float, high: float) -> str:
    """A saving in percent: ``about 19% of a step (9 to 30%)``."""
    bounds = f"{low:.0f} to {high:.0f}%" if round(low) else f"up to {high:.0f}%"
    return f"about {mid:.0f}% of a step ({bounds})"


def percent(part: int, whole: int) -> str:
    """``45.1%`` of the whole, a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "–"


def size(number: int) -> str:
    """Bytes with three significant digits: ``1.25 GB``."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= scale:
            value = number / scale
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{number} B"
