"""``nvprobe doctor``: what works here, what does not, and what mends it."""

from __future__ import annotations

import json

import click

from nvprobe.cli.settings import Settings, common_options

__all__ = ["command"]

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "absent": None}


@click.command(name="doctor")
@common_options
@click.pass_context
def command(ctx: click.Context, /) -> None:
    """Check nsys, nvtx, torch, driver and permissions.

    Exit code 1 where neither nsys nor torch.profiler can record here.
    """
    from nvprobe.launch.doctor import examine, is_usable, summary, to_json

    settings = ctx.ensure_object(Settings)
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
