"""What every command shares: its common options and where its output goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


INPUT = click.Path(readable=False)
"""A capture or a run. What is wrong with it its reader says, in one line."""


@dataclass
class Settings:
    """The common options of one run; the context object of every command."""

    verbosity: int = 0
    """-1 quiet, 0, 1 more notes, 2 tracebacks."""
    as_json: bool = False
    output: Path | None = None
    force: bool = False
    interrupted: bool = False
    """Whether Ctrl-C came."""

    @property
    def quiet(self) -> bool:
        """Whether notes and progress are off."""
        return self.verbosity < 0

    def note(self, text: str) -> None:
        """A line for the person at the terminal, on stderr."""
        if not self.quiet:
            click.echo(text, err=True)

    def note_all(self, texts: Iterable[str]) -> None:
        """Lines about the run itself, on stderr."""
        for text in texts:
            self.note(f"nvprobe: {text}")


def common_options(function: F) -> F:
    """``--json``, ``-q`` and ``-v``; the command finds them in its context object."""
    for option in (_verbose, _quiet, _json):
        function = option(function)
    return function


def output_options(function: F) -> F:
    """``-o`` and ``-f`` for commands that write a file."""
    return _force(_output(function))


def _into(field: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[..., None]:
    """A callback that keeps an option's value in the settings."""

    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        """Set the field where the option was given."""
        if value is not None and value is not False and value != 0:
            setattr(ctx.find_object(Settings), field, convert(value))

    return keep


_json = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_into("as_json"),
    help="Write JSON to stdout (notes go to stderr).",
)
_quiet = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_into("verbosity", lambda _: -1),
    help="No notes, no progress.",
)
_verbose = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_into("verbosity"),
    help="More notes; -vv shows tracebacks.",
)
_output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    expose_value=False,
    callback=_into("output"),
    help="Write to this file instead of stdout.",
)
_force = click.option(
    "-f",
    "--force",
    is_flag=True,
    expose_value=False,
    callback=_into("force"),
    help="Overwrite an existing file.",
)
