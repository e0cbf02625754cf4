"""Hidden synchronisations: the line that makes the host wait, as an NVTX mark and in the sidecar.

torch warns of every implicit synchronisation (``item``, ``nonzero``, a boolean index, ``cpu``,
``tolist``, a truth value) in its sync debug mode, from the very frame that caused it. The warning
is taken out of Python's machinery before anybody sees it:

* the entry of one filter, for that message alone, is kept first, so that neither ``error`` raises
  nor ``ignore`` hides it; every other setting stays the program's;
* ``warnings._showwarnmsg``, which the interpreter calls with what passed the filters, hands on
  every other warning unchanged. The message never reaches ``showwarning`` or a
  ``catch_warnings(record=True)``, except where the program itself has asked for the debug mode.

Explicit ones (``torch.cuda.synchronize``, of a stream, of an event) do not warn; those functions
are wrapped. Setting the mode does not initialise CUDA: it waits until the program does. torch warns
once a process that the mode is a prototype; where it was nvprobe that set it, nobody sees that, and
the program is told if it sets the mode itself.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation import emitter, forwards, places, sidecar, torch_hooks
from nvprobe.instrumentation.emitter import Category, Label
from nvprobe.instrumentation.hooks import Hooks, after_import
from nvprobe.instrumentation.sources import user_stack

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["install", "uninstall"]

log = logging.getLogger("nvprobe")

MESSAGE = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype feature"
STACK_LINES = 5
WARN = 1
"""The debug mode that warns; 0 is silent, 2 raises."""


class _Setting(threading.local):
    """Whether this thread is setting the debug mode for nvprobe."""

    now = False


_setting_ours = _Setting()
_withheld: str | None = None
"""torch's remark, which it makes once a process, where it was nvprobe that drew it."""


class _Ours:
    """The pattern of the filter: what nvprobe takes out, for the thread that causes it.

    A ``catch_warnings`` around the setting would be seen by every thread, and undo what another
    thread does to its filters in the meantime.
    """

    pattern = MESSAGE  # like a compiled one, for who looks at the filters

    def __repr__(self) -> str:
        return f"<nvprobe: {self.pattern!r}>"

    def match(self, text: str) -> bool:
        """Whether a warning of this text is not the program's."""
        return text.startswith(MESSAGE) or (_setting_ours.now and text.startswith(PROTOTYPE))


_FILTER: tuple[Any, ...] = ("always", _Ours(), UserWarning, None, 0)
_SHOW = "_showwarnmsg"
_MUTATED = ("_filters_mutated", "_filters_mutated_lock_held")
"""Called after a change of the filters: in Python 3.10 to 3.13, and from 3.14 on."""
_hooks = Hooks("lines of hidden synchronisations")
_wanted_mode = 0
"""The debug mode that the program has asked for itself."""


class _Place:
    """A line that synchronises: how often, and its mark made ready."""

    __slots__ = ("count", "label")

    def __init__(self, source: str) -> None:
        self.count = 0
        self.label: Label = emitter.label(f"sync {source}", Category.SYNC)


_places: dict[tuple[str, str], _Place] = {}
_lock = threading.Lock()


def install() -> None:
    """Report synchronisations from now on."""
    if not _hooks.begin():
        return
    _hooks.replace("warnings", _SHOW, _showing)
    for name in _MUTATED:
        _hooks.replace("warnings", name, _keeping_first, optional=True)
    _mutated()
    _hooks.replace("torch.cuda", "set_sync_debug_mode", _setting)
    _hooks.replace("torch.cuda", "synchronize", _explicit("torch.cuda.synchronize"))
    for name in ("Stream", "Event"):
        what = f"torch.cuda.{name}.synchronize"
        _hooks.replace("torch.cuda.streams", f"{name}.synchronize", _explicit(what))
    after_import("torch.cuda", lambda cuda: _debug(cuda, WARN))


def uninstall() -> None:
    """Give the program its debug mode and its warnings back."""
    if not _hooks.active:
        return
    if "torch.cuda" in sys.modules:
        _debug(sys.modules["torch.cuda"], _wanted_mode)
    _hooks.undo()
    if _FILTER in warnings.filters:
        warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]
    _mutated()


def _debug(cuda: Any, mode: int) -> None:
    """Set the debug mode once CUDA is initialised (``_lazy_call``: torch 1.x to 2.13)."""
    if mode == WARN and not _takes_warnings():
        return
    try:
        import torch

        set_mode = torch._C._cuda_set_sync_debug_mode  # absent in a build without CUDA
        cuda._lazy_call(functools.partial(_quietly, set_mode, mode))
    except Exception as error:
        _hooks.missing("torch._C._cuda_set_sync_debug_mode", error)


def _takes_warnings() -> bool:
    """Whether torch's warnings would be taken out before the program sees them."""
    return _hooks.active and _SHOW in _hooks.held and not _hooks.held.isdisjoint(_MUTATED)


def _quietly(set_mode: Callable[[int], object], mode: int) -> None:
    """Set the mode without torch's warning that it is a prototype."""
    if not _hooks.active:  # undone before CUDA was initialised: the mode is the program's
        return
    _setting_ours.now = True
    try:
        set_mode(mode)
    finally:
        _setting_ours.now = False


def _setting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note which mode the program wants; ours warns in any case."""

    @functools.wraps(original)
    def set_sync_debug_mode(debug_mode: int | str) -> None:
        """Set the program's own mode; warnings keep coming to nvprobe."""
        global _wanted_mode
        original(debug_mode)
        import torch

        _pass_on_remark(torch.is_warn_always_enabled())
        _wanted_mode = int(torch.cuda.get_sync_debug_mode())
        if _wanted_mode == 0 and _takes_warnings():
            _quietly(original, WARN)

    return set_sync_debug_mode


def _pass_on_remark(repeated: bool) -> None:
    """Say to the program what torch would have said, unless it has just ``repeated`` it."""
    global _withheld
    text, _withheld = _withheld, None
    if text is not None and not repeated:
        warnings.warn(text, UserWarning, stacklevel=2)  # our own wrapper is not counted


def _mutated() -> None:
    """Tell the interpreter that the filters changed; ours is put first on the way."""
    for name in _MUTATED:
        tell = getattr(warnings, name, None)
        if tell is not None:
            tell()
            return


def _keeping_first(original: Callable[[], None]) -> Callable[[], None]:
    """Called after each change of the filters: put ours first again."""

    @functools.wraps(original)
    def filters_mutated() -> None:
        """The same, with nvprobe's filter in front again."""
        filters: Any = warnings.filters
        if isinstance(filters, list) and (not filters or filters[0] is not _FILTER):
            filters[:] = [_FILTER, *(one for one in filters if one is not _FILTER)]
        original()

    return filters_mutated


def _showing(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def showwarnmsg(message: Any) -> None:
        """Show what the program would have seen; note what tells of a synchronisation."""
        text = str(message.message)
        if _setting_ours.now and text.startswith(PROTOTYPE):
            global _withheld
            _withheld = text
            return
        if not text.startswith(MESSAGE):
            original(message)
            return
        _try_to_note(MESSAGE)
        if _wanted_mode == WARN:
            original(message)

    return showwarnmsg


def _explicit(what: str) -> Callable[[Any], Any]:
    """Wrap a function that synchronises on purpose."""

    def wrap(original: Any) -> Any:
        """The replacement of one function."""

        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            """The same, noted with its line."""
            if compiling_module.compiling():
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                _try_to_note(what)

        torch_hooks.hide_from_dynamo(
            [synchronize, *torch_hooks.functions_of(sys.modules[__name__])]
        )
        return synchronize

    return wrap


def _try_to_note(message: str) -> None:
    """Write one synchronisation; what goes wrong with it is not the program's trouble."""
    try:
        _note(message, places.caller(2))  # who synchronised, behind the wrapper that reports
    except Exception as error:
        log.debug("a synchronisation is not reported: %r", error)


def _note(message: str, frame: FrameType | None) -> None:
    """Write one synchronisation: a mark each time, a line at counts 1, 2, 4, 8 and so on."""
    stack = user_stack(frame, STACK_LINES, hidden=forwards.is_wrapper)
    source = stack[0] if stack else "unknown:0"
    key = (source, message)
    with _lock:
        place = _places.get(key) or _places.setdefault(key, _Place(source))
        place.count += 1
        count = place.count
    emitter.mark(place.label)
    if count & (count - 1) == 0:
        sidecar.write(
            "sync",
            source=source,
            stack=stack,
            count=count,
            unix_ns=time.time_ns(),
            message=message,
        )
