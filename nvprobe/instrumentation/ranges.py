"""Ranges around the user's own code: ``nvprobe.range`` and the decorator of ``nvprobe.annotate``.

NVTX ranges of a thread nest like brackets, so a range must never be open while another task runs
on its thread. Decorated coroutines and generators therefore close their range at each suspension
and open it again when they go on: a range is a stretch of running, not of waiting.

Under torch.compile all of it vanishes: `range` returns a null context, decorated functions call
through.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import types
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

from nvprobe.errors import UsageError
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation import emitter, places, sidecar
from nvprobe.instrumentation.emitter import Category, Label
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.torch_hooks import hide_from_dynamo, torch_loaded

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


_made: dict[str, Range] = {}


class Range(AbstractContextManager["Range"]):
    """An NVTX range, for ``with`` (as often and in as many threads as you like) or as ``@``."""

    __slots__ = ("category", "label", "name", "openings", "payload")

    def __init__(self, name: str, payload: int | float | None, category: Category) -> None:
        self.name = name
        self.payload = payload
        self.category = category
        self.openings = 0
        self.label = emitter.label(name, category, payload)

    def __enter__(self) -> Range:
        if sidecar.is_open():
            self.openings += 1
            if places.due(self.openings) and not compiling_module.compiling():
                places.note(self.name, self.category, places.ENTERED, places.caller(1))
        emitter.push(self.label)
        return self

    def __exit__(self, *error: object) -> None:
        emitter.pop()

    def __call__(self, decorated: Decorated) -> Decorated:
        """Decorate a function, method, class, coroutine or generator with this range."""
        return decorate(decorated, self.name, self.payload)

    def __reduce__(self) -> tuple[Any, ...]:
        return Range, (self.name, self.payload, self.category)


def range(  # noqa: A001 - the public name is nvprobe.range
    name: str, *, payload: int | float | None = None
) -> Range:
    """A range around a block (``with``) or a function (``@``), seen by nsys in domain ``nvprobe``.

    Inside code that torch.compile traces it is a context that does nothing.

    Args:
        name: What the timeline and the reports show.
        payload: An index or size to carry along (a float or an integer, of 64 bits at most); it
            does not split the range in reports as a number in the name would.

    Raises:
        UsageError: The name is not a text, or the payload not a number.

    """
    if compiling_module.compiling():
        # Dynamo knows nullcontext, and that it leaves no trace; it would break the graph at ours.
        return cast("Range", nullcontext())
    name = _text(name)
    if payload is not None:
        return Range(name, _number(payload), Category.USER)
    made = _made.get(name)
    if made is None:
        made = Range(name, None, Category.USER)
        if len(_made) < emitter.CACHED_LABELS:
            _made[name] = made
    return made


def _text(name: object) -> str:
    """A name that can be written."""
    if not isinstance(name, str):
        raise UsageError(f"range name {name!r}: give a text")
    return emitter.encodable(name)


def _number(payload: Any) -> int | float | None:
    """A payload as NVTX takes it, NumPy's numbers too; None for what 64 bits do not hold."""
    if not isinstance(payload, numbers.Real):
        raise UsageError(f"payload={payload!r}: give a number")
    if not isinstance(payload, numbers.Integral):
        return float(payload)
    number = int(payload)
    return number if -(2**63) <= number < 2**63 else None


def qualified_name(decorated: Any) -> str:
    """The name a decorated object gets: ``Class.method`` or ``function``, without ``<locals>``."""
    name = getattr(decorated, "__qualname__", None) or type(decorated).__qualname__
    return str(name).rpartition("<locals>.")[2]


def decorate(
    decorated: Decorated, name: str | None = None, payload: int | float | None = None
) -> Decorated:
    """Give every call of a callable a range; a class has it around each of its own methods.

    Args:
        decorated: A function, coroutine function, (async) generator function, class, static- or
            classmethod, or any callable object.
        name: The range's name; the callable's qualified one by default.
        payload: A number to carry along.

    Raises:
        TypeError: It cannot be called.
        UsageError: The name is not a text, or the payload not a number.

    """
    payload = None if payload is None else _number(payload)
    name = name if name is None else _text(name)
    wrapped: Any = decorated
    if isinstance(wrapped, type):
        return cast("Decorated", _decorate_class(wrapped, name, payload))
    if isinstance(wrapped, (staticmethod, classmethod)):
        inner = decorate(wrapped.__func__, name, payload)
        return cast("Decorated", type(wrapped)(inner))
    if not callable(wrapped):
        raise TypeError(f"cannot annotate a {type(wrapped).__name__}: it is not callable")
    name = name or qualified_name(wrapped)
    label = emitter.label(name, Category.USER, payload)
    code = places.code_of(wrapped)
    if code is not None:
        places.define(name, Category.USER, places.DEFINED, code)
    ranged = uncounted(functools.update_wrapper(_wrapper_for(wrapped)(wrapped, label), wrapped))
    if torch_loaded():
        hide_from_dynamo([ranged])
    return cast("Decorated", ranged)


def _wrapper_for(function: Any) -> Callable[[Any, Label], Any]:
    if inspect.iscoroutinefunction(function):
        return _wrap_coroutine
    if inspect.isasyncgenfunction(function):
        return _wrap_async_generator
    if inspect.isgeneratorfunction(function):
        return _wrap_generator
    return _wrap_function


def _decorate_class(cls: type, name: str | None, payload: int | float | None) -> type:
    """Decorate a class's own methods in place; of a torch module only ``forward``.

    Special methods stay as they are, except ``__call__``: a range around every ``__getattr__`` or
    ``__eq__`` would drown the rest.
    """
    prefix = name or qualified_name(cls)
    is_module = any(
        (one.__module__, one.__name__) == ("torch.nn.modules.module", "Module")
        for one in cls.__mro__
    )
    for attribute, value in list(vars(cls).items()):
        special = attribute.startswith("__") and attribute != "__call__"
        is_method = inspect.isfunction(getattr(value, "__func__", value))
        if is_method and not special and (attribute == "forward" or not is_module):
            own = prefix if is_module else f"{prefix}.{attribute}"
            setattr(cls, attribute, decorate(value, own, payload))
    return cls


def _wrap_function(function: Callable[..., Any], label: Label) -> Callable[..., Any]:
    def ranged(*args: Any, **kwargs: Any) -> Any:
        """Call through, inside the range."""
        if compiling_module.compiling():
            return function(*args, **kwargs)
        emitter.push(label)
        try:
            return function(*args, **kwargs)
        finally:
            emitter.pop()

    return ranged


def _wrap_generator(function: Callable[..., Any], label: Label) -> Callable[..., Any]:
    def ranged(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Call through, inside the range."""
        generator = function(*args, **kwargs)
        return (yield from generator if compiling_module.compiling() else _drive(generator, label))

    return ranged


def _wrap_coroutine(function: Callable[..., Any], label: Label) -> Callable[..., Any]:
    async def ranged(*args: Any, **kwargs: Any) -> Any:
        """Call through, inside the range."""
        return await _drive_coroutine(function(*args, **kwargs), label)

    return ranged


def _wrap_async_generator(function: Callable[..., Any], label: Label) -> Callable[..., Any]:
    async def ranged(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        """Call through, inside the range."""
        source = function(*args, **kwargs)
        step = source.asend(None)
        try:
            while True:
                try:
                    item = await _drive_coroutine(step, label)
                except StopAsyncIteration:
                    return
                try:
                    step = source.asend((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = source.athrow(error)
        finally:
            await _drive_coroutine(source.aclose(), label)

    return ranged


@uncounted
def _drive(inner: Any, label: Label) -> Generator[Any, Any, Any]:
    """Run a generator or awaitable to its end, with the range open only while it runs.

    What ``yield from`` does (PEP 380), with a push and a pop around each resumption.
    """
    resume: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        emitter.push(label)
        try:
            item = resume(value)
        except StopIteration as stop:
            return stop.value
        finally:
            emitter.pop()
        try:
            value = yield item
            resume = inner.send
        except GeneratorExit:
            emitter.push(label)
            try:
                inner.close()
            finally:
                emitter.pop()
            raise
        except BaseException as error:
            value, resume = error, inner.throw


_drive_coroutine = types.coroutine(_drive)
