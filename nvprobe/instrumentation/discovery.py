"""Find models by themselves: a module that is called while no other one runs is a root.

Every class that defines ``forward`` is wrapped (see `forwards`); the first call of an instance
without a record asks `_find_root`. Once all modules of the program have a record, nothing is left
to ask; and while the instrumentation sleeps, from the `COLD_STEPS`-th step on, only the classes of
roots stay wrapped.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import (
    awake,
    emitter,
    forwards,
    modules,
    places,
    steps,
    torch_hooks,
)
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.forwards import KEY, Record, make_record, record_of, wrap_class
from nvprobe.instrumentation.modules import (
    annotate_modules,
    class_name,
    is_scripted,
    is_transparent,
)

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("nvprobe")

COLD_STEPS = 3
"""Steps in which models are looked for also while the instrumentation sleeps."""

_options: dict[str, Any] = {}
_constructor: tuple[Any, Any] | None = None
"""``nn.Module.__init__``, and what stands in its place."""


def start(**options: Any) -> None:
    """Begin to annotate models at their first call.

    Args:
        options: ``depth`` and ``modules`` of `annotate_modules`.

    """
    global _options
    from torch import nn

    _options = options
    forwards.find_root = _find_root
    ours = (modules, sys.modules[__name__])
    torch_hooks.hide_from_dynamo(torch_hooks.functions_of(*ours))
    _wrap_subclasses(nn.Module)
    _wrap_constructor(nn.Module)
    compiling_module.before_first(forwards.resume)
    awake.on_hold(forwards.resume)
    awake.follow(forwards.resume, _sleep)
    steps.on_step(_rest_if_asleep)


def _sleep() -> None:
    """After a window, models have been met; before the first, not before some steps."""
    _rest_if_asleep(COLD_STEPS if modules.annotated_roots else steps.count())


def _rest_if_asleep(done: int) -> None:
    """Between steps: nobody asks what modules are called."""
    if done >= COLD_STEPS and not awake.now:
        forwards.rest()


def stop() -> None:
    """Annotate no further models; those that are stay so."""
    global _constructor
    forwards.find_root = None
    if _constructor is not None:
        from torch import nn

        if _constructor[1] is nn.Module.__init__:
            nn.Module.__init__ = _constructor[0]
            _constructor = None
            _met.clear()


def _wrap_subclasses(base: type) -> None:
    """Wrap every class there is now; about 10 µs each, some hundred with torch itself."""
    seen: set[type] = set()
    waiting: list[type] = base.__subclasses__()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += one.__subclasses__()
            if "forward" in one.__dict__:
                wrap_class(one)


def _wrap_constructor(base: Any) -> None:
    """Wrap classes that are defined later when their first instance is made."""
    global _constructor
    if _constructor is not None:
        return
    original = base.__init__
    compilation = compiling_module

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not compilation.compiling():
            _meet(type(self))
        original(self, *args, **kwargs)

    torch_hooks.hide_from_dynamo([__init__])
    base.__init__ = __init__
    _constructor = original, __init__


def _give_name(module: nn.Module, owner: type) -> Record:
    """A record for a module outside its root's tree."""
    name = class_name(module)
    record = make_record(name, owner, emitter.label(name, Category.MODULE))
    module.__dict__[KEY] = record
    return record


_met: set[type] = set()


def _meet(cls: type) -> None:
    if cls not in _met:
        _met.add(cls)
        if forwards.find_root is not None:
            wrap_class(cls)


def _find_root(module: nn.Module, owner: type) -> Record | None:
    """Annotate a module met for the first time if it is a root; gives its record.

    One that runs inside another module is none: it was made on the fly or is held in a plain list,
    and gets a range named by its class.
    """
    if is_transparent(module) or is_scripted(module):
        return None
    frame = places.caller(2)  # who called the wrapper that asks
    while frame is not None:
        if forwards.is_wrapper(frame.f_code):
            return torch_hooks.outside_dynamo(_give_name, module, owner)
        frame = frame.f_back
    try:
        torch_hooks.outside_dynamo(annotate_modules, module, **_options)
    except Exception as error:  # the program's own predicate; a tree that cannot be walked
        log.warning("no ranges for the modules of %s: %r", type(module).__name__, error)
        module.__dict__[KEY] = make_record(type(module).__name__, None, None)
    return record_of(module)
