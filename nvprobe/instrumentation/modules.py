"""A range around every call of a model's modules, named by their dotted paths."""

from __future__ import annotations

import fnmatch
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nvprobe.errors import UsageError
from nvprobe.instrumentation import emitter, forwards, sidecar, torch_hooks
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.forwards import KEY, make_record, wrap_class

if TYPE_CHECKING:
    from typing import TypeAlias

    from torch import nn

    One: TypeAlias = str | type | Callable[[str, nn.Module], bool]
    Select: TypeAlias = One | Iterable[One] | None

Model = TypeVar("Model", bound="nn.Module")

_TRANSPARENT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Names under which wrappers keep the module they wrap; no part of a stable path."""
_WRAPPERS = {"OptimizedModule", "CheckpointWrapper"}
"""Wrapping classes that get no range beside that of the module inside."""
_PARALLEL = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
"""Wrapping classes that do work of their own around the module inside (kept as ``module``)."""

annotated_roots: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
"""By id: a model may have an ``__eq__`` of its own, and no hash."""


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module below a root once, parents first, with a path that ignores wrappers."""
    seen: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = [
            (_child_path(module, path, name), child)
            for name, child in module._modules.items()
            if child is not None
        ]
        waiting.extend(reversed(children))


def _child_path(parent: nn.Module, path: str, name: str) -> str:
    parallel = name == "module" and type(parent).__name__ in _PARALLEL
    if name in _TRANSPARENT or parallel:
        return path
    return f"{path}.{name}" if path else name


def is_scripted(module: nn.Module) -> bool:
    """Whether a module's forward is TorchScript's, run in C++."""
    return any(one.__module__ == "torch.jit._script" for one in type(module).__mro__)


def is_transparent(module: nn.Module) -> bool:
    """Whether a module only wraps another one that has the same name in reports."""
    return type(module).__name__ in _WRAPPERS


def class_name(module: nn.Module) -> str:
    """The class's name, seen through wrappers and FSDP2's own classes (``FSDPLinear``)."""
    while is_transparent(module):
        inner = [child for name, child in module._modules.items() if name in _TRANSPARENT]
        if not inner or inner[0] is None:
            break
        module = inner[0]
    cls = type(module)
    bases = {base.__name__ for base in cls.__mro__}
    if "FSDPModule" in bases and cls.__name__.startswith("FSDP"):
        return cls.__name__.removeprefix("FSDP")
    return cls.__name__


def _matches(select: One, path: str, module: nn.Module) -> bool:
    if isinstance(select, str):
        return fnmatch.fnmatchcase(path, select) or type(module).__name__ == select
    if isinstance(select, type):
        return isinstance(module, select)
    return bool(select(path, module))


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def selection(depth: Any, modules: Any) -> list[One] | None:
    """What ``modules`` names, as a list; `UsageError` where that or ``depth`` chooses nothing."""
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise UsageError(f"depth={depth!r}: give 0 (the root alone) or more")
    if modules is None:
        return None
    several = isinstance(modules, Iterable) and not isinstance(modules, (str, type))
    chosen = list(modules) if several else [modules]
    for one in chosen:
        if not isinstance(one, str) and not callable(one):
            raise UsageError(f"modules={one!r}: give a glob, a class, a function, or several")
    return chosen


def annotate_modules(
    model: Model,
    *,
    depth: int | None = None,
    modules: Select = None,
    name: str | None = None,
) -> Model:
    """Give modules of a model a range around each call.

    The root's range has its class's name, every other one the dotted path of ``named_modules``
    (without the names that DDP, FSDP, ``torch.compile`` and checkpoint wrappers put in between). A
    module shared by two parents has its first path. Annotating again replaces what was there.

    Args:
        model: The root; changed in place, undone by `remove`.
        depth: Number of dotted parts down to which modules get a range; 0 is the root alone.
        modules: Which ones below the root: a glob over paths (or a class's name), a class, a
            predicate of path and module, or several of these. All by default.
        name: The root's name instead of its class's.

    Returns:
        The model itself.

    Raises:
        UsageError: ``depth`` or ``modules`` cannot choose modules.

    """
    chosen = selection(depth, modules)
    count = 0
    root = name or class_name(model)
    for path, module in walk(model):
        wanted = (depth is None or _depth(path) <= depth) and (
            chosen is None or any(_matches(one, path, module) for one in chosen)
        )
        parallel = type(module).__name__ in _PARALLEL
        own = root if module is model else (not parallel and path) or class_name(module)
        within = None if module is model else root
        count += _give_record(module, own, within, wanted or not path)
    _keep_root(model)
    if forwards.run_root is not None:
        mark_root(model)
    fields = {"name": root, "class": class_name(model), "modules": count}
    sidecar.write("root", **fields, unix_ns=time.time_ns())
    return model


def _keep_root(model: nn.Module) -> None:
    """Remember a root while it lives."""
    annotated_roots[id(model)] = model
    # The dictionary's own function runs wherever garbage is collected, inside compiled code too.
    forgets = getattr(annotated_roots, "_remove", None)
    if forgets is not None:  # CPython 3.10 to 3.14
        torch_hooks.hide_from_dynamo([forgets])


def mark_root(model: nn.Module) -> None:
    """Let the calls of a root (of the module inside, where wrappers have no range) be phases."""
    for path, module in walk(model):
        record = forwards.record_of(module)
        if path:
            return
        if record is not None and record.owner is not None:
            record.root, record.owner = record.owner, None
            forwards.stays(record.root)
            return


def _give_record(module: nn.Module, name: str, within: str | None, wanted: bool) -> bool:
    """Give one module its record; returns whether it has a range."""
    forwards.drop_record(module)
    scripted = is_scripted(module)
    if not wanted or scripted or is_transparent(module):
        if not scripted and forwards.find_root is not None:
            module.__dict__[KEY] = make_record(name, None, None)
        return False
    label = emitter.label(name, Category.MODULE)
    if "forward" in module.__dict__:
        module.__dict__[KEY] = record = make_record(name, None, label, within)
        forwards.add_hooks(module, record)
        return True
    owner = wrap_class(type(module))
    if owner is not None:
        module.__dict__[KEY] = make_record(name, owner, label, within)
    return owner is not None


def remove(model: nn.Module) -> None:
    """Take the ranges of a model away again; a model without any stays as it is."""
    for _, module in walk(model):
        forwards.drop_record(module)
    annotated_roots.pop(id(model), None)
    if not annotated_roots and forwards.find_root is None:
        forwards.unwrap_classes()
