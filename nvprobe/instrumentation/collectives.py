"""Ranges around collectives, with group, operation and bytes.

The functions of ``torch.distributed`` and of functional collectives are wrapped. Dynamo, which
replaces the former by the latter, sees the originals: while compiling a wrapper only passes on.
What C++ calls by itself has no range here: DDP's gradient buckets and collectives inside compiled
graphs; those carry NCCL's own ranges and appear in the graph's manifest.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import awake, emitter, sidecar
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("nvprobe")
_hooks = Hooks("ranges of collectives")
_wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}
"""One wrapper a function, under whichever name it is found: some are compared by identity."""
_ours: set[Callable[..., Any]] = set()


class _Inside(threading.local):
    """Whether the thread is in a collective: old names of torch call the new ones."""

    collective = False


_inside = _Inside()

COLUMNS = ("op", "group", "ranks", "bytes", "thread", "start_ns", "end_ns")
_C10D = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("all_gather_single", "reduce_scatter_single"),  # from 2.13 on; FSDP2 calls these
    *("send", "recv", "batch_isend_irecv"),
)
"""Not isend and irecv: ``P2POp`` compares what it is given with those very objects."""
_FUNCTIONAL = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "all_to_all_single"),
    *("all_gather_tensor", "all_gather_into_tensor_coalesced"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    *("all_gather_tensor_autograd", "reduce_scatter_tensor_autograd"),
    *("all_to_all_single_autograd", "permute_tensor"),
    *("all_gather_single", "all_gather_single_autograd", "all_gather_single_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_autograd", "reduce_scatter_single_coalesced"),
)
"""Names of torch 2.6 to 2.13; one that is missing is passed over."""


def install() -> None:
    """Give collectives called from now on a range and a row in the sidecar."""
    if not _hooks.begin():
        return
    for module in ("torch.distributed.distributed_c10d", "torch.distributed"):
        for name in _C10D:
            _hooks.replace(module, name, functools.partial(_ranged, name), optional=True)
    for name in _FUNCTIONAL:
        wrap = functools.partial(_ranged, f"functional {name}")
        _hooks.replace("torch.distributed._functional_collectives", name, wrap, optional=True)


def uninstall() -> None:
    """Leave collectives alone."""
    _hooks.undo()


def _ranged(op: str, original: Callable[..., Any]) -> Callable[..., Any]:
    if original in _ours:  # torch.distributed re-exports what is wrapped already
        return original
    if original in _wrappers:
        return _wrappers[original]

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        """The same, in a range with group and bytes; what it calls of these is part of it."""
        if not _hooks.active or _is_compiling() or not awake.now or _inside.collective:
            return original(*args, **kwargs)
        return _called(op, original, args, kwargs)

    _wrappers[original] = collective
    _ours.add(collective)
    return collective


def _is_compiling() -> bool:
    """A call that Dynamo answers itself while it traces."""
    import torch

    return bool(torch.compiler.is_compiling())


@uncounted
def _called(
    op: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    size = _size(args, kwargs)
    group, ranks = _group(args, kwargs)
    emitter.push(emitter.label(f"{op} {group}", Category.COLLECTIVE, size))
    _inside.collective = True
    start = time.time_ns()
    try:
        return original(*args, **kwargs)
    finally:
        end = time.time_ns()
        _inside.collective = False
        emitter.pop()
        row = (op, group, ranks, size, threading.get_native_id(), start, end)
        sidecar.row("collective", COLUMNS, row)


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of all tensors given; 0 where one of them does not say."""
    try:
        from torch._C import DisableTorchFunction

        with DisableTorchFunction():  # unseen by subclasses of tensors
            return sum(_bytes(value) for value in (*args, *kwargs.values()))
    except Exception as error:
        log.debug("no size of a collective: %r", error)
        return 0


def _bytes(value: Any) -> int:
    """Bytes of the tensors in one argument: a tensor, a nest of lists, a list of P2POp."""
    if hasattr(value, "element_size") and hasattr(value, "numel"):
        return int(value.numel()) * int(value.element_size())
    if isinstance(value, (list, tuple)):
        return sum(_bytes(one) for one in value)
    return _bytes(value.tensor) if hasattr(value, "peer") and hasattr(value, "tensor") else 0


def _group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int]:
    """Name and size of the process group a call names, else of the default group."""
    try:
        from torch.distributed import distributed_c10d as c10d

        group: Any = next((one for one in (*kwargs.values(), *args) if _is_group(one)), None)
        if hasattr(group, "get_group"):  # a one-dimensional DeviceMesh
            group = group.get_group()
        if group is None:
            group = c10d._get_default_group()
        name = getattr(group, "group_desc", "") or getattr(group, "group_name", "")
        return _short(str(name)), int(group.size())
    except Exception as error:
        log.debug("no name of a process group: %r", error)
        return "group", 0


def _is_group(value: Any) -> bool:
    return type(value).__name__ in ("ProcessGroup", "DeviceMesh") or hasattr(value, "group_name")


def _short(name: str) -> str:
    return "default" if name in ("", "undefined", "default_pg") else name
