"""``nvprobe ranks``."""

from __future__ import annotations

import io
import shutil

import click

from nvprobe.cli.files import deliver, spare_inputs
from nvprobe.cli.settings import Settings, common_options, output_options

__all__ = ["command"]


@click.command("ranks")
@click.argument("inputs", nargs=-1, required=True, metavar="DIR...", type=click.Path())
@output_options
@common_options
@click.pass_obj
def command(settings: Settings, /, inputs: tuple[str, ...]) -> None:
    """Compare all ranks of a job: who is late, and whether waiting or the network costs time.

    DIR holds the run folders, nsys exports or reports, or torch traces of a job; several folders,
    and files, can be given. One job at a time.
    """
    from nvprobe.ranks.discovery import discover
    from nvprobe.ranks.document import encode
    from nvprobe.ranks.job import reduced
    from nvprobe.ranks.map import summarize
    from nvprobe.ranks.roster import one_job

    spare_inputs(settings.output, list(inputs))
    sources = discover(inputs)
    one_job(sources)
    found = reduced([one for source in sources for one in summarize(source)])
    if settings.as_json:
        deliver(settings, encode(found))
        return
    from nvprobe.ranks.console import print_job
    from nvprobe.report.console import console_for

    page = io.StringIO()
    print_job(console_for(page, shutil.get_terminal_size((100, 24)).columns), found)
    deliver(settings, page.getvalue())
