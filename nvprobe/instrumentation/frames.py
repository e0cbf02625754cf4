"""Frames of nvprobe that stand between the program and what it calls: warnings look past them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

UNCOUNTED = " (as importlib._bootstrap)"
"""Behind the file's name in the code of such a frame."""


def uncounted(function: Function) -> Function:
    """Let warnings of what this function calls name the program's line, as they would without it.

    ``warnings.warn(…, stacklevel=2)`` counts frames, except those of files with ``importlib`` and
    ``_bootstrap`` in their names (Python 3.3 to 3.14), by which an import's warning finds its line.
    A warning from C that names the innermost Python frame names this one all the same.
    """
    if isinstance(function, FunctionType):
        code = function.__code__
        if not code.co_filename.endswith(UNCOUNTED):
            function.__code__ = code.replace(co_filename=code.co_filename + UNCOUNTED)
    return function
