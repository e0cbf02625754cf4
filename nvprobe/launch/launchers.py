"""Commands that start one process a rank: torchrun, Accelerate, DeepSpeed, MPI and Slurm.

``nvprobe launch torchrun … train.py`` is turned inside out: the launcher starts one
``nvprobe launch`` a rank, so that each rank has its own nsys, its own folder, and outlives the
death of another. That is what ``torchrun … --no-python nvprobe launch train.py`` does by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvprobe.errors import UsageError
from nvprobe.launch.target import Target, resolve

_TORCHRUN_SWITCHES = frozenset(
    {
        "--standalone",
        "--no-python",
        "--no_python",
        "--run-path",
        "--run_path",
        "--use-env",
        "--use_env",
        "-m",
        "--module",
        "-h",
        "--help",
        "--virtual-local-rank",
        "--virtual_local_rank",
    }
)
"""Options of torchrun that take no value (2.6 to 2.13); all others take one."""

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_MODULE = frozenset({"-m", "--module"})
_NO_PYTHON_FORMS = frozenset({"--no-python", "--no_python"})
_NO_PYTHON = {"torchrun": "--no-python", "accelerate": "--no_python", "deepspeed": "--no_python"}
_RANK_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "srun", "prun"})
_PYTHON_WORD = re.compile(r"(python|pypy)\d*(\.\d+)*t?$")


@dataclass(frozen=True)
class Job:
    """A command that starts ranks: the launcher's own words, then the program of each rank."""

    launcher: str
    prefix: tuple[str, ...]
    """The launcher with its options, ready to be followed by any executable."""
    program: Target

    def with_inner(self, inner: Sequence[str]) -> tuple[str, ...]:
        """The launcher starting ``inner`` (an executable with arguments) on each rank."""
        return (*self.prefix, *inner)


def find_job(command: Sequence[str]) -> Job | None:
    """The job that ``command`` starts, or None where it starts a single program.

    Raises:
        UsageError: it is a launcher, but where its options end is unknown.

    """
    launcher, start = _launcher(command)
    if launcher is None:
        return None
    if launcher in _NO_PYTHON:
        return _python_launcher(launcher, command, start)
    if launcher in _RANK_STARTERS:
        return _rank_starter(launcher, command)
    return None


def _launcher(command: Sequence[str]) -> tuple[str | None, int]:
    """The launcher's name and the index of its first option."""
    name = Path(command[0]).name if command else ""
    if name == "accelerate":
        return (name, 2) if list(command[1:2]) == ["launch"] else (None, 0)
    if name == "accelerate-launch":
        return "accelerate", 1
    if name in _NO_PYTHON or name in _RANK_STARTERS:
        return name, 1
    if _PYTHON_WORD.search(name) and "-m" in command[:-1]:
        at = list(command).index("-m")
        return _MODULES.get(command[at + 1]), at + 2
    return None, 0


def _python_launcher(launcher: str, command: Sequence[str], start: int) -> Job:
    """A launcher that starts Python itself unless an option says otherwise."""
    words = list(command)
    end = _torchrun_end(words, start) if launcher == "torchrun" else _script_index(words, start)
    if end is None or end >= len(words):
        raise _unknown_end(launcher)
    options, program = words[start:end], words[end:]
    if _MODULE & set(options):
        target = replace(resolve(program, module=True), interpreter=(_python_of(words[0]),))
    elif _NO_PYTHON_FORMS & set(options):
        target = resolve(program)
    else:
        target = Target((_python_of(words[0]),), tuple(program))
    kept = [word for word in options if word not in _MODULE | _NO_PYTHON_FORMS]
    return Job(launcher, (*words[:start], *kept, _NO_PYTHON[launcher]), target)


def _python_of(launcher: str) -> str:
    """The interpreter that the launcher would use: itself, or the one of its first line."""
    if _PYTHON_WORD.search(Path(launcher).name):
        return launcher
    script = resolve([launcher])
    return script.interpreter[0] if script.is_python else sys.executable


def _torchrun_end(words: list[str], start: int) -> int | None:
    """Index of the first word that is not torchrun's: its options take a value unless listed."""
    at = start
    while at < len(words) and words[at].startswith("-"):
        alone = words[at] in _TORCHRUN_SWITCHES or "=" in words[at]
        at += 1 if alone else 2
    return at


def _script_index(words: list[str], start: int) -> int | None:
    """Index of the program where a launcher has too many options to know.

    That is the first script, or the word after ``-m`` or ``--no_python``.
    """
    for at in range(start, len(words)):
        if words[at].endswith(".py"):
            return at
        switch = words[at] in _MODULE | _NO_PYTHON_FORMS
        if switch and at + 1 < len(words) and not words[at + 1].startswith("-"):
            return at + 1
    return None


def _rank_starter(launcher: str, command: Sequence[str]) -> Job:
    """``mpirun`` and ``srun`` start any executable; the program begins at Python or a script."""
    for at, word in enumerate(command[1:], 1):
        if word.startswith("-"):
            continue
        name = Path(word).name
        if _PYTHON_WORD.search(name) or word.endswith(".py") or name == "torchrun":
            return Job(launcher, tuple(command[:at]), resolve(command[at:]))
    raise _unknown_end(launcher)


def _unknown_end(launcher: str) -> UsageError:
    return UsageError(
        f"cannot tell where the program starts in this {launcher} command: write it the other way "
        f"round, as in `{launcher} … nvprobe launch train.py`"
    )
