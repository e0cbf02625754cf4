"""``nvprobe facts``."""

from __future__ import annotations

import click

from nvprobe.cli.files import deliver, spare_inputs
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options


@click.command("facts")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=INPUT)
@output_options
@common_options
@click.pass_obj
def command(settings: Settings, /, inputs: tuple[str, ...]) -> None:
    """Print what an analysis says as JSON of bounded size.

    For programs that read: verdict, findings with evidence and saving, heaviest paths and kernels,
    idle time, and what cannot be said and why, schema nvprobe.facts/1 (docs/facts.md). A run is
    whatever "nvprobe analyze" takes, or an analysis in JSON.
    """
    from nvprobe.cli.documents import document_of
    from nvprobe.report.facts import encode, facts

    spare_inputs(settings.output, list(inputs))
    found = facts(document_of(settings, inputs))
    deliver(settings, encode(found).decode())
