"""A room with the name of its most used function can be called: ``nvprobe.load("x.sqlite")``."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


def make_callable(room: str, home: str, function: str) -> None:
    """Let a call of the package ``room`` be a call of ``function``, found in ``home`` when called.

    The function may live in a later room than the one that lends it its name, so it is looked up
    at the call and never imported with the room.
    """

    class CallableRoom(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), function)(*args, **kwargs)

    CallableRoom.__call__.__doc__ = f"See `{home}.{function}`."
    sys.modules[room].__class__ = CallableRoom
