"""``nvprobe doctor``: what works here, what does not, and how to fix it."""

from __future__ import annotations

import json

import click

from nvprobe.cli.settings import Settings, common_options

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "absent": None}


@click.command(name="doctor")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure what each record of a profiler costs on this machine (needs a GPU; a minute).",
)
@common_options
@click.pass_context
def command(ctx: click.Context, /, *, measure: bool) -> None:
    """Check nsys, nvtx, torch, driver and permissions.

    Exit code 1 where neither nsys nor torch.profiler can record here. What --measure finds is kept
    for the launches that follow on this machine.
    """
    from nvprobe.launch.doctor import examine, is_usable, summary, to_json

    settings = ctx.ensure_object(Settings)
    if measure:
        _measure(settings)
        return
    checks = examine()
    if settings.as_json:
        click.echo(json.dumps(to_json(checks), indent=1))
    else:
        for check in checks:
            state = click.style(f"{check.state:>8}", fg=_COLOURS[check.state])
            click.echo(f"{state}  {check.name}: {check.found}")
            if check.remedy:
                click.echo(f"{'':>8}    {check.remedy}")
        click.echo(f"\n{summary(checks)}")
    ctx.exit(0 if is_usable(checks) else 1)


def _measure(settings: Settings) -> None:
    """Run the loops and show what a record costs under each profiler."""
    from nvprobe.errors import ToolError
    from nvprobe.launch.calibration import measure
    from nvprobe.nsys import find_nsys

    try:
        nsys = find_nsys()
    except ToolError as error:
        settings.note(f"{error}: only torch.profiler is measured")
        nsys = None
    document = measure(nsys)
    if settings.as_json:
        click.echo(json.dumps(document, indent=1))
        return
    for backend in ("nsys", "torch"):
        for name, cost in document.get(backend, {}).items():
            click.echo(
                f"{backend:>8}  {name.removesuffix('_ns').replace('_', ' ')}: {cost:,.0f} ns"
            )
    click.echo("\nnvprobe launch writes these into run.json from now on")
