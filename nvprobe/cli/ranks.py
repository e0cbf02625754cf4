"""``nvprobe ranks``."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nvprobe.cli.files import deliver, spare_inputs, write_file
from nvprobe.cli.progress import stages
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options
from nvprobe.errors import InputError, UsageError

if TYPE_CHECKING:
    from nvprobe.ranks.document import Document
    from nvprobe.ranks.job import Job


@click.command("ranks")
@click.argument("inputs", nargs=-1, required=True, metavar="DIR...", type=INPUT)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that read captures; by default as many as CPUs and memory allow.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Read on a Dask cluster: address of its scheduler, as in tcp://head:8786.",
)
@click.option(
    "--summaries",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the summary of each capture is kept; of a cluster, a folder that its workers see.",
)
@click.option("--also-html", type=click.Path(path_type=Path), hidden=True)
@click.option("--also-json", type=click.Path(path_type=Path), hidden=True)
@output_options
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    inputs: tuple[str, ...],
    jobs: int | None,
    cluster: str | None,
    summaries: Path | None,
    also_json: Path | None,
    also_html: Path | None,
) -> None:
    """Compare all ranks of a job: who is late, and whether waiting or the network costs time.

    DIR holds the run folders, nsys exports or reports, or torch traces of a job; several folders,
    and files, can be given. One job at a time. What was read once is not read again. An output
    that ends in .html is a page.
    """
    spare_inputs(settings.output, list(inputs))
    if cluster is not None and summaries is None:
        raise UsageError("--cluster: give --summaries, a folder that all workers can write to")
    from nvprobe.ranks.document import encode
    from nvprobe.ranks.page import page

    job, found = _compared(settings, inputs, jobs, cluster, summaries)
    if settings.as_json:
        deliver(settings, encode(found))
        return
    if also_json is not None:  # these two: asked for by `nvprobe launch`, in its own folder
        _keep(also_json, encode(found))
    if also_html is not None:
        _keep(also_html, page(job, found))
    if settings.output is not None and settings.output.suffix == ".html":
        deliver(settings, page(job, found))
        return
    from nvprobe.ranks.console import print_job
    from nvprobe.report.console.terminal import console_for

    text = io.StringIO()
    print_job(console_for(text, shutil.get_terminal_size((100, 24)).columns), found)
    deliver(settings, text.getvalue())


def _keep(path: Path, text: str) -> None:
    """Write a file, over an earlier one, without a word."""

    def write(partial: Path) -> None:
        """All of it."""
        partial.write_text(text + "\n", encoding="utf-8")

    write_file(Settings(verbosity=-1, force=True), path, write)


def _compared(
    settings: Settings,
    inputs: tuple[str, ...],
    jobs: int | None,
    cluster: str | None,
    summaries: Path | None,
) -> tuple[Job, Document]:
    """Find the captures, summarize each, and compare them."""
    from nvprobe.ranks.discovery import discover
    from nvprobe.ranks.job import job, of_job
    from nvprobe.ranks.replays import replays
    from nvprobe.ranks.roster import one_job
    from nvprobe.ranks.run import map_locally, map_on_cluster

    sources = discover(inputs)
    one_job(sources)
    with stages(settings, len(sources) + 2) as stage:
        stage("reading captures")

        def done(number: int) -> None:
            """Show how far it is."""
            stage(f"{number:,} of {len(sources):,} captures")

        if cluster is not None and summaries is not None:
            mapped = map_on_cluster(cluster, sources, summaries.absolute(), done=done)
        else:
            mapped = map_locally(sources, summaries, jobs=jobs, done=done)
        stage("comparing ranks")
        read = [(one, result.source) for result in mapped for one in result.summaries()]
        failed = [one.failed for one in mapped if one.failed is not None]
        if not read:
            raise InputError(failed[0].error)
        compared = job([one for one, _ in read])
        replayed = replays(compared, {one.identity: source for one, source in read})
        return compared, of_job(compared, failed, replayed)
