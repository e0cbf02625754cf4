"""Steps: ranges named ``step`` with their index, in brackets with everything else on the thread.

A step is opened in one place of the program and closed in another, by somebody else: the next
batch, the next optimizer period, the end of the program. NVTX ranges of a thread nest, so the step
must never be left open across the end of a range that was open before it. While a tool listens the
emitter's verbs are therefore replaced by ones that count the depth: a range that ends takes the
step inside it along, and a step that would have to end inside one of its own ranges goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nvprobe.instrumentation import emitter, places, sidecar, torch_hooks
from nvprobe.instrumentation.emitter import Category, Label
from nvprobe.instrumentation.frames import uncounted

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger("nvprobe")

Item = TypeVar("Item")

COLUMNS = ("step", "thread", "start_ns", "end_ns", "data_ns", "source")
CLOCK_EVERY_NS = 1_000_000_000
DATA = emitter.label("data", Category.PHASE)
EXHAUSTED = emitter.label("data exhausted", Category.PHASE)
"""Marks a step whose wait found no batch (read by nvprobe.analysis.steps)."""


class Thread:
    """A thread: its open step, how deep it is in ranges, and the operating system's id of it."""

    __slots__ = ("data_ns", "depth", "id", "index", "rows", "source", "start_ns", "step_depth")

    def __init__(self) -> None:
        self.rows = True
        """Whether calls of modules are noted with their autograd nodes (`engine_runs`)."""
        self.depth = self.index = self.start_ns = self.data_ns = 0
        self.step_depth: int | None = None
        self.source = ""
        self.id = threading.get_native_id()


class _Threads(threading.local):
    """One object per thread: an attribute of a `threading.local` costs four times one of it."""

    def __init__(self) -> None:
        self.here = Thread()


threads = _Threads()
"""``threads.here`` is the calling thread."""
_listeners: list[Callable[[int], object]] = []
_end_listeners: list[Callable[[int], object]] = []
_restarts: list[Callable[[int], bool]] = []
_begun = 0
_before = 0
"""Steps that had ended before anybody counted."""
_last_clock = 0
_counting = False
"""Whether the emitter's verbs are those that count the depth, around the backend's own."""

explicit = False
"""Whether the program marks its steps itself; then none are looked for."""


def on_step(callback: Callable[[int], object]) -> None:
    """Call ``callback(n)`` between steps, when ``n`` have ended and the next one is about to begin.

    Steps are counted in the process, over all loops. After a wait that found no batch the same
    ``n`` comes again.
    """
    if callback not in _listeners:
        _listeners.append(callback)


def count() -> int:
    """Steps that this process has begun; a wait that found no batch is none."""
    return _begun


def count_from(done: int) -> None:
    """Give the next step the index ``done``: so many ended before anybody counted."""
    global _begun, _before
    _begun = _before = done


def forget() -> None:
    """End the open step, and call and count nothing more: nobody listens any longer."""
    global _counting
    end()
    _listeners.clear()
    _end_listeners.clear()
    _restarts.clear()
    if _counting:
        _counting = False
        emitter.push, emitter.pop = emitter.own_push, emitter.own_pop
    here = threads.here
    here.depth, here.step_depth = 0, None


def on_step_end(callback: Callable[[int], object]) -> None:
    """Call ``callback(n)`` right after a step's end, when ``n`` have ended."""
    if callback not in _end_listeners:
        _end_listeners.append(callback)


def on_restart(callback: Callable[[int], bool]) -> None:
    """Ask ``callback(n)`` at the program's first own step whether it shall have the index ``n``.

    Steps found before, in a warm-up, are then forgotten. Where nobody can say that none of them is
    recorded, counting goes on: no two steps of a capture have one index.
    """
    if callback not in _restarts:
        _restarts.append(callback)


def _notify(listeners: list[Callable[[int], object]], done: int) -> None:
    for listener in listeners:
        try:
            listener(done)
        except Exception as error:  # a recorder's trouble is not the program's
            log.debug("at step %d: %r", done, error)


def _push(label: Label) -> object:
    threads.here.depth += 1
    return emitter.own_push(label)


def _pop() -> object:
    here = threads.here
    if here.step_depth == here.depth:
        end()  # this range began before the step: the step ends with it
    here.depth -= 1
    return emitter.own_pop()


def _count_depth() -> None:
    """From now on count ranges, where anybody listens."""
    global _counting
    if not _counting and not emitter.silent():
        _counting = True
        emitter.push, emitter.pop = _push, _pop
        if torch_hooks.torch_loaded():
            torch_hooks.hide_from_dynamo(torch_hooks.functions_of(sys.modules[__name__]))


def begin(source: str) -> bool:
    """End this thread's step, if it has one, and begin the next.

    Args:
        source: Who says so: ``loop``, ``call`` or ``optimizer``.

    Returns:
        False where the step could not end: a range opened inside it is still open.

    """
    global _begun
    _count_depth()
    here = threads.here
    if here.step_depth is not None and not end():
        return False
    index, _begun = _begun, _begun + 1
    _notify(_listeners, index)
    here.index, here.source, here.data_ns = index, source, 0
    here.start_ns = time.time_ns()
    here.depth += 1
    if _counting:
        emitter.own_push(emitter.label("step", Category.STEP, index))
    here.step_depth = here.depth
    return True


def end() -> bool:
    """End this thread's step; False where a range opened inside it is still open."""
    here = threads.here
    if here.step_depth is None:
        return True
    if here.depth != here.step_depth:
        return False
    if _counting:
        emitter.own_pop()
    here.depth -= 1
    here.step_depth = None
    ended = time.time_ns()
    _notify(_end_listeners, here.index + (here.source != "exhausted"))
    _write(here, ended)
    return True


def end_without_batch() -> None:
    """End a step whose wait found no batch: it says so, and the next one has its index."""
    global _begun
    emitter.push(EXHAUSTED)
    emitter.pop()
    here = threads.here
    here.source = "exhausted"
    if end() and _begun == here.index + 1:
        _begun = here.index


def is_open() -> bool:
    """Whether this thread is in a step."""
    return threads.here.step_depth is not None


def _write(here: Thread, ended: int) -> None:
    """Write the step and all rows collected in it; the clock about once a second."""
    global _last_clock
    if not sidecar.is_open():
        return
    row = (here.index, here.id, here.start_ns, ended, here.data_ns, here.source)
    sidecar.row("step", COLUMNS, row)
    sidecar.step_ended()
    if ended - _last_clock >= CLOCK_EVERY_NS:
        _last_clock = ended
        sidecar.clock()


def note_data(waited_ns: int) -> None:
    """Add to the time this step waited for data."""
    threads.here.data_ns += waited_ns


def _mark_explicit() -> None:
    """From now on the program's own marks count; a step found before ends here."""
    global explicit, _begun
    if explicit:
        return
    explicit = True
    end()
    if _begun > _before and _restarts and all(restart(_before) for restart in _restarts):
        _begun = _before


class Step:
    """A step in progress; as a context manager it ends with the block."""

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *error: object) -> None:
        end()


def step() -> Step:
    """Begin a step: call it first in each iteration; the next call ends it.

    ``with nvprobe.step():`` ends it with the block instead, which keeps what comes after a loop
    out of its last step. Steps are counted from 0 in the process; the index is the payload.
    """
    _mark_explicit()
    if sidecar.is_open():
        places.note("step", Category.STEP, places.CALLED, places.caller(1))
    begin("call")
    return Step()


class Steps(Generic[Item]):
    """What `steps` returns: iterate it like the loader; it has the loader's length."""

    def __init__(self, loader: Iterable[Item]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # asked for while copying or unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Item]:
        _mark_explicit()
        if sidecar.is_open():
            _note_loop(places.caller(1))
        left = _length(self.loader)
        iterator = iter(self.loader)
        try:
            while True:
                # Only a loader that knows its length spares the wait that finds no batch.
                begun = left != 0 and begin("loop")
                try:
                    item = _wait(iterator)
                except StopIteration:
                    if begun:
                        end_without_batch()
                    return
                if left == 0:
                    begin("loop")  # it had more than it said
                left = None if left is None else max(0, left - 1)
                yield item
        finally:
            end()


def _note_loop(frame: FrameType | None) -> None:
    """Note which line iterates: that of the step, and of the wait for its batch."""
    places.note("step", Category.STEP, places.LOOP, frame)
    places.note("data", Category.PHASE, places.LOOP, frame)


def steps(loader: Iterable[Item]) -> Steps[Item]:
    """Make every iteration of a loop a step: ``for batch in nvprobe.steps(loader)``.

    A step is the wait for its batch, a range ``data``, and the loop's body. Leaving the loop by
    ``break`` or an exception ends it. Without a length (``len(loader)``) the last, vain wait has a
    range ``step`` of its own, with ``data exhausted`` in it: reports do not count it as a step.

    Args:
        loader: Anything that can be iterated; its attributes stay reachable.

    """
    return Steps(loader)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


class _Waiting(threading.local):
    """Whether the thread waits for data."""

    now = False


_waiting = _Waiting()


def waiting() -> bool:
    """Whether this thread is waiting for data already, in an outer loader."""
    return _waiting.now


@uncounted
def wait_for(fetch: Callable[[], Item]) -> Item:
    """Fetch in a range ``data`` and count the time; an inner loader's fetch is part of it."""
    if _waiting.now:
        return fetch()
    _waiting.now = True
    start = time.perf_counter_ns()
    emitter.push(DATA)
    try:
        return fetch()
    finally:
        emitter.pop()
        note_data(time.perf_counter_ns() - start)
        _waiting.now = False


def _wait(iterator: Iterator[Item]) -> Item:
    return wait_for(iterator.__next__)


def _after_fork() -> None:
    """The one thread of a forked child has another id."""
    threads.here.id = threading.get_native_id()


atexit.register(end)
os.register_at_fork(after_in_child=_after_fork)
