"""Phases of a program that names none: data, h2d, forward, loss, backward, clip, optimizer.

Each is a range around a call that the program makes anyway: the loader's next batch, a copy to the
device, the call of a root module, ``backward``, gradient clipping, the step of an optimizer or a
scheduler. Where the program marks no steps, they are found from the same calls (`periods`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import (
    awake,
    compiled,
    copies,
    emitter,
    forwards,
    graphs,
    loaders,
    modules,
    objects,
    places,
    sidecar,
    steps,
    torch_hooks,
)
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation import periods as periods_module
from nvprobe.instrumentation.emitter import Category, Label
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.hooks import Hooks, after_import
from nvprobe.instrumentation.periods import periods

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from nvprobe.instrumentation.forwards import Record

PHASES = (
    "data",
    "forward",
    "loss",
    "backward",
    "clip",
    "optimizer",
    "scheduler",
    "evaluation",
)
LABELS: dict[str, Label] = {name: emitter.label(name, Category.PHASE) for name in PHASES}

_hooks = Hooks("phases")


class _Inside(threading.local):
    """What the thread is in: a root module's call, and whose ``step``."""

    root = False
    optimizer: Any = None
    scheduler: Any = None


_inside = _Inside()


def _phase(name: str, before: Callable[[], object] | None = None) -> Callable[[Any], Any]:
    """Make a replacement for a function: the same, in a range."""
    label = LABELS[name]

    def wrap(original: Any) -> Any:
        """The replacement of one function."""

        @functools.wraps(original)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            """The same, as a phase."""
            if compiling_module.compiling():
                return original(*args, **kwargs)
            if before is not None:
                before()
            if not awake.now:
                return original(*args, **kwargs)
            if sidecar.is_open():
                _called(name)
            emitter.push(label)
            try:
                return original(*args, **kwargs)
            finally:
                emitter.pop()

        return _unseen(ranged)

    return wrap


_openings = dict.fromkeys(PHASES, 0)


def _called(name: str, role: str = places.CALLED) -> None:
    """Note where a phase's function is called; for its wrapper alone."""
    if _due(name):
        places.note(name, Category.PHASE, role, places.caller(2))


def _due(name: str) -> bool:
    """Whether this opening of a phase is looked at."""
    openings = _openings[name] = _openings[name] + 1
    return places.due(openings)


def _unseen(wrapper: Any) -> Any:
    """Hide a wrapper's frame from Dynamo, and from warnings that count frames.

    Where Dynamo inlines it, it asks whether it is traced.
    """
    torch_hooks.hide_from_dynamo([uncounted(wrapper)])
    return wrapper


def _loading(original: Any) -> Any:
    """``_BaseDataLoaderIter.__next__``: a batch is waited for."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        noted = awake.now and sidecar.is_open()
        if noted:
            loaders.note(self)
        if steps.waiting():
            return original(self)
        if noted:
            _called("data", places.LOOP)
        exhausted = _exhausted(self)
        begun = not exhausted and periods.data()
        if exhausted:
            periods.exhausted()
        try:
            return steps.wait_for(functools.partial(original, self))
        except StopIteration:
            if begun:
                steps.end_without_batch()
            raise

    return _unseen(__next__)


def _exhausted(iterator: Any) -> bool:
    """Whether a loader's iterator has given all its batches, where it can know (map datasets)."""
    try:
        return bool(iterator._num_yielded >= len(iterator))
    except Exception:  # another version; a dataset or sampler without length
        return False


def _constructing(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``step`` of classes that are defined later when their first instance is made."""

    def construct(original: Any) -> Any:
        """The replacement of ``__init__``."""

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            if not compiling_module.compiling():
                wrap_step(type(self), wrap)

        return _unseen(__init__)

    return construct


def _wrap_known(base: type, wrap: Callable[[Any], Any]) -> None:
    """Wrap ``step`` of every class there is now."""
    waiting = [base]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if "step" in cls.__dict__:
            wrap_step(cls, wrap)


_stepping: dict[type, tuple[Any, Any]] = {}
"""Classes whose ``step`` is wrapped: the original and the replacement."""


def wrap_step(cls: type, wrap: Callable[[Any], Any]) -> None:
    """Wrap the ``step`` that instances of a class run, once."""
    owner = next((one for one in cls.__mro__ if "step" in one.__dict__), None)
    if owner is None or owner in _stepping or not _hooks.active:
        return
    original = owner.__dict__["step"]
    if isinstance(original, (staticmethod, classmethod)) or not callable(original):
        return
    made = wrap(original)
    try:
        owner.step = made  # type: ignore[attr-defined]
    except (AttributeError, TypeError):  # an immutable class
        return
    _stepping[owner] = original, made


def _stepping_in(name: str, after: Callable[[Any], object] | None = None) -> Callable[[Any], Any]:
    """Make a ``step`` that is a phase; a subclass's, which calls its base's, is one phase too."""
    label = LABELS[name]

    def wrap(original: Any) -> Any:
        """The replacement of one function."""

        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            """The same, as a phase."""
            if compiling_module.compiling():
                return original(self, *args, **kwargs)
            outer = getattr(_inside, name, None)
            if outer is self:
                return original(self, *args, **kwargs)
            setattr(_inside, name, self)
            ranged = awake.now
            if ranged and sidecar.is_open():
                _called(name)
            if ranged:
                emitter.push(label)
            try:
                return original(self, *args, **kwargs)
            finally:
                if ranged:
                    emitter.pop()
                setattr(_inside, name, outer)
                if after is not None:
                    after(self)

        return _unseen(step)

    return wrap


_optimizing = _stepping_in("optimizer", periods.optimizer)
_scheduling = _stepping_in("scheduler")


@uncounted
def _run_root(
    original: Callable[..., Any],
    record: Record,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a root module's call in its phase, which it has once: not inside another root's.

    Nor inside a loader, or the evaluation of a trainer.
    """
    if _inside.root or steps.waiting() or periods.evaluating:
        return forwards.call(original, record, module, args, kwargs)
    trains = objects.trains(module)
    name = _phase_of(module, trains)
    if name != "loss":
        periods.forward(module, trains)
    if not awake.now:
        return _asleep(original, module, args, kwargs)
    if sidecar.is_open() and _due(name):  # behind this and its caller: the wrapper
        places.note(name, Category.PHASE, places.CALLED, places.module_caller(3))
    _inside.root = True
    emitter.push(LABELS[name])
    try:
        return forwards.call(original, record, module, args, kwargs)
    finally:
        emitter.pop()
        _inside.root = False


@uncounted
def _asleep(
    original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a root module; other roots that it calls are not phases of the step either."""
    _inside.root = True
    try:
        return original(module, *args, **kwargs)
    finally:
        _inside.root = False


def _compiled_call(graph: str) -> None:
    """A compiled graph is about to be called: by a root module, or by a compiled function."""
    if not _inside.root:
        periods.compiled(graph)


_criteria: dict[type, bool] = {}


def _is_criterion(cls: type) -> bool:
    """Whether it is one of torch's losses. A dict, as Dynamo would trace into an `lru_cache`."""
    known = _criteria.get(cls)
    if known is None:
        modules = [one.__module__ for one in cls.__mro__]
        known = _criteria[cls] = "torch.nn.modules.loss" in modules
    return known


def _phase_of(module: nn.Module, trains: bool) -> str:
    """``loss`` for torch's criteria; ``evaluation`` in programs that also train."""
    if _is_criterion(type(module)):
        return "loss"
    return "forward" if trains or periods.leader is None else "evaluation"


def install() -> None:
    """Give the program's phases ranges, and its steps, from now on."""
    if not _hooks.begin():
        return
    if torch_hooks.torch_loaded():
        _install_known()
    else:
        after_import("torch", lambda _torch: _install_known())


def _install_known() -> None:
    """What needs torch."""
    if not _hooks.active:
        return
    forwards.run_root = _run_root
    graphs.before_replay = periods.replay
    compiled.before_call = _compiled_call
    for root in list(modules.annotated_roots.values()):
        modules.mark_root(root)
    here = sys.modules[__name__]
    ours = (here, copies, periods_module, steps, places, loaders)
    torch_hooks.hide_from_dynamo(torch_hooks.functions_of(*ours))
    loader = "_BaseDataLoaderIter.__next__"
    _hooks.replace("torch.utils.data.dataloader", loader, _loading)
    _hooks.replace("torch.autograd", "backward", _phase("backward", periods.backward))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        for module in ("torch.nn.utils", "torch.nn.utils.clip_grad"):
            _hooks.replace(module, name, _phase("clip"))
    copies.install()
    for module, base, wrap in (
        ("torch.optim.optimizer", "Optimizer", _optimizing),
        ("torch.optim.lr_scheduler", "LRScheduler", _scheduling),
    ):
        _hooks.replace(module, f"{base}.__init__", _constructing(wrap))
        after_import(module, functools.partial(_wrap_family, base, wrap))


def _wrap_family(base: str, wrap: Callable[[Any], Any], module: ModuleType) -> None:
    try:
        _wrap_known(getattr(module, base), wrap)
    except Exception as error:
        _hooks.missing(f"{module.__name__}.{base}", error)


def uninstall() -> None:
    """Give the program its functions back."""
    _hooks.undo()
    copies.uninstall()
    forwards.run_root = None
    graphs.before_replay = compiled.before_call = emitter.nobody
    for owner, (original, made) in _stepping.items():
        if owner.__dict__.get("step") is made:
            owner.step = original  # type: ignore[attr-defined]
    _stepping.clear()
