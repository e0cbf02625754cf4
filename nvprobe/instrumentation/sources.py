"""Source lines as they are shown to others: short, stable, without this machine's folders."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from nvprobe.instrumentation.frames import UNCOUNTED

if TYPE_CHECKING:
    from types import CodeType, FrameType

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_KEPT_FOLDERS = 2
"""Folders kept above a file that belongs to no package and lies outside the working folder."""


@lru_cache(maxsize=4096)
def short_path(path: str) -> str:
    """Shorten a path: relative to the working folder or package, else its last folders.

    ``/home/ann/proj/train.py`` run from ``/home/ann/proj`` is ``train.py``; an installed file is
    ``torch/nn/modules/linear.py``; any other file keeps its last two folders, so that no home
    folder reaches a report. ``<stdin>``, ``<ipython-input-3>`` and the like stay.
    """
    pure = PurePath(path)
    if not pure.is_absolute():
        return path if not path.startswith("..") else "/".join(pure.parts[-_KEPT_FOLDERS - 1 :])
    for position in range(len(pure.parts) - 1, 0, -1):
        if pure.parts[position] in _PACKAGE_FOLDERS:
            return "/".join(pure.parts[position + 1 :])
    for root in _roots():
        if pure.is_relative_to(root):
            return pure.relative_to(root).as_posix()
    return "/".join(pure.parts[1:][-_KEPT_FOLDERS - 1 :])


def _roots() -> list[PurePath]:
    """The folders that paths are shown relative to: the working folder, the standard library."""
    import os
    import sysconfig

    roots = [PurePath(sysconfig.get_path("stdlib"))]
    try:
        working = PurePath(os.getcwd())  # noqa: PTH109 - pathlib costs more to import
    except OSError:  # the working folder was removed
        return roots
    # Relative to "/" every path would be absolute again, without its slash.
    return [working, *roots] if len(working.parts) > 1 else roots


def source_line(frame: FrameType) -> str:
    """``file:line`` of a frame, shortened."""
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def code_line(code: CodeType) -> str:
    """``file:line`` where a function is defined (its first decorator, where it has any)."""
    return f"{short_path(code.co_filename)}:{code.co_firstlineno}"


@lru_cache(maxsize=4096)
def is_library(path: str) -> bool:
    """Whether a file belongs to nvprobe, torch or the plumbing between them and a user's line."""
    if path.startswith(("<frozen", _OWN_FOLDER)) or path.endswith(UNCOUNTED):
        return True
    return short_path(path).startswith(("torch/", "warnings.py", "contextlib.py", "runpy.py"))


@lru_cache(maxsize=4096)
def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package or to Python: not the program's own."""
    pure = PurePath(path)
    installed = not set(_PACKAGE_FOLDERS).isdisjoint(pure.parts)
    return installed or pure.is_relative_to(_roots()[-1]) or is_library(path)


_OWN_FOLDER = __file__.rpartition("instrumentation")[0]


def user_stack(frame: FrameType | None, depth: int) -> list[str]:
    """The innermost lines outside torch and nvprobe, innermost first.

    Where every frame is a library's, its own innermost lines are given: a wait inside torch that
    no user line caused (a thread of its own) still has a place.

    Args:
        frame: Where to begin.
        depth: How many lines, at most.

    """
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    own = [one for one in frames if not is_library(one.f_code.co_filename)]
    return [source_line(one) for one in (own or frames)[:depth]]


def main_name() -> str:
    """The program's name as shown to others: the script's, or ``-m`` module's, file name."""
    return PurePath(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
