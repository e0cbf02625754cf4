"""``nvprobe analyze``."""

from __future__ import annotations

from typing import Any

import click

from nvprobe.cli.settings import Settings, common_options, output_options
from nvprobe.cli.view import show, tree_view, view_options

__all__ = ["command"]


@click.command("analyze")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=click.Path())
@view_options
@click.option("--process", type=int, metavar="PID", help="Only this process, as if it were alone.")
@click.option(
    "--index",
    "index_rules",
    multiple=True,
    metavar="REGEX",
    help="Take a number off range names: groups (?P<name>...) and (?P<index>...) (repeatable).",
)
@output_options
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    inputs: tuple[str, ...],
    process: int | None,
    index_rules: tuple[str, ...],
    **view: Any,
) -> None:
    """Say where the GPU time of a capture goes, and why.

    INPUT is an nsys export (.sqlite) or a torch.profiler trace (.json, .json.gz), told apart by
    content. Nothing beside the input is written, and the input is never changed.
    """
    from nvprobe.cli.pipeline import analysis_of

    chosen = tree_view(**view)
    analysis = analysis_of(settings, inputs, index_rules=index_rules, process=process)
    show(settings, analysis, chosen, "nvprobe analyze --help shows what else to look at")
