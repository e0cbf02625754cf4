"""The report for a person at a terminal: one screen, and sections for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TextIO

from rich.console import Console, Group, RenderableType

from nvprobe.analysis.result import Analysis
from nvprobe.report.console.advice import first_findings
from nvprobe.report.console.inference import phases
from nvprobe.report.console.overview import (
    heading,
    heaviest,
    idlest,
    ledger,
    look_next,
    steps_in_a_line,
    title,
)
from nvprobe.report.console.sections import SECTIONS
from nvprobe.report.console.view import ALL, View

_PIPE = 120
"""Columns of a file or pipe, which has no width of its own."""


class _Plain(Console):
    """A console that leaves it to the command what a reader that has gone away means."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process here, with exit code 1."""
        raise BrokenPipeError


def console_for(file: TextIO, width: int | None = None) -> Console:
    """A console that writes no markup, no emoji and no highlighting of its own into texts.

    With NO_COLOR set it writes no escape code at all.
    """
    if width is None and not file.isatty() and not os.environ.get("COLUMNS"):
        width = _PIPE
    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return _Plain(
        file=file, width=width, color_system=colors, markup=False, highlight=False, emoji=False
    )


def print_report(console: Console, analysis: Analysis, view: View) -> None:
    """Print what has something to show, an empty line between its parts."""
    view = replace(view, folds=view.fold(analysis))
    console.print(title(analysis), overflow="ellipsis")
    for part in _parts(analysis, view, console.width):
        console.print()
        console.print(part)


def _parts(analysis: Analysis, view: View, width: int) -> Iterator[RenderableType]:
    """The head of every report, then the first screen or the sections asked for."""
    lines: list[RenderableType | None] = [heading(analysis, view, width)]
    if view.show in ((), ALL):
        lines += [part(analysis, view, width) for part in (steps_in_a_line, ledger)]
    yield Group(*(line for line in lines if line is not None))
    first = (phases, first_findings, heaviest, idlest, look_next)
    sections = [part for name in view.show for part in SECTIONS[name]]
    for section in sections or first:
        shown = section(analysis, view, width)
        if shown is not None:
            yield shown
