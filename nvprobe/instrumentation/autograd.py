"""Names of backward nodes as NVTX ranges, without backward hooks.

While an NVTX tool listens, runs of the autograd engine are surrounded by torch's NVTX profiler
state: all of them, or the first ones of each kind (`engine_runs`). The state is limited to backward
nodes (``AddmmBackward0, seq = 12``) and user scopes. The engine carries it to its worker threads;
operators outside the engine are not touched. The number leads to the module call that made the
node: see the sidecar's ``module`` rows.

The state excludes torch.profiler at the same time, so it stays away while one is running.
``_engine_run_backward`` exists in torch 2.2 to 2.13; ``ProfilerConfig`` and ``_enable_profiler``
were read in 2.6 to 2.13. A torch built without CUDA has no NVTX state: nothing is named there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import awake, emitter, engine_runs
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.hooks import Hooks, around

if TYPE_CHECKING:
    from collections.abc import Callable

_hooks = Hooks("names of backward nodes")


def install() -> None:
    """Name backward nodes from now on, where an NVTX tool listens."""
    if not emitter.listening() or not _hooks.begin():
        return
    for module in ("torch.autograd", "torch.autograd.graph"):
        _hooks.replace(module, "_engine_run_backward", _run_backward)


def uninstall() -> None:
    """Leave the engine alone."""
    _hooks.undo()


@around
def _run_backward(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The engine's entry, with names for the nodes that it runs where they are needed."""
    if compiling_module.compiling() or not awake.now or not _hooks.active:
        return original(*args, **kwargs)
    import torch

    if _is_taken(torch):
        return original(*args, **kwargs)
    named, mark = engine_runs.begins(torch, args[0] if args else (), (*args[1:], *kwargs.values()))
    end = _begin(torch) if named else None
    if end is None and (named or mark is None):
        return original(*args, **kwargs)
    if mark is not None:
        emitter.mark(mark)
    try:
        return original(*args, **kwargs)
    finally:
        if end is not None:
            _finish(end)
        if mark is not None:
            emitter.mark(engine_runs.ENDS)


def _finish(end: Callable[[], object]) -> None:
    """Turn the state off, also where a hook of the program has done so meanwhile."""
    try:
        end()
    except Exception as error:
        _hooks.missing("torch.autograd._disable_profiler", error)


def _is_taken(torch: Any) -> bool:
    """Whether another profiler runs, or a node runs the engine: it is part of that node's run."""
    try:
        return bool(torch.autograd._profiler_enabled() or torch._C._current_graph_task_id() >= 0)
    except Exception as error:
        _hooks.undo()
        _hooks.missing("torch._C._current_graph_task_id", error)
        return True


def _begin(torch: Any) -> Callable[[], object] | None:
    """Turn the state on for this thread and give what ends it; None where torch cannot."""
    try:
        end: Callable[[], object] = torch.autograd._disable_profiler
        torch.autograd._enable_profiler(*_arguments(torch))
    except Exception as error:
        _hooks.undo()  # it will not work the next time either
        _hooks.missing("torch.autograd._enable_profiler", error)
        return None
    return end


@functools.cache
def _arguments(torch: Any) -> tuple[Any, ...]:
    """NVTX state without shapes, memory, stacks, flops and modules; two scopes."""
    profiler, scope = torch._C._profiler, torch._C._profiler.RecordScope
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.NVTX,
        False,
        False,
        False,
        False,
        False,
        profiler._ExperimentalConfig(),
    )
    return config, set(), {scope.BACKWARD_FUNCTION, scope.USER_SCOPE}
