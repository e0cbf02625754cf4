"""``nvprobe verify``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from nvprobe.cli.files import deliver, spare_inputs
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options


@click.command("verify")
@click.argument("before", metavar="RUN", type=INPUT)
@click.argument("after", metavar="RUN_FIXED", type=INPUT)
@click.option(
    "--finding",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="The finding of RUN whose change was made.",
)
@output_options
@common_options
@click.pass_obj
def command(settings: Settings, /, before: str, after: str, finding: int) -> None:
    """Say what was predicted for a finding, and what came of it in a run with the change.

    Steps are those that nvprobe launch measured without the profiler in both runs, else those of
    replays.
    """
    from nvprobe.analysis.verification import verify
    from nvprobe.cli.pipeline import steady_part
    from nvprobe.report.console.format import of_a_step, time

    spare_inputs(settings.output, [before, after])
    found = verify(steady_part([before]), steady_part([after]), finding)
    if settings.as_json:
        document = {"schema": "nvprobe.verify/1", **asdict(found), "holds": found.holds}
        deliver(settings, json.dumps(document, indent=1))
        return
    came = f"{found.saved:.0f}%" if found.saved >= 0 else f"{-found.saved:.0f}% more"
    predicted = of_a_step(found.low, found.mid, found.high)
    within = "within" if found.holds else "outside of"
    deliver(
        settings,
        f"{found.title}: predicted {predicted}, came to {came}, {within} the bounds "
        f"({time(found.before_ns)} to {time(found.after_ns)}, {found.source})",
    )
