"""Ranges around capture and replay of CUDA graphs, and what was open inside a capture.

``torch.cuda.CUDAGraph``'s Python methods are what manual graphs, ``torch.cuda.graph``,
``make_graphed_callables`` and inductor's cudagraph trees all call (torch 2.6 to 2.13). A graph's
id is a number per process, new with each capture of the same object.

A capture usually happens before the profiled window, where its ranges are lost: every range opened
in it is therefore written into the sidecar with its times, which lead from a node's creation to
the modules that were open.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import awake, emitter, places, sidecar
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.hooks import Hooks, around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

log = logging.getLogger("nvprobe")
_hooks = Hooks("CUDA graph ranges")
_CAPTURE_END = "CUDAGraph.capture_end"
_ids = itertools.count(1)
_known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Id of the last capture of each graph object."""
_captures: dict[int, _Capture] = {}
"""Captures going on, by thread."""
replayed = False
"""Whether the program has replayed a graph."""
before_replay: Callable[[int], object] = emitter.nobody
"""Called with the id of each graph that the program replays itself; `phases` sets it."""


def install() -> None:
    """Give captures and replays from now on a range."""
    if not _hooks.begin():
        return
    module = "torch.cuda.graphs"
    _hooks.replace(module, _CAPTURE_END, _capture_end)
    _hooks.replace(module, "CUDAGraph.capture_begin", _capture_begin)
    _hooks.replace(module, "CUDAGraph.replay", _replay)
    for name in (module, "torch.cuda"):
        _hooks.replace(name, "make_graphed_callables", _without_our_hooks)


def uninstall() -> None:
    """Leave graphs alone."""
    _hooks.undo()


def capturing() -> int:
    """The id of the graph that this thread is capturing; 0 where it captures none."""
    capture = _captures.get(threading.get_ident())
    return 0 if capture is None else capture.identity


class _Capture:
    """What is opened and closed on one thread while it captures a graph.

    The emitter's verbs are replaced for the time of the capture by ones that also note the time.
    """

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.start = time.time_ns()
        self.ranges: list[list[Any]] = []
        """``[name, depth, start, end, category]`` of each range, in order of their start."""
        self.open: list[list[Any]] = []
        self.thread = threading.get_ident()
        self.verbs = emitter.push, emitter.pop
        self.watching = self._push, self._pop
        emitter.push, emitter.pop = self.watching

    def _push(self, label: emitter.Label) -> object:
        if threading.get_ident() == self.thread:
            name = emitter.name_of(label)
            category = "module" if emitter.is_known(name, Category.MODULE) else None
            noted = [name, len(self.open), time.time_ns(), None, category]
            self.ranges.append(noted)
            self.open.append(noted)
        return self.verbs[0](label)

    def _pop(self) -> object:
        if threading.get_ident() == self.thread and self.open:
            self.open.pop()[3] = time.time_ns()
        return self.verbs[1]()

    def end(self) -> None:
        """Give the verbs back and write what was seen."""
        if (emitter.push, emitter.pop) == self.watching:
            emitter.push, emitter.pop = self.verbs
        self.thread = 0  # where somebody has put verbs over these, they only hand on from now
        sidecar.write(
            "cudagraph",
            id=self.identity,
            event="capture",
            thread=threading.get_native_id(),
            start_ns=self.start,
            end_ns=time.time_ns(),
            columns=["name", "depth", "start_ns", "end_ns", "category"],
            ranges=self.ranges,
        )


def _capture_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    if _CAPTURE_END not in _hooks.held:
        raise LookupError("nothing would end the range of a capture")

    @functools.wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin a capture, inside the range that `capture_end` closes."""
        # The range opens before CUDA's begin: what opens after that is the content of the graph.
        identity = next(_ids)
        emitter.push(emitter.label(f"cudagraph capture {identity}", Category.CUDAGRAPH, identity))
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            emitter.pop()
            raise
        with contextlib.suppress(TypeError):  # an object that takes no weak reference
            _known[self] = identity
        _captures[threading.get_ident()] = _Capture(identity)
        awake.hold()
        return result

    return capture_begin


@around
def _capture_end(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """End a capture; its ranges go into the sidecar."""
    try:
        return original(*args, **kwargs)
    finally:
        capture = _captures.pop(threading.get_ident(), None)
        if capture is not None:
            awake.release()
            capture.end()
            emitter.pop()


def _replay(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay inside a range with the number of the capture."""
        global replayed
        replayed = True
        identity = _known.get(self, 0)
        try:
            if not _is_torch(places.caller(1)):
                before_replay(identity)
        except Exception as error:
            log.debug("before the replay of a graph: %r", error)
        if not awake.now:
            return original(self, *args, **kwargs)
        emitter.push(_replay_label(identity))
        try:
            return original(self, *args, **kwargs)
        finally:
            emitter.pop()

    return replay


def _is_torch(caller: FrameType | None) -> bool:
    """Whether torch replays a graph it made (a graphed callable's, a compiled graph's)."""
    return caller is not None and str(caller.f_globals.get("__name__")).partition(".")[0] == "torch"


@functools.lru_cache(maxsize=4096)
def _replay_label(identity: int) -> emitter.Label:
    """Id 0: a graph captured before nvprobe was installed."""
    return emitter.label(f"cudagraph replay {identity}", Category.CUDAGRAPH, identity)


@around
def _without_our_hooks(
    original: Callable[..., Any], /, callables: Any, *args: Any, **kwargs: Any
) -> Any:
    """``make_graphed_callables`` refuses modules with hooks: nvprobe's step aside for it.

    Only those of the callables themselves; the hooks of their submodules run in the capture.
    """
    with contextlib.ExitStack() as stack:
        for one in callables if isinstance(callables, tuple) else (callables,):
            stack.enter_context(_set_aside(one))
        return original(callables, *args, **kwargs)


@contextlib.contextmanager
def _set_aside(module: Any) -> Iterator[None]:
    """Take nvprobe's forward hooks off one module, and put them back in their old order."""
    tables = [
        table
        for name in ("_forward_pre_hooks", "_forward_hooks")
        if (table := vars(module).get(name)) is not None
    ]
    before = [dict(table) for table in tables]
    for table in tables:
        for key, hook in list(table.items()):
            if _is_ours(hook):
                del table[key]
    try:
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):
            added = {key: hook for key, hook in table.items() if key not in hooks}
            table.clear()
            table.update({**hooks, **added})


def _is_ours(hook: Any) -> bool:
    function = getattr(hook, "func", hook)  # a partial's function
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0] == "nvprobe"
