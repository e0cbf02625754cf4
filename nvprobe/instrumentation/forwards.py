"""How a module's ``forward`` gets a range: a wrapper on the class, a `Record` on the instance.

The wrapper looks for the record in the instance's ``__dict__``; instances without one pass through.
Compared with forward hooks it

* costs a quarter, and closes the range on any exception, ``KeyboardInterrupt`` included;
* changes no choice that torch makes by looking for hooks: the fused inference path of
  ``TransformerEncoderLayer``, ``make_graphed_callables``, what Dynamo compiles after a break;
* copies with the instance (deepcopy, DataParallel's replicas) and pickles as a plain string.

Dynamo sees a wrapper that calls the original: inlined it leaves nothing in the graph, and called
between graphs its frame runs as it is, so that a compiled root has its range, too. What lies
outside ``forward``, a module's own hooks, is outside the range: FSDP2's all-gathers belong to the
module around.

Instances that carry a ``forward`` of their own (accelerate, graphed callables) get forward hooks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

from nvprobe.instrumentation import awake, emitter, objects, places, sidecar, steps, torch_hooks
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.emitter import Label
from nvprobe.instrumentation.frames import UNCOUNTED, uncounted

if TYPE_CHECKING:
    from torch import nn

KEY = "_nvprobe_range"
"""Where an instance's record is: a plain entry of its ``__dict__``."""
COLUMNS = ("module", "thread", "first_seq", "last_seq", "start_ns", "end_ns")


class Record(str):
    """A module's range: its path as text, so that a pickle holds nothing but the text.

    Attributes:
        owner: The class whose ``forward`` opens the range: a subclass's ``super().forward()`` must
            not open it again. None for a module without a range, with hooks, or a root.
        root: The owner, if the module is a root whose calls `run_root` takes.
        label: What the range is written with; None for a module that was left out.
        calls: How often it was called with a sidecar.
        number: Which object it is, once that is noted (`objects`); -1 before.
        within: The name of the root that the module is part of; None for a root, and for a module
            outside its root's tree.

    """

    __slots__ = ("calls", "label", "number", "owner", "root", "within")
    owner: type | None
    root: type | None
    label: Label | None
    within: str | None
    calls: int
    number: int

    def __deepcopy__(self, memo: object) -> Record:
        """A record of its own: the copy has parameters of its own."""
        copied = make_record(str(self), self.owner, self.label, self.within)
        copied.root = self.root
        return copied

    def __copy__(self) -> Record:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def make_record(
    path: str, owner: type | None, label: Label | None, within: str | None = None
) -> Record:
    """Make a record; text takes no further arguments in its ``__init__``."""
    record = Record(path)
    record.owner = owner
    record.root = None
    record.label = label
    record.within = within
    record.calls = 0
    record.number = -1
    return record


def record_of(module: nn.Module) -> Record | None:
    """An instance's record, if it has one."""
    found = module.__dict__.get(KEY)
    return found if type(found) is Record else None


find_root: Callable[[Any, type], Record | None] | None = None
"""Asked for the record of an instance without one; set by `discovery`."""

root_called: Callable[[Any, tuple[Any, ...], dict[str, Any]], object] = emitter.nobody
"""Called with each call of a root while awake; set by `engine_runs`."""

run_root: Callable[..., Any] | None = None
"""Does what `call` does, in the root's phase, with the same arguments; set by `phases`."""

_lock = threading.RLock()
_classes: dict[type, tuple[FunctionType, FunctionType]] = {}
"""Classes that were wrapped: their own forward, and the wrapper."""
_resting: set[type] = set()
"""Those of them that have their own forward back for now (`rest`)."""
_stay: set[type] = set()
"""Those whose calls count steps also while the instrumentation sleeps: roots'."""
_wrapper_codes: dict[int, CodeType] = {}
"""By id: code that Dynamo has written may hold constants without a hash, and then has none."""
_rows = sidecar.Rows("module", COLUMNS)
_next_sequence: Callable[[], int] = int
"""This thread's next autograd sequence number; always 0 where torch does not say it."""


def is_wrapper(code: CodeType) -> bool:
    """Whether a frame's code is one of the wrappers made here."""
    return id(code) in _wrapper_codes


def _template(original: Callable[..., Any], owner: type) -> FunctionType:
    """The wrapper of a class's forward; all it needs is in its closure (see `_relocate`).

    That holds modules, functions and types: Dynamo knows no other values without a source.
    """
    here, emit, now = sys.modules[__name__], emitter, time.time_ns
    instrumentation, counting = awake, steps
    key, record_type, call_root, compilation = KEY, Record, _call_root, compiling_module
    note, first_calls, every = places.called, places.FIRST_CALLS, places.EVERY

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The class's forward, inside a range where the module has a record."""
        if compilation.compiling():
            return original(self, *args, **kwargs)
        record = self.__dict__.get(key)
        if type(record) is not record_type:
            find_root = here.find_root  # read once: another thread may take it away
            record = find_root(self, owner) if find_root else None
        if record is None or record.owner is not owner:
            if record is not None and record.root is owner:
                if instrumentation.now and here._rows.append:
                    record.calls += 1
                    if record.calls <= first_calls or record.calls % every == 0:
                        note(record, None)
                return call_root(original, record, self, args, kwargs)
            return original(self, *args, **kwargs)
        if not instrumentation.now:
            return original(self, *args, **kwargs)
        # No other Python frame from here on: of models by the thousand, each costs.
        append = here._rows.append
        if append is not None:
            record.calls = calls = record.calls + 1
            if calls <= first_calls or not calls % every:
                note(record, record.within)
                here._rows.limit()
        thread = counting.threads.here
        if not thread.rows:
            append = None
        if append is not None:
            number = here._next_sequence
            first, start = number(), now()
        thread.depth += 1  # as `steps` counts
        emit.own_push(record.label)
        try:
            if kwargs or len(args) != 1:
                return original(self, *args, **kwargs)
            return original(self, args[0])  # the usual call, for less
        finally:
            if thread.step_depth == thread.depth:
                counting.end()
            thread.depth -= 1
            emit.own_pop()
            if append is not None and (last := number()) != first:
                append((record, thread.id, first, last, start, now()))

    assert isinstance(forward, FunctionType)
    return forward


@uncounted
def _call_root(
    original: Callable[..., Any],
    record: Record,
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a root module, through `run_root` where phases are wanted."""
    return (run_root or call)(original, record, module, args, kwargs)


@uncounted
def call(
    original: Callable[..., Any],
    record: Record,
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What the wrapper does, for roots."""
    if not awake.now:
        return original(module, *args, **kwargs)
    root_called(module, args, kwargs)
    objects.model_called(record, module)
    first, start = _next_sequence(), time.time_ns()
    emitter.push(record.label)  # type: ignore[arg-type]
    try:
        return original(module, *args, **kwargs)
    finally:
        emitter.pop()
        if (last := _next_sequence()) != first:
            _log_call(record, first, last, start)


def _log_call(record: Record, first: int, last: int, start: int) -> None:
    """Note which autograd nodes a call made: backward kernels are found by their number."""
    thread = steps.threads.here.id
    sidecar.row("module", COLUMNS, (record, thread, first, last, start, time.time_ns()))


def _relocate(template: FunctionType, original: FunctionType) -> FunctionType:
    """Make the wrapper look as if written on the line of the original's ``def``.

    Dynamo decides by file whether a frame is torch's; torch.jit resolves the names of the
    original's source in the wrapper's globals; and warnings look past it (`frames`).
    """
    code = original.__code__
    size = len(template.__code__.co_code)
    moved = template.__code__.replace(
        co_filename=code.co_filename + UNCOUNTED,
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
        co_linetable=_one_line(size, hasattr(code, "co_exceptiontable")),
    )
    wrapper = FunctionType(
        moved, original.__globals__, original.__name__, None, template.__closure__
    )
    functools.update_wrapper(wrapper, original)
    if not hasattr(original, "__wrapped__"):  # inspect.getfullargspec looks behind no wrapper
        with contextlib.suppress(Exception):  # 3.14: annotations that only type checkers can read
            wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return wrapper


def _one_line(size: int, units: bool) -> bytes:
    """A line table that puts ``size`` bytes of code on the first line.

    Python 3.11 and later (``units``): an entry of kind 13, line delta 0 and no columns, for up to 8
    code units of 2 bytes. 3.10: pairs of a byte delta, at most 254, and a line delta.
    """
    if not units:
        return b"".join(bytes([min(254, size - at), 0]) for at in range(0, size, 254))
    count = size // 2
    return b"".join(bytes([0xE8 | (min(8, count - at) - 1), 0]) for at in range(0, count, 8))


def owner_of(cls: type) -> type | None:
    """The class that defines ``forward``; None where only ``nn.Module`` does (containers)."""
    for one in cls.__mro__:
        if "forward" in one.__dict__:
            plain = inspect.isfunction(one.__dict__["forward"])
            return one if plain and one.__module__ != "torch.nn.modules.module" else None
    return None


def wrap_class(cls: type) -> type | None:
    """Wrap the forward that a class's instances run, once.

    Returns:
        The class that owns it, or None where there is nothing to wrap.

    """
    owner = owner_of(cls)
    if owner is None or owner in _classes:
        return owner
    with _lock:
        original = owner.__dict__["forward"]
        _prepare()
        wrapper = _relocate(_template(original, owner), original)
        torch_hooks.hide_from_dynamo([wrapper])
        try:
            owner.forward = wrapper  # type: ignore[attr-defined]
        except (AttributeError, TypeError):  # an immutable class
            return None
        _wrapper_codes[id(wrapper.__code__)] = wrapper.__code__
        _classes[owner] = original, wrapper
    return owner


def stays(owner: type) -> None:
    """Let a class keep its wrapper whatever `rest` does: calls of its instances count steps."""
    _stay.add(owner)
    if owner in _resting:
        resume()


def rest() -> None:
    """Give classes their own forward back until `resume`: their calls then cost nothing.

    Not once torch has traced anything: what it compiled is guarded on the functions it found.
    """
    if compiling_module.begun or len(_resting) + len(_stay) >= len(_classes):
        return
    with _lock:
        for owner in _classes.keys() - _resting - _stay:
            original, wrapper = _classes[owner]
            if owner.__dict__.get("forward") is wrapper:
                owner.forward = original  # type: ignore[attr-defined]
                _resting.add(owner)


def resume() -> None:
    """Wrap the classes of `rest` again, around what they have as ``forward`` by now."""
    with _lock:
        while _resting:
            owner = _resting.pop()
            original, wrapper = _classes[owner]
            if owner.__dict__.get("forward") is original:
                owner.forward = wrapper  # type: ignore[attr-defined]
            else:  # replaced by the program
                del _classes[owner]
                wrap_class(owner)


@functools.lru_cache(maxsize=1)
def _prepare() -> None:
    """Once: find torch's functions and hide our frames from Dynamo."""
    global _next_sequence
    compiling_module.bind()
    _next_sequence = torch_hooks.sequence_number() or int
    ours = (torch_hooks, objects, sys.modules[__name__])
    torch_hooks.hide_from_dynamo(torch_hooks.functions_of(*ours))


def unwrap_classes() -> None:
    """Give every class its own forward back, unless somebody replaced ours since."""
    with _lock:
        for owner, (original, wrapper) in list(_classes.items()):
            current = owner.__dict__.get("forward")
            if current is wrapper:
                owner.forward = original  # type: ignore[attr-defined]
            if current in (original, wrapper):
                del _classes[owner]
        _resting.clear()


def add_hooks(module: nn.Module, record: Record) -> None:
    """Open and close a module's range by forward hooks."""
    label = cast("Label", record.label)
    compilation = compiling_module
    open_ranges = threading.local()

    def enter(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Open the range."""
        if not compilation.compiling() and awake.now:
            if record.within is None:
                root_called(module, args, kwargs)
            if sidecar.is_open():
                places.called(record, record.within)
            open_ranges.depth = getattr(open_ranges, "depth", 0) + 1
            emitter.push(label)

    def leave(module: object, args: object, output: object) -> None:
        """Close the range, also after an exception."""
        if not compilation.compiling() and getattr(open_ranges, "depth", 0) > 0:
            open_ranges.depth -= 1
            emitter.pop()

    torch_hooks.hide_from_dynamo([enter, leave])
    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
    module.register_forward_hook(leave, always_call=True)


def drop_record(module: nn.Module) -> None:
    """Take a module's record, and the hooks of `add_hooks`, away."""
    if module.__dict__.pop(KEY, None) is None:
        return
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if getattr(hook, "__module__", None) == __name__:
                del hooks[key]
                module._forward_hooks_always_called.pop(key, None)
                module._forward_pre_hooks_with_kwargs.pop(key, None)
