"""Every nvprobe command line of README and docs is one that the command line accepts."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nvprobe.cli import COMMANDS, cli
from nvprobe.cli.settings import Settings
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BETWEEN = {"&&", "||", "|", ";", "&"}


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each nvprobe in the shell blocks of a page."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if block.lstrip().startswith("$ ") and not line.startswith("$ "):
                continue  # what a command printed
            yield from of_a_line(line.removeprefix("$ "))


def of_a_line(line: str) -> Iterator[list[str]]:
    """What follows each ``nvprobe`` up to a pipe or the like."""
    words = shlex.split(line, comments=True)
    while "nvprobe" in words:
        at = words.index("nvprobe")
        before, words = words[:at], words[at + 1 :]
        ends = (at for at, word in enumerate(words) if word in BETWEEN or word.startswith(">"))
        if not {"install", "cd"} & set(before):
            yield words[: next(ends, None)]


LINES = [
    pytest.param(arguments, id=f"{page.stem}: {' '.join(arguments)[:60]}")
    for page in PAGES
    for arguments in commands(page.read_text())
]


@pytest.mark.parametrize("arguments", LINES)
def test_a_command_line_is_accepted(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: value)
    accepts(cli, arguments)


def accepts(group: click.Group, arguments: list[str]) -> None:
    """Parse as click would, down to the subcommand; raises what it would show."""
    name, *rest = arguments
    if name.startswith("-"):
        assert name in {"--help", "--version"}
        return
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    if isinstance(command, click.Group):
        accepts(command, rest)
    else:
        command.make_context(name, rest, obj=Settings())


def test_there_are_command_lines_of_most_commands() -> None:
    used = {param.values[0][0] for param in LINES}
    assert set(COMMANDS) - used <= {"cache", "facts", "mcp", "redact"}
    with pytest.raises(click.UsageError):
        accepts(cli, ["analyze", "run", "--nothing"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_are_toml_and_documents_json(page: Path) -> None:
    for kind, text in re.findall(
        r"^```(toml|json)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    ):
        (tomllib.loads if kind == "toml" else json.loads)(text)
