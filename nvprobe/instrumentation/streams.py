"""Lines that order streams, and that give the allocator's memory back.

Neither blocks the host nor shows in a profile by itself: the line that makes the compute wait for
a copy, and the one that empties the cache, are only known here. The functions stay what they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from nvprobe.instrumentation import awake, places, sidecar, torch_hooks
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.hooks import Hooks, after_import

_hooks = Hooks("lines of stream waits and of empty_cache")


def install() -> None:
    """Note these calls from now on."""
    if not _hooks.begin():
        return
    after_import("torch", _hide)
    for name in ("Stream.wait_stream", "Stream.wait_event"):
        _hooks.replace("torch.cuda.streams", name, _sited(f"torch.cuda.{name}", _of_stream))
    _hooks.replace("torch.cuda.streams", "Event.wait", _sited("torch.cuda.Event.wait", _of_event))
    for module in ("torch.cuda.memory", "torch.cuda"):
        _hooks.replace(module, "empty_cache", _sited("torch.cuda.empty_cache", _nobody))


def _hide(_torch: object) -> None:
    torch_hooks.hide_from_dynamo(torch_hooks.functions_of(sys.modules[__name__], places))


def uninstall() -> None:
    """Give torch its functions back."""
    _hooks.undo()


def _sited(what: str, waiter: Callable[..., str | None]) -> Callable[[Any], Any]:
    """Make the same function, which notes from where it is called."""

    def wrap(original: Any) -> Any:
        """The replacement of one function."""

        @functools.wraps(original)
        def sited(*args: Any, **kwargs: Any) -> Any:
            """The same, after its caller's line has been noted."""
            if not compiling_module.compiling() and awake.now and sidecar.is_open():
                places.site(what, waiter(*args, **kwargs))
            return original(*args, **kwargs)

        return sited

    return wrap


def _of_stream(stream: Any, /, *args: Any, **kwargs: Any) -> str | None:
    """Whether it is the default stream that waits: usually that of the compute.

    Positional alone: ``wait_stream(stream=…)`` has an argument of that name.
    """
    handle = getattr(stream, "cuda_stream", None)
    return None if not isinstance(handle, int) else "side" if handle else "default"


def _of_event(event: Any, /, stream: Any = None) -> str | None:
    return None if stream is None else _of_stream(stream)


def _nobody(*args: Any, **kwargs: Any) -> None:
    """No stream waits."""
