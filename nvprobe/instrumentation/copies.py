"""The phase ``h2d``: copies from the host's memory to the device, by ``Tensor.to`` and ``.cuda``.

A range around each of thousands of small copies would cost more than they do and say nothing new.
So the phase ends with the first step that makes more than `MOST` small ones, in its midst, until
the instrumentation wakes the next time: the copies then belong to the range around them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from nvprobe.instrumentation import awake, emitter, places, sidecar, steps, torch_hooks
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.hooks import Hooks

MOST = 32
"""Small copies of one step that have a phase each."""
LARGE = 2**20
"""Bytes from which on a copy takes so long that a range is nothing beside it."""
LABEL = emitter.label("h2d", Category.PHASE)

_hooks = Hooks("the phase h2d")
_small = 0
"""Small copies of this step."""
_openings = 0


def install() -> None:
    """Give copies to the device a range while the instrumentation is awake."""
    awake.follow(_begin, _hooks.undo)
    steps.on_step(_next_step)


def uninstall() -> None:
    """Give torch its methods back."""
    _hooks.undo()


def _begin() -> None:
    global _small
    _small = 0
    if _hooks.begin():
        for name in ("to", "cuda"):
            _hooks.replace("torch", f"Tensor.{name}", _copying, inherited=True)


def _next_step(_done: int) -> None:
    """Count the small copies of one step."""
    global _small
    _small = 0


def _copying(original: Any) -> Any:
    from torch._C import DisableTorchFunction
    from torch.overrides import has_torch_function_unary

    to_cuda = original.__name__ == "cuda"

    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The same; a copy that leaves the host is a phase."""
        if compiling_module.compiling():
            return original(self, *args, **kwargs)
        if has_torch_function_unary(self):  # a subclass or mode sees who asks for an attribute
            with DisableTorchFunction():
                ranged = _ranged(self, to_cuda or _leaves(args, kwargs))
        else:
            ranged = _ranged(self, to_cuda or _leaves(args, kwargs))
        if not ranged:
            return original(self, *args, **kwargs)
        if sidecar.is_open() and places.due(_openings):
            places.note("h2d", Category.PHASE, places.CALLED, places.caller(1))
        emitter.push(LABEL)
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()

    torch_hooks.hide_from_dynamo(
        [uncounted(copy), *torch_hooks.functions_of(sys.modules[__name__])]
    )
    return copy


def _ranged(tensor: Any, leaves: bool) -> bool:
    """Whether a copy that leaves the host has a range: a large one, or a first one of its step."""
    global _small, _openings
    if not leaves or tensor.device.type != "cpu":
        return False
    if tensor.numel() * tensor.element_size() < LARGE:
        _small += 1
        if _small > MOST:
            _hooks.undo()
            return False
    _openings += 1
    return True


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of ``to`` name a device that is not the host."""
    target = kwargs.get("device", args[0] if args else None)
    kind = getattr(target, "device", target)  # ``to(other)``: the other tensor's device
    if isinstance(kind, str):
        return not kind.startswith("cpu")
    if isinstance(kind, int) and not isinstance(kind, bool):
        return True
    return getattr(kind, "type", "cpu") != "cpu"
