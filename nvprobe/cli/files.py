"""Writing a result: never over something silently, never over an input, never half."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from nvprobe.cli.settings import Settings
from nvprobe.errors import InputError, UsageError

_LONGEST_PATH = 4096
_MOST_AT_ONCE = 2**24


def deliver(settings: Settings, text: str, next_command: str | None = None) -> None:
    """Print ``text``, or write it where ``--output`` says and report that with what to do next.

    JSON is UTF-8 whatever the terminal takes.
    """
    if settings.output is None:
        ended = text if text.endswith("\n") else f"{text}\n"
        if settings.as_json:
            _print_whole(ended.encode())
        else:
            click.echo(ended, nl=False)
        return
    write_file(settings, settings.output, lambda path: _write_text(path, text))
    if next_command:
        settings.note(f"next: {next_command}")


def _print_whole(data: bytes) -> None:
    """Write all of it, or raise the error of the system.

    One call writes 2 GiB at most where nothing buffers stdout (``python -u``), and says so quietly.
    """
    sys.stdout.flush()
    stdout = sys.stdout.buffer
    left = memoryview(data)
    while left:
        left = left[stdout.write(left[:_MOST_AT_ONCE]) or 0 :]
    stdout.flush()


def in_words(path: Path | str) -> str:
    """A path, or a command with one, for a message: whole, and free of what drives a terminal."""
    from nvprobe.readers.input_errors import printable

    return printable(str(path), _LONGEST_PATH)


def spare_inputs(target: Path | None, inputs: Iterable[str]) -> None:
    """UsageError where ``target`` is one of the inputs: not even ``--force`` writes over those."""
    if target is None:
        return
    for given in inputs:
        with contextlib.suppress(OSError):
            if target.samefile(given):
                raise UsageError(f"{in_words(target)} is an input; choose another output")


def as_typed(error: InputError, inputs: Iterable[str]) -> InputError:
    """The error with the path as it was typed.

    Readers name files alone, so that what is handed on names no folder of this machine.
    """
    from nvprobe.readers.input_errors import shown

    name, colon, fault = str(error).partition(": ")
    for given in inputs:
        if colon and name == shown(given):
            return InputError(f"{in_words(given)}: {fault}")
        if colon and (inside := Path(given, name)).exists():
            return InputError(f"{in_words(inside)}: {fault}")
    return error


def not_written(path: Path, fault: object) -> InputError:
    """The error for a file or folder that cannot be made."""
    return InputError(f"cannot write {in_words(path)}: {fault}; choose another output")


def write_file(settings: Settings, path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file beside ``path``, then put it in place and say so.

    A pipe or a device (``/dev/stdout``) is written to, never replaced. Raises UsageError where the
    file exists and ``--force`` is not given, InputError where the folder cannot be written to.
    """
    if path.exists() and not path.is_file():
        try:
            write(path)
        except OSError as error:
            raise not_written(path, error.strerror) from error
        return
    if path.exists() and not settings.force:
        raise UsageError(f"{in_words(path)} exists already; --force overwrites it")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise not_written(path, error.strerror) from error
    finally:
        with contextlib.suppress(OSError):  # a read-only file system refuses this, too
            partial.unlink(missing_ok=True)
    settings.note(f"Wrote {in_words(path)}")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
