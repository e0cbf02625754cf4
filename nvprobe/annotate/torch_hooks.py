"""Every touch of torch's internals by ranges, modules, phases and syncs; each may be missing.

A function here returns what it found, or None after one debug line that says what is missing and
which versions were read; no exception leaves it. docs/torch-versions.md lists the same facts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, cast

__all__ = ["available", "hide_from_dynamo", "never_inline", "sequence_number"]

log = logging.getLogger("nvprobe")

KNOWN = "torch 2.6 to 2.13"

_missing: dict[str, str] = {}


def _report(name: str, reason: object) -> None:
    """One debug line a hook, however often it is asked for."""
    if name not in _missing:
        _missing[name] = f"{type(reason).__name__}: {reason}"
        log.debug("%s is not available here (known: %s): %s", name, KNOWN, reason)


def available() -> dict[str, str]:
    """The hooks that were looked for in vain, with the reason."""
    return dict(_missing)


def sequence_number() -> Callable[[], int] | None:
    """The function that tells this thread's next autograd sequence number.

    ``torch._C._autograd._get_sequence_nr`` (2.1 to 2.13), 25 ns a call.
    """
    try:
        import torch

        found: Callable[[], int] = torch._C._autograd._get_sequence_nr
        found()
    except Exception as error:
        _report("sequence numbers", error)
        return None
    return found


def hide_from_dynamo(functions: Iterable[Callable[..., Any]]) -> bool:
    """Let Dynamo run these functions' frames as they are, while it still compiles what they call.

    What ``torch._dynamo.skip`` does, without importing Dynamo: ``skip_code`` of
    ``torch._C._dynamo.eval_frame`` (to 2.6), ``set_code_exec_strategy`` (2.7 to 2.13). Without it
    Dynamo would try, and give up on, every frame of ours that it meets between graphs.
    """
    try:
        skip = _skipper()
        for function in functions:
            skip(function.__code__)
    except Exception as error:
        _report("skipping frames in Dynamo", error)
        return False
    return True


def _skipper() -> Callable[[Any], None]:
    import torch

    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        return cast("Callable[[Any], None]", frames.skip_code)
    action = frames._FrameAction
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, strategy)


def never_inline(wrapper: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Make Dynamo trace ``original`` wherever it meets ``wrapper``.

    ``_torchdynamo_inline`` is read by ``UserFunctionVariable`` (2.1 to 2.13). An attribute only:
    where it means nothing, the wrapper asks `compiling` and calls through.
    """
    wrapper.__dict__.setdefault("_torchdynamo_inline", original)


def functions_of(*modules: ModuleType) -> list[FunctionType]:
    """The functions and methods that modules define themselves."""
    found: list[FunctionType] = []
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            members = vars(value).values() if isinstance(value, type) else (value,)
            found += [one for one in members if isinstance(one, FunctionType)]
    return found


def torch_loaded() -> bool:
    """Whether the program has imported torch (completely)."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compiler") and hasattr(torch, "nn")
