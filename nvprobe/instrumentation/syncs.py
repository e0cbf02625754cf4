"""Hidden synchronizations: the line that makes the host wait, as an NVTX mark and in the sidecar.

torch warns of every implicit synchronization (``item``, ``nonzero``, a boolean index, ``cpu``,
``tolist``, a truth value) in its sync debug mode, from the very frame that caused it. The mode is
on while the instrumentation is awake, and nobody sees the warning:

* the entry of one filter, for that message alone, is kept first, so that neither ``error`` raises
  nor ``ignore`` hides it; every other setting stays the program's;
* ``warnings._showwarnmsg``, which the interpreter calls with what passed the filters, hands on
  every other warning unchanged. The message never reaches ``showwarning`` or a
  ``catch_warnings(record=True)``, except where the program itself has asked for the debug mode.

A mark costs microseconds, a warning that the interpreter has shown once for its line less than one.
So each of the first `FULL_STEPS` steps has a mark for every synchronization, and a later one for
the first on each line; the analysis gives the others the line of their kind.

After them the mode is off for the rest of a window, because each warning costs more than a
microsecond. The methods of tensors that wait are wrapped instead (`sync_methods`): the first wait
on each line of a step has a mark, the others cost a look in a dictionary.

In a distributed program it is off from the start: threads without Python print torch's warning.

Explicit ones (``torch.cuda.synchronize``, of a stream, of an event) do not warn; those functions
are wrapped. Setting the mode does not initialize CUDA: it waits until the program does.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import (
    awake,
    emitter,
    places,
    sidecar,
    steps,
    sync_methods,
    torch_hooks,
)
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.emitter import Category, Label
from nvprobe.instrumentation.hooks import Hooks, after_import, around
from nvprobe.instrumentation.sources import is_library, user_stack
from nvprobe.placement import placement

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger("nvprobe")

MESSAGE = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype feature"
STACK_LINES = 5
FULL_STEPS = 3
"""Steps after waking whose every synchronization has a mark: two before a window and its first."""
MOST = 512
"""Marks of one line and step, also where no steps are known."""
WARN = 1
"""The debug mode that warns; 0 is silent, 2 raises."""


class _Setting(threading.local):
    """Whether this thread is setting the debug mode for nvprobe."""

    now = False


_setting_ours = _Setting()


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


_FILTER: tuple[Any, ...] = ("default", _Ours(), UserWarning, None, 0)
_SHOW = "_showwarnmsg"
_MUTATED = ("_filters_mutated", "_filters_mutated_lock_held")
"""Called after a change of the filters: in Python 3.10 to 3.13, and from 3.14 on."""
_hooks = Hooks("lines of hidden synchronizations")
_explicit_hooks = Hooks("lines of synchronizations")
_wanted_mode = 0
"""The debug mode that the program has asked for itself."""


class _Site:
    """A line that synchronizes: how often it was seen, and its mark made ready."""

    __slots__ = ("code", "count", "label", "left")

    def __init__(self, code: object, label: Label) -> None:
        self.code = code  # kept, so that its id stays its own
        self.count = 0
        self.left = _marks_per_line()
        self.label = label


_sites: dict[tuple[int, int, str], _Site] = {}
_lock = threading.Lock()
_shown: deque[tuple[dict[Any, Any], tuple[Any, ...]]] = deque(maxlen=places.MOST)
"""What the interpreter shows no more in this step: registries of modules, and keys in them."""
_full_steps = FULL_STEPS
"""Steps that are still marked in full."""


def install() -> None:
    """Report synchronizations while the instrumentation is awake."""
    if not _explicit_hooks.begin():
        return
    # These stay: code that torch has compiled may be guarded on them.
    _explicit_hooks.replace("torch.cuda", "synchronize", _explicit("torch.cuda.synchronize"))
    for name in ("Stream", "Event"):
        what = f"torch.cuda.{name}.synchronize"
        _explicit_hooks.replace("torch.cuda.streams", f"{name}.synchronize", _explicit(what))
    for module in ("torch.distributed.distributed_c10d", "torch.distributed"):
        become = _becoming_distributed
        _explicit_hooks.replace(module, "init_process_group", become, optional=True)
    steps.on_step(_next_step)
    awake.follow(_begin, _end)


def uninstall() -> None:
    """Give the program its functions, its debug mode and its warnings back."""
    _end()
    _explicit_hooks.undo()


def _begin() -> None:
    """Listen to torch's warnings, or to methods of tensors in a distributed program."""
    global _full_steps
    _full_steps = FULL_STEPS
    _show_again(MOST)
    if not _explicit_hooks.active:  # uninstalled
        return
    if _distributed():
        sync_methods.begin(_try_to_note, indexing=True)
        return
    if not _hooks.begin():
        return
    _hooks.replace("warnings", _SHOW, _showing)
    for name in _MUTATED:
        _hooks.replace("warnings", name, _keeping_first, optional=True)
    _put_first()
    _hooks.replace("torch.cuda", "set_sync_debug_mode", _setting)
    after_import("torch.cuda", lambda cuda: _debug(cuda, WARN))


def _end() -> None:
    """Take the debug mode, the filter and the hooks away."""
    sync_methods.end()
    _show_again(MOST)
    if not _hooks.active:
        return
    if "torch.cuda" in sys.modules:
        _debug(sys.modules["torch.cuda"], _wanted_mode)
    _hooks.undo()
    if _FILTER in warnings.filters:
        warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]


def _distributed() -> bool:
    """Whether code runs here, or will, that prints torch's warnings by itself."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    initialized = getattr(distributed, "is_initialized", None)
    return placement().rank is not None or bool(initialized and initialized())


@around
def _becoming_distributed(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same, torch's sync debug mode off from now on."""
    if _hooks.active:
        _end()
        sync_methods.begin(_try_to_note, indexing=True)
    return original(*args, **kwargs)


def _next_step(_done: int) -> None:
    """Between steps: each line is to be marked once more."""
    global _full_steps
    if not awake.now:
        return
    _full_steps -= 1
    if _full_steps == 0 and _hooks.active and awake.woken:
        _end()
        sync_methods.begin(_try_to_note, indexing=False)
    _show_again(_marks_per_line())


def _marks_per_line() -> int:
    """Marks that a line may have in this step."""
    return MOST if _full_steps > 0 else 1


def _show_again(times: int) -> None:
    """Mark each line so many times from now on."""
    with contextlib.suppress(IndexError):  # empty; of several threads each takes some
        while True:
            registry, key = _shown.popleft()
            registry.pop(key, None)
    for site in list(_sites.values()):
        site.left = times
    sync_methods.again()


def _debug(cuda: Any, mode: int) -> None:
    """Set the debug mode once CUDA is initialized (``_lazy_call``: torch 1.x to 2.13)."""
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
    if not _hooks.active:  # undone before CUDA was initialized: the mode is the program's
        return
    _setting_ours.now = True
    try:
        set_mode(mode)
    finally:
        _setting_ours.now = False


@around
def _setting(original: Callable[..., Any], debug_mode: int | str) -> None:
    """Set the mode that the program wants; warnings keep coming to nvprobe in any case."""
    global _wanted_mode
    original(debug_mode)
    import torch

    _wanted_mode = int(torch.cuda.get_sync_debug_mode())
    if _wanted_mode == 0 and _takes_warnings():
        _quietly(original, WARN)


def _put_first() -> None:
    """Put our filter first; what the interpreter has shown before stays shown (no new version)."""
    filters: Any = warnings.filters
    if isinstance(filters, list) and (not filters or filters[0] is not _FILTER):
        filters[:] = [_FILTER, *(one for one in filters if one is not _FILTER)]


@around
def _keeping_first(original: Callable[[], None]) -> None:
    """Called after each change of the filters: put ours first again."""
    _put_first()
    original()


def _showing(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def showwarnmsg(message: Any) -> None:
        """Show what the program would have seen; note what reports a synchronization."""
        text = str(message.message)
        if text.startswith(MESSAGE):
            again = _try_to_note(MESSAGE) or _wanted_mode == WARN
            _remember(message, text, again=again)
            if _wanted_mode == WARN:
                original(message)
        elif _setting_ours.now and text.startswith(PROTOTYPE):
            _remember(message, text, again=True)
        else:
            original(message)

    return showwarnmsg


def _remember(message: Any, text: str, *, again: bool) -> None:
    """Let the interpreter hand us the next warning of this line, or none before the next step."""
    key = (text, message.category, message.lineno)
    frame = places.caller(2)
    while frame is not None:
        registry = frame.f_globals.get("__warningregistry__")
        if registry is not None and key in registry:
            # Many lines of the program's share a line of torch: that one stays to be shown.
            if again or is_library(frame.f_code.co_filename):
                registry.pop(key, None)
            else:
                _shown.append((registry, key))
            return
        frame = frame.f_back


def _explicit(what: str) -> Callable[[Any], Any]:
    """Wrap a function that synchronizes on purpose."""

    def wrap(original: Any) -> Any:
        """The replacement of one function."""

        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            """The same, noted with its line."""
            if compiling_module.compiling() or not awake.now or _is_ours(places.caller(1)):
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                _try_to_note(what)

        ours = (sys.modules[__name__], sync_methods, sys.modules[Hooks.__module__])
        torch_hooks.hide_from_dynamo([synchronize, *torch_hooks.functions_of(*ours)])
        return synchronize

    return wrap


def _is_ours(frame: FrameType | None) -> bool:
    """Whether nvprobe itself waits for the GPU."""
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return str(name).startswith("nvprobe.")


def _try_to_note(message: str) -> bool:
    """Write one synchronization, whatever goes wrong; whether the line's next one counts, too."""
    try:
        return _note(message, places.caller(2))  # behind the wrapper that reports
    except Exception as error:
        log.debug("a synchronization is not reported: %r", error)
        return False


def _note(message: str, frame: FrameType | None) -> bool:
    """Write one synchronization: a mark, and a line at counts 1, 2, 4, 8 and so on."""
    user = _users(frame)
    key = (0, 0, message) if user is None else (id(user.f_code), user.f_lasti, message)
    site = _sites.get(key)
    if site is None:
        site = _meet(key, user or frame)
    with _lock:
        if site.left <= 0:
            return False
        site.left -= 1
        site.count += 1
        count = site.count
    emitter.mark(site.label)
    if count & (count - 1) == 0:
        _write(message, frame, count)
    return site.left > 0


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is the program's own."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _meet(key: tuple[int, int, str], frame: FrameType | None) -> _Site:
    stack = user_stack(frame, 1)
    source = stack[0] if stack else "unknown:0"
    label = emitter.label(f"sync {source}", Category.SYNC)
    with _lock:
        if len(_sites) >= places.MOST:  # code that is made anew without end
            del _sites[next(iter(_sites))]
        return _sites.setdefault(key, _Site(frame and frame.f_code, label))


def _write(message: str, frame: FrameType | None, count: int) -> None:
    stack = user_stack(frame, STACK_LINES)
    sidecar.write(
        "sync",
        source=stack[0] if stack else "unknown:0",
        stack=stack,
        count=count,
        sampled=True,
        unix_ns=time.time_ns(),
        message=message,
    )
