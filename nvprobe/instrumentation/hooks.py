"""Replace functions inside other packages, now or when they are imported, and put them back.

Everything nvprobe changes in torch goes through a :class:`Hooks`. A replacement that cannot be made
(another version, a name that moved) costs one debug line and a ``hook`` line in the sidecar, and
never an exception in the program.
Modules are not imported for it: one that is not there yet is changed right after its import.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import weakref
from collections import defaultdict
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import sidecar, torch_hooks
from nvprobe.instrumentation.frames import uncounted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Change = Callable[[ModuleType], None]

log = logging.getLogger("nvprobe")


class _Waiting(MetaPathFinder):
    """Finds nothing itself: lets the others find a module and acts when it has been executed."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = defaultdict(list)
        self.searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module through the other finders and make its loader call back."""
        if fullname not in self.changes or getattr(self.searching, "now", False):
            return None
        self.searching.now = True
        try:
            spec = _found(fullname, path, target)
        finally:
            self.searching.now = False
        if spec is not None and spec.loader is not None:
            self._follow(fullname, spec.loader)
        return spec

    def _follow(self, fullname: str, loader: Any) -> None:
        """Let this one loader object call the changes after it has executed the module."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            """Execute the module, then apply what waits for it."""
            del loader.exec_module
            execute(module)
            for change in self.changes.pop(fullname, ()):
                _apply(change, module)

        loader.exec_module = exec_module


def _found(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find else None
        if spec is not None:
            return spec
    return None


def _apply(change: Change, module: ModuleType) -> None:
    """Make a change; the program's own import must not fail by it."""
    try:
        change(module)
    except Exception as error:
        log.debug("%s is left as it is: %r", module.__name__, error)


_waiting = _Waiting()


def after_import(name: str, change: Change) -> None:
    """Call ``change(module)`` now if the module is imported, else right after its import.

    A module that is being imported at this moment counts as imported.
    """
    module = sys.modules.get(name)
    if module is not None:
        _apply(change, module)
        return
    if _waiting not in sys.meta_path:
        sys.meta_path.insert(0, _waiting)
    _waiting.changes[name].append(change)


_ABSENT = object()


def around(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """What `Hooks.replace` takes, of a ``function(original, *args, **kwargs)`` to call instead."""
    uncounted(function)
    ours: weakref.WeakSet[Any] = weakref.WeakSet()

    def wrap(original: Any) -> Any:
        if original in ours:
            return original  # imported from another module, where it was replaced before

        @functools.wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        ours.add(made)
        return made

    wrap.function = function  # type: ignore[attr-defined]
    return wrap


def _hide(made: Any, function: Any) -> None:
    """Let Dynamo skip the frames of a replacement, and of the functions beside it that it calls.

    Met between two graphs they would be traced, for nothing but a graph break to count.
    """
    names = getattr(function, "__globals__", {})
    module = sys.modules.get(names.get("__name__", ""))
    if module is not None and "torch" in sys.modules:
        torch_hooks.hide_from_dynamo([made, function, *torch_hooks.functions_of(module)])


class Hooks:
    """The changes one part of nvprobe makes to other packages; undone together."""

    def __init__(self, what: str) -> None:
        self.what = what
        """What is lost where a change cannot be made: ``compiled-graph ranges``."""
        self.active = False
        self.held: set[str] = set()
        """Names that could be replaced: what needs two of them looks here for the other."""
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def begin(self) -> bool:
        """Mark as installed; False where it was already."""
        if self.active:
            return False
        self.active = True
        return True

    def replace(
        self,
        module: str,
        name: str,
        wrap: Callable[[Any], Any],
        *,
        optional: bool = False,
        inherited: bool = False,
    ) -> None:
        """Replace ``module.name`` (``Class.method`` too) by ``wrap(original)``.

        Args:
            module: Dotted module name; it is not imported for this.
            name: Attribute, dotted within the module.
            wrap: Makes the replacement from the original.
            optional: The name is absent in some supported versions; say nothing then.
            inherited: The class may have the name from a base, which is left as it is.

        """
        change = functools.partial(self._change, name, wrap, optional, inherited)
        after_import(module, change)

    def _change(
        self,
        name: str,
        wrap: Callable[[Any], Any],
        optional: bool,
        inherited: bool,
        module: ModuleType,
    ) -> None:
        if not self.active:  # undone before the module was imported
            return
        *path, attribute = name.split(".")
        try:
            owner = functools.reduce(getattr, path, module)
            own = attribute in vars(owner) or not inherited
            original = vars(owner)[attribute] if own else getattr(owner, attribute)
            made = wrap(original)
            if getattr(made, "__globals__", {}).get("__package__") == __package__:
                uncounted(made)
            _hide(made, getattr(wrap, "function", made))
            setattr(owner, attribute, made)
        except Exception as error:
            if not optional:
                self.missing(f"{module.__name__}.{name}", error)
            return
        self.held.add(name)
        if made is not original:
            self._undo.append((owner, attribute, original if own else _ABSENT, made))

    def missing(self, name: str, error: Exception) -> None:
        """Say that torch's ``name`` does not work here, and what is lost by it."""
        log.debug("no %s: %s: %r", self.what, name, error)
        reason = f"no {self.what}: {type(error).__name__}: {error}"
        sidecar.lacking(name, reason)

    def undo(self) -> None:
        """Put the originals back where nobody else has replaced ours since."""
        self.active = False
        self.held.clear()
        self.set_aside()
        self._undo.clear()

    def set_aside(self) -> None:
        """Put the originals back until `put_back`."""
        for owner, attribute, original, made in reversed(self._undo):
            if vars(owner).get(attribute) is not made:
                continue
            if original is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)

    def put_back(self) -> None:
        """Replace again what was set aside, unless somebody else has replaced it meanwhile."""
        for owner, attribute, original, made in self._undo:
            if vars(owner).get(attribute, _ABSENT) is original:
                setattr(owner, attribute, made)
