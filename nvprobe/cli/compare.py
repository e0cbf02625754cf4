"""``nvprobe compare``."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.files import deliver, spare_inputs, write_file
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options
from nvprobe.errors import UsageError

if TYPE_CHECKING:
    from nvprobe.comparison.model import Comparison


_SIDES = ("--before", "--after")


class Sides(click.Command):
    """``--before A B --after C D``: each of the two options takes all words up to the next."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option for each of its words."""
        out: list[str] = []
        side = ""
        for word in args:
            if word.startswith("-") and word != "-":
                side = word if word in _SIDES else ""
                out += [] if side else [word]
            else:
                out += [side, word] if side else [word]
        return super().parse_args(ctx, out)


class Share(click.ParamType):  # type: ignore[type-arg]
    """``5%`` or ``0.05``."""

    name = "share"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """As a fraction."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", str(value).strip())
        if match is None:
            self.fail(f"{value!r}: give a share, as in 5%", param, ctx)
        return float(match[1]) / (100 if match[2] else 1)


@click.command("compare", cls=Sides)
@click.argument("runs", nargs=-1, metavar="[BEFORE AFTER]", type=INPUT)
@click.option("--before", multiple=True, metavar="RUN...", type=INPUT, help="Runs before.")
@click.option("--after", multiple=True, metavar="RUN...", type=INPUT, help="Runs after.")
@click.option(
    "--fail-on-regression",
    "most",
    type=Share(),
    metavar="SHARE",
    help="Exit 3 where a step or the GPU time of a path takes longer by more than this.",
)
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write 25 lines of Markdown at most, for a step summary.",
)
@output_options
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    runs: tuple[str, ...],
    before: tuple[str, ...],
    after: tuple[str, ...],
    most: float | None,
    markdown: Path | None,
) -> int:
    """Say what differs between runs, why, and whether it is more than noise.

    A run is whatever "nvprobe analyze" takes, an analysis in JSON, or a folder with several runs.
    Give one run per side, or several: compare --before A1 A2 --after B1 B2. With
    --fail-on-regression or budgets in [tool.nvprobe.budget] the exit code is 0, 3 (a budget is
    exceeded), or 4 (undecided). docs/compare.md says what is compared with what, and how to use
    it in CI.
    """
    from nvprobe.cli.budgets import EXIT_CODES, budgets_of
    from nvprobe.cli.documents import documents_of
    from nvprobe.comparison import compare
    from nvprobe.comparison.budget import check_budgets
    from nvprobe.comparison.gate import gated, regressions

    sides = _sides(runs, before, after)
    for target in (settings.output, markdown):
        spare_inputs(target, [*sides[0], *sides[1]])
    budgets = budgets_of()
    documents = [documents_of(settings, side) for side in sides]
    found = compare(*documents)
    if most is not None or budgets:
        checks = [] if most is None else regressions(found, most)
        found = gated(found, [*check_budgets(documents[1], budgets), *checks])
    if markdown is not None:
        _write_markdown(settings, markdown, found)
    _show(settings, found)
    return 0 if found.gate is None else EXIT_CODES[found.gate.outcome]


def _sides(
    runs: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    if len(runs) == 2 and not before and not after:
        return runs[:1], runs[1:]
    if before and after and not runs:
        return before, after
    raise UsageError(
        "give two runs, or several per side: nvprobe compare --before A1 A2 --after B1 B2"
    )


def _write_markdown(settings: Settings, path: Path, found: Comparison) -> None:
    from nvprobe.comparison.markdown import markdown

    text = markdown(found)

    def write(partial: Path) -> None:
        """The text as a file."""
        partial.write_text(text, "utf-8")

    write_file(settings, path, write)


def _show(settings: Settings, found: Comparison) -> None:
    if settings.output is not None and settings.output.suffix == ".html":
        from nvprobe.comparison.page import page

        deliver(settings, page(found), "open it in a browser; it works offline")
        return
    from nvprobe.comparison.console import sections
    from nvprobe.comparison.model import encode
    from nvprobe.report.console.terminal import console_for

    if settings.as_json or (settings.output is not None and settings.output.suffix == ".json"):
        deliver(settings, encode(found))
        return
    text = io.StringIO()
    console = console_for(sys.stdout) if settings.output is None else console_for(text, 120)
    for number, section in enumerate(sections(found)):
        if number:
            console.print()
        console.print(section)
    if settings.output is not None:
        deliver(settings, text.getvalue())
