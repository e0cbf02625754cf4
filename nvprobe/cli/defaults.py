"""Defaults of options from ``[tool.nvprobe]`` of the project and from ``NVPROBE_*`` variables.

Both act without being typed, and the file may be someone else's. So they only choose what is
measured or shown (`ALLOWED`): never a file to read or write, ``--force``, arguments for another
program, or what is run. docs/security.md has the threat.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from nvprobe.errors import UsageError

_SHOWN_OR_MEASURED = """
quiet verbose json show all top unfold depth kind hide filter sort by
process device thread domain range steps time step-name index python-stacks
backend warmup delay duration annotate modules kernels-in-graphs graphs-whole gpu-metrics
sync-lines no-sync-lines call-chains python-backtraces python-samples memory-usage os-calls
budget fail-on-regression
with-torch-trace export ranks accurate no-analyze nsys-timeout nsys-start-timeout
"""
ALLOWED = frozenset(_SHOWN_OR_MEASURED.split())
"""Options that may have a default outside the command line, as they are typed."""

_DOCUMENTED = "NVPROBE_CACHE NVPROBE_CACHE_SIZE NVPROBE_NSYS"
_FROM_LAUNCH = """
NVPROBE_DEPTH NVPROBE_EMITTER NVPROBE_INPROCESS NVPROBE_INSTRUMENT NVPROBE_JOB NVPROBE_MODULES
NVPROBE_SIDECAR NVPROBE_SYNC_LINES
"""
_FOR_TESTS = "NVPROBE_SHARED NVPROBE_WRITE_SNAPSHOTS"
OWN_VARIABLES = frozenset(f"{_DOCUMENTED} {_FROM_LAUNCH} {_FOR_TESTS}".split())
"""Variables that do not set an option."""

BUDGET = "budget"
"""The table ``[tool.nvprobe.budget]``: no options, but what ``compare`` and ``analyze`` check."""
_ROOT_MARKS = (".git", ".hg", "pyproject.toml")


def check_variables(commands: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
    """UsageError for an ``NVPROBE_*`` variable that has no meaning, or sets what it may not."""
    known = {_variable(command, flag): flag for command in commands for flag in ALLOWED}
    for name in sorted(environ):
        if not name.startswith("NVPROBE_") or name in known or name in OWN_VARIABLES:
            continue
        near = difflib.get_close_matches(name, [*known, *OWN_VARIABLES], 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"{name} is not a variable of nvprobe, or sets an option that only the command line "
            f"may set{hint}"
        )


def name_variables(command: click.Command) -> None:
    """Let each allowed option be set by its variable: ``--hide`` by NVPROBE_ANALYZE_HIDE."""
    for flag, option in options_of(command).items():
        if flag in ALLOWED:
            option.envvar = _variable(str(command.name), flag)


def default_map(
    command: click.Command,
    commands: Callable[[], list[click.Command]],
    note: Callable[[str], object],
) -> dict[str, Any]:
    """Defaults of ``command`` by parameter, from ``[tool.nvprobe]`` of the project.

    Keys are options as they are typed, without the dashes in front. ``commands`` gives all
    commands, and is asked only where there is a table; ``note`` takes the line that says which
    file applied, or why one did not. Raises UsageError for a key that no command takes, or that
    only the command line may set.
    """
    shown, table = project_table(note)
    if not table:
        return {}
    name = str(command.name)
    _check(shown, table, {str(other.name): other for other in commands()})
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    known = options_of(command)
    wanted = {_spelled(key): value for key, value in {**shared, **table.get(name, {})}.items()}
    used = [flag for flag in wanted if flag in known]
    if used:
        note(f"settings from {shown}: {', '.join(used)}")
    return {str(known[flag].name): _value(known[flag], wanted[flag]) for flag in used}


def project_table(note: Callable[[str], object]) -> tuple[str, dict[str, Any]]:
    """(file, its ``[tool.nvprobe]``); empty where there is none, or none to be trusted."""
    path = _project_file(Path.cwd())
    text = "" if path is None else path.read_text("utf-8", errors="replace")
    if path is None or "tool.nvprobe" not in text:  # most projects have none: do not parse theirs
        return "", {}
    shown = os.path.relpath(path)
    if not _is_trusted(path):
        note(f"{shown} is not read: it belongs to another user, or others may write to it")
        return "", {}
    return shown, _table(shown, text)


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command as they are typed, without the dashes: ``sync-lines``."""
    return {
        flag.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
        for flag in option.opts
        if flag.startswith("--")
    }


def _variable(command: str, flag: str) -> str:
    return f"NVPROBE_{command}_{flag}".replace("-", "_").upper()


def _check(file: str, table: dict[str, Any], commands: dict[str, click.Command]) -> None:
    """UsageError for an unknown command, and for a key that may not stand where it does."""
    for name, given in table.items():
        if name == BUDGET:
            continue
        own = isinstance(given, dict)
        if own and name not in commands:
            raise UsageError(f"{file}: [tool.nvprobe.{name}] is not a command of nvprobe")
        takers = [commands[name]] if own else list(commands.values())
        section = f"tool.nvprobe.{name}" if own else "tool.nvprobe"
        for key in given if own else [name]:
            flag = _spelled(key)
            if not any(flag in options_of(one) for one in takers):
                raise UsageError(f"{file}: [{section}] has {key!r}, which is not an option there")
            if flag not in ALLOWED:
                raise UsageError(
                    f"{file}: [{section}] has {key!r}, which only the command line may set"
                )


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _value(option: click.Option, value: Any) -> Any:
    """A value as click takes it: of an option that may be repeated, a list."""
    return [value] if option.multiple and not isinstance(value, list) else value


def _project_file(folder: Path) -> Path | None:
    """The pyproject.toml of the project around ``folder``.

    The project ends at the nearest folder with a pyproject.toml or a repository in it, and does
    not reach above the home directory.
    """
    home = Path.home()
    for here in (folder, *folder.parents):
        if any((here / mark).exists() for mark in _ROOT_MARKS):
            path = here / "pyproject.toml"
            return path if path.is_file() else None
        if here == home:
            return None
    return None


def _is_trusted(path: Path) -> bool:
    """Whether nobody but the user could have written a file: the user's own, not for others."""
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH


def _table(file: str, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text).get("tool", {}).get("nvprobe", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: {error}") from error
    if not isinstance(table, dict):
        raise UsageError(f"{file}: tool.nvprobe must be a table")
    return table
