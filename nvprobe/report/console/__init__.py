"""The report for a person at a terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console

from nvprobe.analysis.result import Analysis
from nvprobe.report.console.sections import SECTIONS, title
from nvprobe.report.console.view import SORTS, TreeView

__all__ = ["SORTS", "TreeView", "console_for", "print_report"]


class _Plain(Console):
    """A console that leaves it to the command what a reader that has gone away means."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process here, with exit code 1."""
        raise BrokenPipeError


def console_for(file: TextIO, width: int | None = None) -> Console:
    """A console that writes no markup, no emoji and no highlighting of its own into texts."""
    return _Plain(
        file=file, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False
    )


def print_report(console: Console, analysis: Analysis, view: TreeView) -> None:
    """Print every section that has something to show, an empty line between them."""
    console.print(title(analysis), overflow="ellipsis")
    for section in SECTIONS:
        shown = section(analysis, view, console.width)
        if shown is not None:
            console.print()
            console.print(shown)
