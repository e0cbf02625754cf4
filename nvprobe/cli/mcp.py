"""``nvprobe mcp``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("mcp")
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Runs below this folder may be read (repeatable).",
)
def command(roots: tuple[Path, ...]) -> None:
    """Serve runs to a model over stdin and stdout, read-only.

    Speaks the Model Context Protocol and needs its SDK: pip install 'mcp>=2.0.1'.
    docs/facts.md says more.
    """
    from nvprobe.integrations.mcp_server import server

    server(roots).run("stdio")
