"""Lines of hidden synchronizations from the methods of tensors that wait.

For distributed programs, where torch's sync debug mode would print warnings from threads that
Python does not know, and for what is new in later steps of a window, where a warning for each
synchronization would cost too much. These methods are replaced while the instrumentation is awake:
only what always waits, when it does. A call from C++ (``torch.unique``, an extension) is not seen.

A program that waits by the thousand pays for each passage: with the `MOST`-th wait of a step that
needs no note the methods are torch's own again until the next step.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.hooks import Hooks
from nvprobe.instrumentation.sources import is_library
from nvprobe.instrumentation.torch_hooks import hide_from_dynamo

METHODS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__")
"""Methods that wait for the value of a tensor on the GPU."""
INDEXING = ("__getitem__", "__setitem__")
"""Those wait where the index is a tensor of truth values."""

MOST = 16
"""Waits of known lines that are passed through in one step."""
MOST_NOTED = 4096
"""Instructions kept, where no step forgets them."""
MOST_RETURNS = 200
"""Steps of a process in which methods come back: types keep a cache for a thousand changes only."""

_hooks = Hooks("lines of hidden synchronizations without torch's debug mode")
_note: Callable[[str], bool] = bool
_noted: dict[tuple[int, int], CodeType] = {}
"""Instructions whose next wait needs no note. Their code is kept, so that ids stay its own."""
_passed = 0
"""Waits of this step that needed no note."""
_aside = False
"""Whether the methods are torch's own until the next step."""
_returns = 0


def begin(note: Callable[[str], bool], *, indexing: bool) -> None:
    """Call ``note("Tensor.item")`` after each call that has waited, behind one frame of ours.

    Args:
        note: Returns whether it is to be called for the next wait of the same line, too.
        indexing: Whether indexing is followed; it waits seldom, and is then slower by half a
            microsecond each time.

    """
    global _note
    _note = note
    if not _hooks.begin():
        return
    for name in METHODS:
        _hooks.replace("torch", f"Tensor.{name}", _waiting(_always), inherited=True)
    for name in INDEXING if indexing else ():
        _hooks.replace("torch", f"Tensor.{name}", _waiting(_by_mask), inherited=True)


def end() -> None:
    """Give torch its methods back."""
    global _aside
    _hooks.undo()
    _aside = False
    _noted.clear()


def again() -> None:
    """Between steps: note all lines again."""
    global _aside, _passed, _returns
    _noted.clear()
    _passed = 0
    if _aside and _returns < MOST_RETURNS:
        _aside = False
        _returns += 1
        _hooks.put_back()


def _is_known(key: tuple[int, int]) -> bool:
    """Whether this instruction needs no note; the methods go once enough did not."""
    global _aside, _passed
    if key not in _noted:
        return False
    _passed += 1
    if _passed == MOST:
        _aside = True
        _hooks.set_aside()
    return True


def _shared(code: CodeType) -> bool:
    """Whether lines of this code stand for many of the program's: torch's own."""
    return is_library(code.co_filename)


def _always(_args: tuple[Any, ...]) -> bool:
    return True


def _by_mask(args: tuple[Any, ...]) -> bool:
    index = args[0] if args else None
    return any(_is_mask(one) for one in (index if isinstance(index, tuple) else (index,)))


def _is_mask(index: Any) -> bool:
    try:
        return str(getattr(index, "dtype", "")) in ("torch.bool", "torch.uint8")
    except Exception:  # the program's own index
        return False


def _waiting(waits: Callable[[tuple[Any, ...]], bool]) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        """The replacement of one method."""
        from torch.overrides import handle_torch_function, has_torch_function_unary

        what = f"Tensor.{original.__name__}"

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            """The same, noted with its line where it has waited."""
            if compiling_module.compiling():
                return original(self, *args, **kwargs)
            if has_torch_function_unary(self):  # a subclass may know the method by its identity
                return handle_torch_function(original, (self,), self, *args, **kwargs)
            if not self.is_cuda or not waits(args):
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                frame = sys._getframe(1)
                key = id(frame.f_code), frame.f_lasti
                if not _is_known(key) and not _note(what) and not _shared(frame.f_code):
                    if len(_noted) >= MOST_NOTED:
                        _noted.clear()
                    _noted[key] = frame.f_code

        hide_from_dynamo([uncounted(method), _always, _by_mask, _is_mask, _shared, _is_known])
        return method

    return wrap
