"""How the readers say that an input cannot be used: one line, the file, the fault, the remedy."""

from __future__ import annotations

import os
from pathlib import Path

from nvprobe.errors import InputError
from nvprobe.limits import HOW_TO_RAISE

EXPORT_AGAIN = "export the report again: nsys export --type sqlite REPORT.nsys-rep"

_LONGEST = 120


def printable(text: str, longest: int = _LONGEST) -> str:
    r"""``text`` on one line and free of control characters, cut to ``longest`` characters.

    Control, format and unpaired surrogate characters are written as escapes (``\x1b``), so that
    a hostile file name or text cannot drive the terminal.
    """
    safe = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text[: longest + 1]
    )
    return safe if len(safe) <= longest else safe[: longest - 1] + "…"


def base_name(path: str | os.PathLike[str]) -> str:
    """The base name of ``path`` as any file can hold it: invalid UTF-8 becomes U+FFFD."""
    return os.fsencode(Path(path).name).decode("utf-8", "replace")


def shown(path: str | os.PathLike[str]) -> str:
    """The base name of ``path``, fit for a message: never the folders above it."""
    whole = Path(path)
    return printable(whole.name or whole.resolve().name or str(whole))


def counted(number: int, noun: str) -> str:
    """``1 broken event``, ``1,204 broken events``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def too_much(path: str | os.PathLike[str], fault: str) -> InputError:
    """The error for a file that asks for more than its size allows (`nvprobe.limits`)."""
    return unusable(path, fault, HOW_TO_RAISE)


def unusable(path: str | os.PathLike[str], fault: str, remedy: str) -> InputError:
    """The error for a file that cannot be read: what is wrong with it and what to do."""
    return InputError(f"{shown(path)}: {fault}; {remedy}")
