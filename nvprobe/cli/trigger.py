"""``nvprobe trigger``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from nvprobe.cli.settings import Settings, common_options


@click.command("trigger")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@common_options
@click.pass_obj
def command(settings: Settings, /, run: Path) -> None:
    """Open or close the window of a running launch.

    RUN is the folder of a launch with --trigger that runs in another shell. The first trigger
    begins the recording, the next one ends it.
    """
    from nvprobe.launch.trigger import trigger

    state = trigger(run)
    if settings.as_json:
        click.echo(json.dumps({"state": state}))
        return
    click.echo({"recording": "Recording.", "closed": "Recorded."}.get(state, state))
