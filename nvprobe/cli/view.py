"""Options that choose what of a report is shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from nvprobe.analysis.result import Analysis
    from nvprobe.cli.settings import Settings
    from nvprobe.report.console.view import View

F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("user", "step", "phase", "module", "graph", "collective", "operator", "library")
SORTS = (
    *("gpu", "self", "busy", "span", "wall", "self-wall", "idle", "sync", "calls", "ops"),
    "order",
)
SECTIONS = (
    *("findings", "ranges", "idle", "waits", "host", "critical", "modules", "kernels", "operators"),
    *("copies", "overlap", "steps", "graphs", "memory", "missing"),
)
BREAKDOWNS = ("cause", "path", "line", "stream", "step")


class Sections(click.ParamType):  # type: ignore[type-arg]
    """Names of sections with commas between them."""

    name = "sections"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """The names, each once."""
        if isinstance(value, tuple):
            return value
        given = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
        for name in given:
            if name not in SECTIONS:
                near = difflib.get_close_matches(name, SECTIONS, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SECTIONS)}"
                self.fail(f"{name!r} is not a section; {hint}", param, ctx)
        return given


_OPTIONS = (
    click.option(
        "--show",
        type=Sections(),
        metavar="SECTION,...",
        help=f"Sections instead of the first screen: {', '.join(SECTIONS)}.",
    ),
    click.option(
        "--all",
        "everything",
        is_flag=True,
        help="Every section, and a whole run with its start, warm-up and end.",
    ),
    click.option("--depth", type=click.IntRange(1), help="Levels of the range tree."),
    click.option(
        "--kind",
        "kinds",
        multiple=True,
        type=click.Choice(KINDS),
        help="Only ranges of this kind, and what is above them (repeatable).",
    ),
    click.option(
        "--hide",
        "hidden",
        multiple=True,
        type=click.Choice((*KINDS, "none")),
        default=("library",),
        show_default=True,
        help="No ranges of this kind; their time stays in what is above (repeatable).",
    ),
    click.option(
        "--filter",
        "pattern",
        metavar="REGEX",
        help="Only paths that match, and what is above them.",
    ),
    click.option(
        "--sort",
        type=click.Choice(SORTS),
        default="gpu",
        show_default=True,
        help="Order of ranges; the greatest are kept.",
    ),
    click.option(
        "--top",
        type=click.IntRange(1),
        metavar="N",
        help="Rows of each table.  [default: 5 on the first screen, 40 ranges, 10 of others]",
    ),
    click.option("--unfold", is_flag=True, help="Layers that are alike each in a row of its own."),
    click.option(
        "--by",
        type=click.Choice(BREAKDOWNS),
        default="path",
        show_default=True,
        help="Break idle time down by this.",
    ),
)


def view_options(function: F) -> F:
    """``--depth`` to ``--by``; the command passes them to :func:`tree_view`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def tree_view(
    *,
    depth: int | None,
    kinds: tuple[str, ...],
    hidden: tuple[str, ...],
    pattern: str | None,
    sort: str,
    top: int | None,
    unfold: bool,
    by: str,
    show: tuple[str, ...] | None,
    everything: bool,
) -> View:
    """The view that the options ask for. Raises BadParameter for a filter that is not a regex."""
    from nvprobe.attribution.model import Kind
    from nvprobe.report.console.view import View

    try:
        compiled = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        message = f"not a regular expression: {error}"
        raise click.BadParameter(message, param_hint="--filter") from error
    return View(
        depth=depth,
        kinds=frozenset(Kind[kind.upper()] for kind in kinds),
        hidden=frozenset(Kind[kind.upper()] for kind in hidden if kind != "none"),
        pattern=compiled,
        sort=sort,
        top=top,
        unfold=unfold,
        by=by,
        show=SECTIONS if everything else show or (),
    )


def keep_json(analysis: Analysis, path: Path) -> None:
    """Write the JSON of an analysis, over an earlier one."""
    from nvprobe.cli.files import write_file
    from nvprobe.cli.settings import Settings
    from nvprobe.report.document import to_json

    text = to_json(analysis) + "\n"
    unasked = Settings(verbosity=-1, force=True)
    write_file(unasked, path, lambda partial: _write(partial, text))


def keep_page(settings: Settings, analysis: Analysis, path: Path) -> None:
    """Write the page of an analysis, over an earlier one; whatever goes wrong is but a note."""
    from nvprobe.cli.files import in_words, write_file
    from nvprobe.cli.settings import Settings
    from nvprobe.report.page import render

    unasked = Settings(verbosity=-1, force=True)
    try:
        text = render(analysis)
        write_file(unasked, path, lambda partial: _write(partial, text))
    except Exception as error:  # the analysis stands without its picture
        settings.note(f"no {in_words(path.name)}: {type(error).__name__}: {in_words(str(error))}")


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def show(settings: Settings, analysis: Analysis, view: View, next_command: str) -> None:
    """Print the report or its JSON, or write it where ``--output`` says: a page where .html."""
    from nvprobe.cli.files import deliver

    if settings.output is not None and settings.output.suffix == ".html":
        from nvprobe.report.page import render

        deliver(settings, render(analysis), "open it in a browser; it works offline")
        return
    if settings.as_json or (settings.output is not None and settings.output.suffix == ".json"):
        from nvprobe.report.document import to_json

        deliver(settings, to_json(analysis), next_command)
        return
    import io
    import sys

    from nvprobe.report.console.terminal import console_for, print_report

    if settings.output is None:
        print_report(console_for(sys.stdout), analysis, view)
        return
    text = io.StringIO()
    print_report(console_for(text, width=120), analysis, view)
    deliver(settings, text.getvalue(), next_command)
