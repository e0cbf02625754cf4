"""Which runs of the autograd engine have their nodes named: the first ones of each kind.

Naming a node costs microseconds. Once a recorder records (`recording`), a run gets names only where
few runs of its *signature* have had them: what went into the root modules and compiled graphs that
were called since the thread's last run, what comes out of them into the engine, and with which
arguments. Reports take the names of the others from recorded runs that launched the same
(`nvprobe.attribution.repeated`); a signature that says too little costs names, and never makes a
wrong one. A mark at the begin and the end of each run says which it was. A run before which
nothing of both was called is always named.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Hashable, Iterable
from typing import Any

from nvprobe.instrumentation import awake, compiled, emitter, forwards, steps, torch_hooks
from nvprobe.instrumentation.emitter import Category, Label

log = logging.getLogger("nvprobe")

NAMED = frozenset({1, 2, *(4**power for power in range(3, 16))})
"""Which runs of a signature are named. Two of a short window; later ones in case what the program
launches has settled since: buckets, algorithms, gradients that exist."""
ENDS = emitter.label("nvprobe engine run ends", Category.USER)
_MOST_SIGNATURES = 1024
"""A program whose shapes never repeat gets names in every run beyond these."""
_MOST_CALLS, _MOST_TENSORS, _MOST_WITHOUT_CALLS = 32, 16, 8


class _Signature:
    """Runs of one signature so far, and the marks that begin them."""

    def __init__(self, number: int) -> None:
        self.runs = 0
        self.number = number
        name = f"nvprobe engine run {number}"
        self.named = emitter.label(f"{name} named", Category.USER)
        self.unnamed = emitter.label(name, Category.USER)


class _Here(threading.local):
    """Of a thread: root modules and compiled graphs called since its last run, and that run."""

    def __init__(self) -> None:
        self.calls: list[Hashable] = []
        self.last: _Signature | None = None
        self.without_calls = 0
        self.since: tuple[Hashable, ...] = ()
        """The calls before the last run that had any."""
        self.skipped = False
        """Whether modules of a call since then were called without rows."""


_here = _Here()
_signatures: dict[Hashable, _Signature] | None = None
"""None while nobody has said that a recorder records: then every run is named."""
_followers: dict[Hashable, dict[int, _Signature]] = {}
"""By call: the signatures of the runs that came after it, until the next call."""
_graphs_called = False
"""Whether compiled graphs run: the ranges of their backward passes need rows in every run."""
_first_parameters: dict[int, weakref.ref[Any]] = {}


def recording() -> None:
    """A recorder begins to record now: from here on a run seen often enough is not named."""
    global _signatures, _here, _graphs_called
    awake.follow(_forget, _forget)
    if torch_hooks.torch_loaded():
        torch_hooks.hide_from_dynamo(torch_hooks.functions_of(sys.modules[__name__]))
    _signatures, _here = {}, _Here()
    _followers.clear()
    _graphs_called = False
    forwards.root_called, compiled.graph_called = _note, _note_graph


def _forget() -> None:
    global _signatures
    _signatures = None
    steps.threads.here.rows = True
    forwards.root_called = compiled.graph_called = emitter.nobody


def begins(torch: Any, outputs: Any, arguments: Iterable[Any]) -> tuple[bool, Label | None]:
    """Whether to name the nodes of the run that begins, and the mark for its begin, if any."""
    known = _signatures
    if known is None:
        return True, None
    here = _here
    calls, here.calls = tuple(here.calls), []
    signature = None
    try:
        before = _before(here, calls)
        if before is not None:
            with torch._C.DisableTorchFunction():  # unseen by subclasses of tensors
                signature = _known(known, (before, *_of_engine(torch, outputs, arguments)))
    except Exception as error:  # a symbolic shape, an edge of the graph in place of a tensor
        log.debug("nodes are named, as these cannot be compared: %r", error)
    here.last = signature
    steps.threads.here.rows = True
    here.since = calls or here.since
    if signature is None:
        return True, None
    for call in here.since:
        _followers.setdefault(call, {})[signature.number] = signature
    if here.skipped and signature.runs + 1 in NAMED:
        return False, signature.unnamed  # not counted: the next one has names, and rows
    signature.runs += 1
    named = signature.runs in NAMED
    return named, signature.named if named else signature.unnamed


def _skip_rows(here: _Here, call: Hashable) -> None:
    """Leave out the rows of a call's modules where no run after such calls is named next.

    Rows lead from the name of a node to its module; without names they lead nowhere.
    """
    known = {} if _graphs_called else _followers.get(call, {})
    skips = bool(known) and all(one.runs + 1 not in NAMED for one in known.values())
    here.skipped = skips or (here.skipped and bool(here.calls))
    steps.threads.here.rows = not skips


def _before(here: _Here, calls: tuple[Hashable, ...]) -> Hashable | None:
    """What precedes a run: root modules, else the run before (twice backward, ``retain_graph``)."""
    here.without_calls = 0 if calls else here.without_calls + 1
    if calls:
        return calls
    if here.last is None or here.without_calls > _MOST_WITHOUT_CALLS:
        return None
    return here.last.number


def _known(known: dict[Hashable, _Signature], key: Hashable) -> _Signature | None:
    found = known.get(key)
    if found is None and len(known) < _MOST_SIGNATURES:
        found = known[key] = _Signature(len(known))
    return found


def _of_engine(torch: Any, outputs: Any, arguments: Iterable[Any]) -> tuple[Hashable, ...]:
    """What the engine is given: the outputs' shapes, types and nodes; flags."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    given = tuple((one.shape, one.dtype, type(one.grad_fn)) for one in tensors[:_MOST_TENSORS])
    flags = (
        one if isinstance(one, bool) else len(one) if isinstance(one, (tuple, list)) else None
        for one in arguments
    )
    return len(tensors), given, *flags


def _note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A root module is called on this thread."""
    calls = _here.calls
    if len(calls) >= _MOST_CALLS:
        return
    import torch

    made: tuple[Hashable, ...]
    try:
        with torch._C.DisableTorchFunction():
            made = (
                id(module),
                module.training,
                torch.is_grad_enabled(),
                torch.is_autocast_enabled(),
                module.__dict__.get("require_backward_grad_sync"),  # DDP: whether it reduces
                _has_gradient(module),
                _inputs(torch, args),
                _inputs(torch, kwargs.values()),
            )
        hash(made)
    except Exception:
        made = (object(),)  # equal to no other call
    _skip_rows(_here, made)
    calls.append(made)


def _note_graph(identity: str, inputs: Any) -> None:
    """A compiled graph is called on this thread; of dynamic shapes the sizes are among its inputs.

    A compiled root has no other sign.
    """
    global _graphs_called
    _graphs_called = True
    calls = _here.calls
    if len(calls) < _MOST_CALLS:
        calls.append((identity, *_sizes_and_gradient(inputs)))


def _sizes_and_gradient(inputs: Any) -> tuple[Hashable, ...]:
    """The numbers among a graph's inputs, and whether its first parameter has a gradient."""
    import torch

    try:
        sizes = [one for one in inputs if isinstance(one, int)]
        parameters = (one for one in inputs if isinstance(one, torch.nn.Parameter))
        with torch._C.DisableTorchFunction():
            return *sizes, *(one.grad is not None for one in itertools.islice(parameters, 1))
    except Exception:
        return (object(),)  # equal to no other call


def _inputs(torch: Any, values: Iterable[Any], deep: bool = True) -> tuple[Hashable, ...]:
    """Shapes and types of tensors, also in a list or dictionary; flags as they are."""
    found: list[Hashable] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append((value.shape, value.dtype, value.requires_grad))
        elif isinstance(value, bool):
            found.append(value)
        elif deep and isinstance(value, (list, tuple)):
            found.append(_inputs(torch, value[:_MOST_TENSORS], deep=False))
        elif deep and isinstance(value, dict):
            found.append(_inputs(torch, list(value.values())[:_MOST_TENSORS], deep=False))
    return tuple(found)


def _has_gradient(module: Any) -> bool | None:
    """Whether gradients are added to (the first parameter has one already) or begin anew."""
    parameter = _first_parameters.get(id(module), lambda: None)()
    if parameter is None:
        # A weight that was computed (functional_call) has no gradient, and warns who asks for it.
        mine = (one for one in module.parameters() if one.is_leaf and one.requires_grad)
        parameter = next(mine, None)
        if parameter is None:
            return None
        _first_parameters[id(module)] = weakref.ref(parameter)
    return parameter.grad is not None
