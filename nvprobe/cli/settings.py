"""What every command shares: its common options, settings from pyproject.toml, output files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from nvprobe.errors import UsageError

__all__ = ["Settings", "common_options", "default_map", "output_options"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The common options of one run; the context object of every command."""

    verbosity: int = 0
    """-1 quiet, 0, 1 more notes, 2 tracebacks."""
    as_json: bool = False
    output: Path | None = None
    force: bool = False

    @property
    def quiet(self) -> bool:
        """Whether notes and progress are off."""
        return self.verbosity < 0

    def note(self, text: str) -> None:
        """A line for the person at the terminal, on stderr."""
        if not self.quiet:
            click.echo(text, err=True)


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


def default_map(commands: Iterable[str]) -> dict[str, Any]:
    """Defaults of all commands from ``[tool.nvprobe]`` of the nearest pyproject.toml."""
    path = _pyproject(Path.cwd())
    if path is None:
        return {}
    table = _read_table(path)
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = {key: value for key, value in table.items() if isinstance(value, dict)}
    unknown = sorted(set(own) - set(commands))
    if unknown:
        raise UsageError(f"{path.name}: [tool.nvprobe.{unknown[0]}] is not a command of nvprobe")
    return {name: _named({**shared, **own.get(name, {})}) for name in commands}


def _pyproject(folder: Path) -> Path | None:
    """The nearest pyproject.toml here or above."""
    candidates = (parent / "pyproject.toml" for parent in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def _read_table(path: Path) -> dict[str, Any]:
    text = path.read_text("utf-8", errors="replace")
    if "tool.nvprobe" not in text:  # most projects have none: do not parse their file
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text).get("tool", {}).get("nvprobe", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: {error}") from error
    if not isinstance(table, dict):
        raise UsageError(f"{path.name}: tool.nvprobe must be a table")
    return table


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Option names as click knows them: ``sync-lines`` is ``sync_lines``."""
    return {key.replace("-", "_"): value for key, value in options.items()}
