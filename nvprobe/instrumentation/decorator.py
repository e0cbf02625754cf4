"""``nvprobe.annotate``: one name for a model, a function, a class, or a decorator to be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nvprobe.instrumentation.ranges import decorate

if TYPE_CHECKING:
    from nvprobe.instrumentation.modules import Select

Target = TypeVar("Target")


@overload
def annotate(
    target: str | None = ..., *, name: str | None = ..., payload: int | float | None = ...
) -> Callable[[Target], Target]: ...
@overload
def annotate(
    target: Target,
    *,
    name: str | None = ...,
    payload: int | float | None = ...,
    depth: int | None = ...,
    modules: Select = ...,
) -> Target: ...
def annotate(
    target: Any = None,
    *,
    name: str | None = None,
    payload: int | float | None = None,
    depth: int | None = None,
    modules: Select = None,
) -> Any:
    """Give a model's modules, or every call of a function, a range in nsys.

    ``nvprobe.annotate(model)`` instruments the module tree in place and returns it (see
    `nvprobe.instrumentation.modules.annotate_modules` for the names and `remove`). As a decorator,
    bare or with a name, it takes functions, methods, coroutines, (async) generators and classes.

    Args:
        target: A ``torch.nn.Module``, a callable or class, or the name of the decorator to make.
        name: The range's name instead of the function's qualified or the root's class name.
        payload: A number to carry along with every call (functions only).
        depth: For a model: dotted parts down to which modules get a range; 0 is the root alone.
        modules: For a model: a glob over paths, a class, a predicate, or several of these.

    Raises:
        TypeError: The target is neither a model nor callable.
        UsageError: Another argument is not of its kind.

    """
    if target is None or isinstance(target, str):
        name = name or target
        return lambda later: annotate(
            later, name=name, payload=payload, depth=depth, modules=modules
        )
    if _is_module(target):
        from nvprobe.instrumentation.modules import annotate_modules

        return annotate_modules(target, depth=depth, modules=modules, name=name)
    return decorate(target, name, payload)


def _is_module(target: object) -> bool:
    """Whether it is a torch module, asked without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)
