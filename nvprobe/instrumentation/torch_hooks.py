"""Every touch of torch's internals by ranges, modules, phases and syncs; each may be missing.

A function here returns what it found, or None after one debug line that says what is missing and
which versions were read; no exception leaves it. docs/torch-versions.md lists the same facts.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nvprobe.instrumentation import sidecar

log = logging.getLogger("nvprobe")

KNOWN = "torch 2.6 to 2.15"

DRIVER = Path("/proc/driver/nvidia/version")

_missing: dict[str, str] = {}


def _report(name: str, reason: object) -> None:
    """One debug line a hook, and one in the sidecar, however often it is asked for."""
    if name not in _missing:
        _missing[name] = f"{type(reason).__name__}: {reason}"
        log.debug("%s is not available here (known: %s): %s", name, KNOWN, reason)
        sidecar.lacking(name, _missing[name])


def sequence_number() -> Callable[[], int] | None:
    """The function that returns this thread's next autograd sequence number.

    ``torch._C._autograd._get_sequence_nr`` (2.1 to 2.13), 25 ns per call.
    """
    try:
        import torch

        found: Callable[[], int] = torch._C._autograd._get_sequence_nr
        found()
    except Exception as error:
        _report("sequence numbers", error)
        return None
    return found


def allocator_counters() -> Callable[[int], Any] | None:
    """What reads the caching allocator's counters of a device, as a nested dictionary.

    ``torch.cuda.memory_stats_as_nested_dict`` (1.8 to 2.13); None until the program itself has
    begun to use CUDA, which this never does, and for another allocator than torch's own
    (``get_allocator_backend``, 2.0 to 2.13): ``cudaMallocAsync`` asks the driver, of each device,
    and a pluggable one has no counters.
    """
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized() or cuda.get_allocator_backend() != "native":
            return None
        found: Callable[[int], Any] = cuda.memory_stats_as_nested_dict
    except Exception as error:
        _report("counters of the allocator", error)
        return None
    return found


def versions(torch: Any) -> dict[str, str | None]:
    """Versions of torch, of the CUDA that it was built with, and of the NVIDIA driver."""
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", DRIVER.read_text("utf-8", "replace"))
    except OSError:
        found = None
    return {
        "version": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "driver": found and found[0],
    }


def compile_id() -> str | None:
    """The id (``0/1``: second compilation of the first frame) of what is being compiled, if any.

    ``torch._guards.CompileContext.current_compile_id`` (2.1 to 2.13).
    """
    try:
        from torch._guards import CompileContext

        identity = CompileContext.current_compile_id()
    except Exception as error:
        _report("compile ids", error)
        return None
    return None if identity is None else str(identity)


def node_number() -> int | None:
    """The sequence number of the autograd node that runs on this thread, if one does.

    ``torch._C._current_autograd_node`` (2.1 to 2.13) and ``_sequence_nr`` of what it gives.
    """
    try:
        import torch

        node = torch._C._current_autograd_node()
        return None if node is None else int(node._sequence_nr())
    except Exception as error:
        _report("numbers of backward nodes", error)
        return None


def hide_from_dynamo(functions: Iterable[Callable[..., Any]]) -> bool:
    """Let Dynamo run these functions' frames as they are, while it still compiles what they call.

    What ``torch._dynamo.skip`` does, without importing Dynamo: ``skip_code`` of
    ``torch._C._dynamo.eval_frame`` (to 2.6), ``set_code_exec_strategy`` (2.7 to 2.13). Without it
    Dynamo would try, and give up on, every frame of ours that it meets between graphs. With
    ``fullgraph=True`` it gives up by an error: nothing that functions of `LEAVES` call, such as the
    standard library, reaches Dynamo either (from 2.7 on).
    """
    try:
        skip = _skipper()
        hidden: list[Any] = [*functions, *_leaves()]
        waiting = [(one.__code__, one.__module__ in LEAVES) for one in hidden]
        while waiting:
            code, leaf = waiting.pop()
            skip(code, leaf)
            # Comprehensions and inner functions run in frames of their own.
            waiting += [(one, leaf) for one in code.co_consts if isinstance(one, CodeType)]
    except Exception as error:
        _report("skipping frames in Dynamo", error)
        return False
    return True


LEAVES = {
    f"nvprobe.instrumentation.{name}"
    for name in ("awake", "compiling", "emitter", "places", "sidecar", "sources")
}
"""Modules that call no code of the program."""
_leaves_hidden = False


def _leaves() -> list[FunctionType]:
    """The functions of `LEAVES`, the first time."""
    global _leaves_hidden
    if _leaves_hidden:
        return []
    _leaves_hidden = True
    return functions_of(*(sys.modules[name] for name in LEAVES if name in sys.modules))


def _skipper() -> Callable[[CodeType, bool], None]:
    """What hides one frame from Dynamo, and for a leaf all that it calls."""
    import torch

    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        return lambda code, _leaf: frames.skip_code(code)
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategy = [frames._FrameExecStrategy(skip, called) for called in (default, skip)]
    return lambda code, leaf: frames.set_code_exec_strategy(code, strategy[leaf])


def outside_dynamo(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with Dynamo's frame evaluation switched off, for it and all it calls.

    ``set_eval_frame`` of ``torch._C._dynamo.eval_frame`` (2.0 to 2.13), what ``torch._dynamo``'s
    own contexts use. Where it is missing the function is called all the same.
    """
    try:
        import torch

        switch = torch._C._dynamo.eval_frame.set_eval_frame
        callback = switch(None)
    except Exception as error:
        _report("switching Dynamo off", error)
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    finally:
        switch(callback)


def functions_of(*modules: ModuleType) -> list[FunctionType]:
    """The functions and methods that modules define themselves."""
    found: list[FunctionType] = []
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if hasattr(value, "cache_info"):
                value = value.__wrapped__
            members = vars(value).values() if isinstance(value, type) else (value,)
            found += [one for one in members if isinstance(one, FunctionType)]
    return found


def torch_loaded() -> bool:
    """Whether the program has imported torch (completely)."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compiler") and hasattr(torch, "nn")
