"""The exception tree. Each class carries the exit code that the command line ends with.

* NvprobeError
  - InputError: a report, trace or folder cannot be used
  - UsageError: options that do not fit together
  - ToolError: nsys (or another program nvprobe drives) is absent or failed
  - ProgramNotFound: the program to launch is not there

A message is one line: it names the thing, says what is wrong and what to do about it.
"""

from __future__ import annotations

import os
import re
from typing import ClassVar

_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s:\"',()/]+/)+")


def without_folders(text: str) -> str:
    """A message fit for files that are handed on: of absolute paths the file's name alone.

    Python's own errors name them: ``cannot import name 'a' from 'b' (/home/ann/lib/b.py)``.
    """
    return _FOLDERS.sub("", text)


class NvprobeError(Exception):
    """Base of everything nvprobe raises on purpose; ``str(error)`` is fit to show to a user."""

    exit_code: ClassVar[int] = 1


class InputError(NvprobeError):
    """A report, trace or folder cannot be used."""


class UsageError(NvprobeError):
    """Options or arguments that do not fit together."""

    exit_code = 2


class ToolError(NvprobeError):
    """A program nvprobe drives (nsys, its importer) is absent, too old or failed."""


class ProgramNotFound(NvprobeError):
    """The program to launch is not there; the exit code is a shell's."""

    exit_code = 127


def check_path(name: str, given: object) -> None:
    """Raise `UsageError` where an argument is not a path."""
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"{name}={given!r}: give a path, as text or a Path")
