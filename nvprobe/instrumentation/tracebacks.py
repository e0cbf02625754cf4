"""Keep frames of the instrumentation out of the tracebacks that Python prints of the program."""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from nvprobe.instrumentation.frames import UNCOUNTED

_OWN = str(Path(__file__).resolve().parent.parent)


def hide_own_frames() -> None:
    """Print exceptions as if the program ran alone: uncaught, also in threads, and logged ones.

    A hook that the program sets itself takes the place of this one.
    """
    _format_without_own_frames()
    by_main, by_thread = sys.excepthook, threading.excepthook

    def main_hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print an exception that ends the program."""
        by_main(kind, error, without_own_frames(error))

    def thread_hook(given: threading.ExceptHookArgs) -> None:
        """Print an exception that ends a thread."""
        if given.exc_value is not None:
            trace = without_own_frames(given.exc_value)
            given = threading.ExceptHookArgs((given.exc_type, given.exc_value, trace, given.thread))
        by_thread(given)

    sys.excepthook, threading.excepthook = main_hook, thread_hook


def _format_without_own_frames() -> None:
    """Do the same for what `traceback` and `logging` print; causes are made by the same class."""
    original = traceback.TracebackException.__init__

    @functools.wraps(original)
    def begin(
        self: traceback.TracebackException,
        exc_type: type[BaseException],
        exc_value: BaseException,
        exc_traceback: TracebackType | None,
        **options: Any,
    ) -> None:
        """Take in an exception as it would have been raised without nvprobe."""
        original(self, exc_type, exc_value, _pruned(exc_traceback), **options)

    traceback.TracebackException.__init__ = begin  # type: ignore[method-assign]


def without_own_frames(error: BaseException) -> TracebackType | None:
    """The traceback of an exception without nvprobe's frames; its causes lose theirs, too."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _pruned(one.__traceback__)
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += getattr(one, "exceptions", ())
    return error.__traceback__


def _pruned(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not _is_own(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    for one, following in zip(kept, [*kept[1:], None], strict=False):
        one.tb_next = following
    return kept[0] if kept else None


def _is_own(frame: FrameType) -> bool:
    """Whether a frame is nvprobe's; the wrapper of a ``forward`` carries that forward's file."""
    file = frame.f_code.co_filename
    return file.startswith(_OWN) or file.endswith(UNCOUNTED)
