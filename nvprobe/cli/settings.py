"""What every command shares: its common options, settings from pyproject.toml, output files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from nvprobe.errors import UsageError

__all__ = [
    "Settings",
    "common_options",
    "default_map",
    "name_variables",
    "options_of",
    "output_options",
]

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


def default_map(
    command: click.Command, commands: Callable[[], list[click.Command]]
) -> dict[str, Any]:
    """Defaults of ``command`` by parameter, from ``[tool.nvprobe]`` of the nearest pyproject.toml.

    Keys are options as they are typed, without the dashes in front. ``commands`` gives all
    commands, and is asked only where there is a table. Raises UsageError for a key that no command
    takes, which is a slip of the pen.
    """
    path = _pyproject(Path.cwd())
    table = {} if path is None else _read_table(path)
    if path is None or not table:
        return {}
    name = str(command.name)
    _check(path.name, table, {str(other.name): other for other in commands()})
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    known = options_of(command)
    wanted = {_spelled(key): value for key, value in {**shared, **table.get(name, {})}.items()}
    return {
        str(known[flag].name): _value(known[flag], value)
        for flag, value in wanted.items()
        if flag in known
    }


def _check(file: str, table: dict[str, Any], commands: dict[str, click.Command]) -> None:
    """UsageError for a command that is none, and for a key that is no option where it stands."""
    for name, given in table.items():
        own = isinstance(given, dict)
        if own and name not in commands:
            raise UsageError(f"{file}: [tool.nvprobe.{name}] is not a command of nvprobe")
        takers = [commands[name]] if own else list(commands.values())
        for key in given if own else [name]:
            if not any(_spelled(key) in options_of(one) for one in takers):
                section = f"tool.nvprobe.{name}" if own else "tool.nvprobe"
                raise UsageError(f"{file}: [{section}] has {key!r}, which is no option there")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command as they are typed, without the dashes: ``sync-lines``."""
    return {
        flag.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
        for flag in option.opts
        if flag.startswith("--")
    }


def name_variables(command: click.Command) -> None:
    """Let each option be set by the variable of its name: ``--hide`` by NVPROBE_ANALYZE_HIDE."""
    for flag, option in options_of(command).items():
        option.envvar = f"NVPROBE_{command.name}_{flag}".replace("-", "_").upper()


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _value(option: click.Option, value: Any) -> Any:
    """A value as click takes it: of an option that may be repeated, a list."""
    return [value] if option.multiple and not isinstance(value, list) else value


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
