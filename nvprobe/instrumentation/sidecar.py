"""The sidecar: what NVTX cannot carry, as JSON lines, one file per process.

Schema ``nvprobe.sidecar/1`` is documented in docs/sidecar.md. Lines go out with one unbuffered
``write`` each, so a killed program keeps them; only `row` collects (a line for many rows), for at
most `ROWS_PER_LINE` rows or until the next `flush`, which every step does. In a capture window,
whose steps are timed, rows stay in memory until its end, at most `MOST_HELD` of a kind.

Nothing here raises into the user's program: a full disk closes the sidecar with a debug line.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvprobe.errors import without_folders
from nvprobe.instrumentation import awake, emitter
from nvprobe.instrumentation.sources import main_name
from nvprobe.placement import placement
from nvprobe.version import __version__

log = logging.getLogger("nvprobe")

SCHEMA = "nvprobe.sidecar/1"
FOLDER_VARIABLE = "NVPROBE_SIDECAR"
LIMIT = 256 * 2**20
"""Bytes of a file at which rows end; single lines go on for an eighth more."""
ROWS_PER_LINE = 256
MOST_HELD = 2**15
"""Rows of a kind kept in memory during a window, about 10 MB."""
CLOCK_LEAD_NS = 50_000
"""How far ahead `clock` names its instant: the time to make the name ready."""


_encode = json.JSONEncoder(separators=(",", ":"), default=str, check_circular=False).encode
"""Made once, as `json.dumps` with arguments makes one for each line. Looking for cycles would take
a third of the time of a row; one of them ends in a RecursionError, too."""


class _File:
    """One process's sidecar file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = 0
        self.full = False
        self.descriptor: int | None = None
        self.rows: dict[str, deque[tuple[Any, ...]]] = {}
        self.columns: dict[str, tuple[str, ...]] = {}
        self.most_rows = MOST_HELD if awake.woken else ROWS_PER_LINE

    def collected(self, kind: str, columns: tuple[str, ...]) -> deque[tuple[Any, ...]]:
        """The rows of a kind that are not written yet."""
        self.columns[kind] = columns  # first: another thread may write the rows at once
        return self.rows.setdefault(kind, deque())

    def path(self) -> Path:
        """``sidecar.<rank>.<pid>.jsonl``; rank 0 outside a distributed job."""
        return self.folder / f"sidecar.{placement().rank or 0}.{os.getpid()}.jsonl"

    def create(self) -> int:
        """Open the file for appending and begin it; O_APPEND keeps threads' lines whole."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(self.path(), flags, 0o600)
        self.append(_header())
        return self.descriptor

    def append(self, fields: dict[str, Any]) -> None:
        """Write one line at once."""
        if self.descriptor is None:
            self.create()
        self.written += os.write(self.descriptor or 0, f"{_encode(fields)}\n".encode())


def _header() -> dict[str, Any]:
    """Who writes: ranks and versions; no environment, no arguments, no folders."""
    place = placement()
    torch = sys.modules.get("torch")
    nvtx = sys.modules.get("nvtx")
    return {
        "kind": "header",
        "schema": SCHEMA,
        "nvprobe": __version__,
        "pid": os.getpid(),
        "rank": place.rank,
        "local_rank": place.local_rank,
        "world_size": place.world_size,
        "node": place.node,
        "program": main_name(),
        "python": platform.python_version(),
        "torch": getattr(torch, "__version__", None),
        "nvtx": _nvtx_version() if nvtx else None,
        "unix_ns": time.time_ns(),
    }


def _nvtx_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvtx")
    except PackageNotFoundError:
        return None


_file: _File | None = None


class Rows:
    """Rows of one kind from who has too many for a call of `row` each.

    Attributes:
        append: Takes the values of a row; None where nothing is written. Who appends calls `limit`
            now and then.

    """

    __slots__ = ("append", "columns", "kind")
    append: Callable[[tuple[Any, ...]], object] | None

    def __init__(self, kind: str, columns: tuple[str, ...]) -> None:
        self.kind, self.columns = kind, columns
        _collectors.append(self)
        self.follow(_file)

    def follow(self, file: _File | None) -> None:
        """Append to this file's rows from now on."""
        self.append = None if file is None else file.collected(self.kind, self.columns).append

    def limit(self) -> None:
        """Write the rows if there are too many to keep."""
        file = _file
        if file is not None and len(file.rows[self.kind]) >= file.most_rows:
            _flush_kind(file, self.kind)


_collectors: list[Rows] = []


def _use(file: _File | None) -> None:
    global _file
    _file = file
    for one in _collectors:
        one.follow(file)


def is_open() -> bool:
    """Whether lines are written anywhere."""
    return _file is not None


def open(folder: str | os.PathLike[str] | None = None) -> Path | None:  # noqa: A001
    """Begin this process's file in a folder (by default ``NVPROBE_SIDECAR``'s).

    Opened twice, the first stays. Forked children begin a file of their own with their first line.

    Returns:
        The file's path, or None where no folder is named or it cannot be written.

    """
    if _file is not None:
        return _file.path()
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    file = _File(Path(folder).absolute())
    try:
        file.create()
    except OSError as error:
        log.warning("no sidecar: %s", error)
        return None
    _use(file)
    awake.follow(_window_changes, _window_changes)
    clock()
    for listener in _listeners:
        listener()
    return file.path()


_listeners: list[Callable[[], object]] = []


def on_open(listener: Callable[[], object]) -> None:
    """Call ``listener`` when the file begins: what was known before it can be written then."""
    _listeners.append(listener)


def write(kind: str, **fields: Any) -> None:
    """Append one line ``{"kind": kind, ...fields}``; nothing when closed.

    Values JSON does not know are written as their text.
    """
    file = _file
    if file is not None:
        _append(file, {"kind": kind, **fields}, LIMIT + LIMIT // 8)


def lacking(name: str, reason: str) -> None:
    """Say that a part of the instrumentation does not work here, and why."""
    write("hook", name=name, state="off", reason=without_folders(reason))


def row(kind: str, columns: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Append a row to a line of rows, ``{"kind", "columns", "rows"}``, for what comes in thousands.

    Args:
        kind: What the rows are; one set of columns a kind.
        columns: Names of the values.
        values: As many values, of types JSON knows.

    """
    file = _file
    if file is None:
        return
    rows = file.rows.get(kind)
    if rows is None:
        rows = file.collected(kind, columns)
    rows.append(values)
    if len(rows) >= file.most_rows:
        _flush_kind(file, kind)


def step_ended() -> None:
    """Write the rows of a step, unless they wait for the end of its window."""
    if awake.now and not awake.woken:
        flush()


def _window_changes() -> None:
    """Keep rows in memory from here on in a window; write them at its end."""
    if _file is not None:
        _file.most_rows = MOST_HELD if awake.woken else ROWS_PER_LINE
    if not awake.woken:
        flush()


def flush() -> None:
    """Write the rows collected so far."""
    file = _file
    if file is None:
        return
    for kind in list(file.rows):
        if file is _file:  # a full disk has not closed it meanwhile
            _flush_kind(file, kind)


def _flush_kind(file: _File, kind: str) -> None:
    """Write what is there now; popping one by one loses nothing to threads that still append."""
    collected = file.rows[kind]
    taken = []
    for _ in range(len(collected)):
        try:
            taken.append(collected.popleft())
        except IndexError:  # another thread flushes too
            break
    columns = file.columns[kind]
    for first in range(0, len(taken), ROWS_PER_LINE):
        rows = taken[first : first + ROWS_PER_LINE]
        _append(file, {"kind": kind, "columns": columns, "rows": rows}, LIMIT)


def _append(file: _File, fields: dict[str, Any], limit: int) -> None:
    """Write a line unless the file is full; on an error close for good."""
    try:
        if file.written < limit:
            file.append(fields)
        elif not file.full:
            file.full = True
            file.append({"kind": "truncated", "unix_ns": time.time_ns(), "limit_bytes": LIMIT})
    except (OSError, ValueError, RecursionError) as error:
        log.debug("sidecar closed: %s", error)
        _use(None)


def clock() -> None:
    """Write an instant as a line and as an NVTX mark, so that the two clocks can be joined.

    The mark ``nvprobe clock <unix ns>`` is written at the very nanoseconds it names, as far as a
    waiting loop can; the line's ``mark_ns`` are the times just before and after it.
    """
    file = _file
    if file is None or file.descriptor is None:
        return
    for _ in range(3):  # registering the first name takes longer than the next
        named = time.time_ns() + CLOCK_LEAD_NS
        made = emitter.label(f"nvprobe clock {named}", emitter.Category.USER, named)
        if time.time_ns() < named:
            break
    while named - CLOCK_LEAD_NS <= time.time_ns() < named:
        pass
    before = time.time_ns()
    if before < named:  # the system's clock was set back: the next one joins
        return
    emitter.mark(made)
    after = time.time_ns()
    write(
        "clock",
        unix_ns=named,
        mark_ns=[before, after],
        perf_ns=time.perf_counter_ns(),
        thread=threading.get_native_id(),
        listening=emitter.listening(),
    )


def close() -> None:
    """Write what is left and end the file."""
    flush()
    clock()
    file = _file
    _use(None)
    if file is not None and file.descriptor is not None:
        os.close(file.descriptor)


def _after_fork() -> None:
    """Let a forked child begin its own file with its first line; the parent's rows stay its own."""
    if _file is None:
        return
    if _file.descriptor is not None:
        os.close(_file.descriptor)
    _use(_File(_file.folder))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
