"""``nvprobe demo``."""

from __future__ import annotations

from typing import Any

import click

from nvprobe.cli.filters import filter_options, selection_of
from nvprobe.cli.settings import Settings, common_options, output_options
from nvprobe.cli.view import show, tree_view, view_options


@click.command("demo")
@view_options
@filter_options
@output_options
@common_options
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> None:
    """Show the report of a small H200 capture that ships with nvprobe.

    Four training steps of a 3-block transformer under nsys 2025.3; most kernels were launched by
    the autograd thread. Needs no GPU, no nsys and no torch.
    """
    from nvprobe.cli.pipeline import analysis_of
    from nvprobe.demo import unpacked

    selection = selection_of(options)
    chosen = tree_view(**options)
    with unpacked() as path:
        analysis = analysis_of(settings, [str(path)], selection=selection)
    show(settings, analysis, chosen, "nvprobe analyze YOUR.sqlite")
    settings.note('\nThis was a recorded capture. For yours: "nvprobe launch train.py".')
