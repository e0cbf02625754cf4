"""Whether this code is being traced by torch.compile, asked without importing torch.

Instrumentation must be invisible to a compiler: every hook, decorator and context manager asks
`compiling` first and does nothing while it is true. Dynamo replaces the call by a constant, so the
question leaves no trace in the graph and cannot cause a graph break.

Until torch traces for the first time the answer is a constant of C, which costs no frame, and what
is guarded by nobody yet may still change (`before_first`).
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from nvprobe.instrumentation.hooks import Hooks, after_import, around

log = logging.getLogger("nvprobe")

_TRACERS = (
    ("torch._dynamo.symbolic_convert", "InstructionTranslator.__init__"),
    ("torch.export._trace", "_export"),
)
"""What begins each trace of Dynamo, and of ``torch.export`` without it (torch 2.6 to 2.13)."""


def _search() -> bool:
    """Ask where torch was not there yet when `bind` was called last (`torch.compiler`: 2.1+)."""
    torch = sys.modules.get("torch")
    # A torch that another thread imports at this moment has no compiler yet.
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()


compiling: Callable[[], bool] = _search
"""Whether torch.compile or torch.export traces the caller; read as ``compiling.compiling``."""
begun = True
"""Whether anything may have been traced."""
_listeners: list[Callable[[], object]] = []
_hooks = Hooks("the begin of torch's first trace")


def bind() -> None:
    """Let `compiling` be torch's own function, if torch is there: a third of the time.

    Only to be called before the program compiles anything: code that has been traced with a range
    in it is guarded on the function it found.
    """
    global compiling
    torch = sys.modules.get("torch")
    known = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if known is not None and begun:
        compiling = known


def before_first(listener: Callable[[], object]) -> None:
    """Call ``listener`` before torch traces anything; at once where that may have happened."""
    if begun:
        listener()
    else:
        _listeners.append(listener)


def watch() -> None:
    """Answer with a constant until torch traces, where it cannot have done so yet."""
    global begun, compiling
    if not begun or any(module in sys.modules for module, _ in _TRACERS) or not _hooks.begin():
        bind()
        return
    begun, compiling = False, bool
    for module, name in _TRACERS:
        _hooks.replace(module, name, _tracing)
        after_import(module, functools.partial(_check, name))


def _check(name: str, _module: object) -> None:
    """Where nothing would say that torch traces, take it that it does."""
    if name not in _hooks.held:
        _begin()


@around
def _tracing(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same, everything prepared for being traced."""
    _begin()
    return original(*args, **kwargs)


def _begin() -> None:
    global begun
    if not begun:
        begun = True
        _hooks.undo()
        bind()
        for listener in _listeners:
            try:
                listener()
            except Exception as error:  # the program's own compilation must not fail by it
                log.debug("before the first trace: %r", error)


bind()
