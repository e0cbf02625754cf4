"""What the command after ``nvprobe launch`` starts.

Everything here works on words (and the first line of a script) and starts nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvprobe.errors import ProgramNotFound, UsageError

_INTERPRETER = re.compile(r"(python|pypy)\d*(\.\d+)*t?$")
_OPTIONS_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})


@dataclass(frozen=True)
class Target:
    """A command, taken apart.

    ``interpreter`` is Python with its own options, empty for a program that is not Python;
    ``program`` is the script (or ``-m module``, or the foreign command) with its arguments.
    """

    interpreter: tuple[str, ...]
    program: tuple[str, ...]

    @property
    def is_python(self) -> bool:
        """Whether the program is a script or module that can be run instrumented."""
        return bool(self.interpreter)

    @property
    def isolated(self) -> bool:
        """Whether Python is set to ignore its environment, and so nvprobe's start, too."""
        short = (word for word in self.interpreter[1:] if re.fullmatch("-[A-Za-z]+", word))
        return any(letter in word for word in short for letter in "IES")

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as the user would run it without nvprobe."""
        return self.interpreter + self.program

    def check(self) -> None:
        """Raise where it is certain that the program cannot start, before a profiler is begun.

        Raises:
            UsageError: the script is not there (exit code 2, as Python's).
            ProgramNotFound: the command is not there (127, as a shell's).

        """
        script = self.program[0] if self.is_python else "-"
        if not script.startswith("-") and not Path(script).exists():
            raise UsageError(f"no such file: {script}")
        command = self.argv[0]
        there = Path(command).exists() if os.sep in command else shutil.which(command)
        if not shutil.which(command) and Path(command).is_dir():
            raise UsageError(f"{command}: is a folder without __main__.py; name a script")
        if not there:
            raise ProgramNotFound(f"{command}: command not found")

    @property
    def name(self) -> str:
        """A short name for folders and titles: the script's or module's, without path or suffix."""
        module = self.program[:1] == ("-m",)
        word = self.program[1].rsplit(".", 1)[-1] if module else Path(self.program[0]).stem
        return re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-.") or "run"


def resolve(command: Sequence[str], *, module: bool = False) -> Target:
    """Take ``command`` apart; with ``module`` its first word is a module, as after ``python -m``.

    Raises:
        UsageError: there is no command, or it asks for something that cannot be profiled.

    """
    if not command:
        raise UsageError("nothing to launch: name a script, as in `nvprobe launch train.py`")
    if module:
        return Target((sys.executable,), ("-m", *command))
    first, *rest = command
    if _INTERPRETER.search(Path(first).name):
        return _python_command(first, rest)
    if first.endswith((".py", ".pyw", ".pyz")) or Path(first, "__main__.py").is_file():
        return Target((sys.executable,), tuple(command))
    return _by_shebang(command) or Target((), tuple(command))


def _python_command(interpreter: str, words: Sequence[str]) -> Target:
    """``python [options] script args``; options keep their values."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest[0]
        if re.fullmatch(r"-[A-Za-z]*[mc]", word) and not word.startswith("--"):
            return _short_program(interpreter, options, rest)
        takes = 2 if word in _OPTIONS_WITH_VALUE else 1
        options += rest[:takes]
        del rest[:takes]
        if word == "--":
            break
    if not rest or rest[0] == "-":
        raise UsageError("an interactive Python cannot be launched: name a script or `-m module`")
    return Target((interpreter, *options), tuple(rest))


def _short_program(interpreter: str, options: list[str], words: list[str]) -> Target:
    """``-m module …`` or ``-c code …``, which end Python's options; ``-um`` carries ``-u``."""
    flags, letter = words[0][:-1], words[0][-1]
    if len(words) < 2:
        raise UsageError(f"python {words[0]}: name what to run after it")
    carried = [flags] if len(flags) > 1 else []
    return Target((interpreter, *options, *carried), (f"-{letter}", *words[1:]))


def _by_shebang(command: Sequence[str]) -> Target | None:
    """A script whose first line names a Python, such as the console scripts of packages."""
    found = command[0] if os.sep in command[0] else shutil.which(command[0])
    words = _shebang(Path(found)) if found else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or not _INTERPRETER.search(Path(words[0]).name):
        return None
    return Target(tuple(words), (str(found), *command[1:]))


def _shebang(script: Path) -> list[str]:
    try:
        with script.open("rb") as file:
            line = file.readline(1024)
    except OSError:
        return []
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
