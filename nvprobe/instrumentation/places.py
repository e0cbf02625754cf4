"""Places: where in the user's code a range is opened, a module called, a batch asked for.

Names of ranges lead an analysis to a path; these rows of the sidecar lead from the path to a line.
A place is a name and a position in the code, written when it is first seen and at counts 4, 16, 64
and so on, so that the most frequent of several can be named first. One that is known costs a look
at the caller's frame and in a dictionary: no line number is worked out, no file name shortened. Of
what begins by the thousand only some openings are looked at (`due`).

The caller may be torch, or a helper that only hands on (a generator behind ``contextmanager``,
``yield from`` around a loader): then the user's frame behind it is looked for each time, for
modules (which are called by the thousand) the first times only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from opcode import opmap
from types import CodeType
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import objects, sidecar
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.sources import code_line, is_installed, is_library, source_line

if TYPE_CHECKING:
    from types import FrameType

    from nvprobe.instrumentation.forwards import Record

COLUMNS = ("name", "category", "role", "source", "stack", "detail", "count")
MOST = 4096
"""Places kept: names made without end (``f"item {i}"``) are not noted beyond that."""
STACK_LINES = 3
FIRST, EVERY = 64, 13
"""Openings of one range that are all looked at; of later ones each thirteenth is, as loops like
powers of two."""
FIRST_CALLS = 4
"""Likewise, of one module: it is seldom called from several lines, and a window holds few calls."""
LOOKS = 4
"""How often it is looked behind one line of torch for who calls a module through it."""

ENTERED, CALLED, DEFINED, LOOP, MADE, MADE_APART = (
    "entered", "called", "defined", "loop", "made", "made_apart",
)  # fmt: skip
"""Roles: the ``with`` line; a call; a decorated function's ``def``; the line that iterates; the
``def`` of what makes batches, in this process or in workers."""

_HANDS_ON = {opmap[name] for name in ("SEND", "YIELD_FROM") if name in opmap}
"""Instructions of ``yield from`` (3.11 and later, 3.10)."""


class _Place:
    """A position that was seen under a name."""

    __slots__ = ("behind", "code", "count", "due")

    def __init__(self, code: object, behind: bool) -> None:
        self.code = code  # kept, so that ids stay its own
        self.behind = behind
        """Whether the user's frame is further out."""
        self.count = 1
        self.due = 0
        """The count at which it is written next; 0 where it is looked further out each time."""


_places: dict[tuple[object, ...], _Place] = {}
_wrapped_call: CodeType | None = None
"""Code of ``nn.Module._wrapped_call_impl`` (torch 2.1 to 2.13), once it has been seen."""
_definitions: dict[tuple[str, str, str, str], None] = {}
"""Name, category, role and line of each, in order."""
_written = 0
"""How many of the definitions are in the sidecar."""


def due(openings: int) -> bool:
    """Whether the opening of this number (from 1) of a range is looked at."""
    return openings <= FIRST or openings % EVERY == 0


def caller(further: int) -> FrameType | None:
    """The frame so many further out than who asks; None where the interpreter itself has called.

    ``atexit``, for one, calls what the program gave it from no frame at all.
    """
    try:
        return sys._getframe(further + 1)
    except ValueError:
        return None


def note(
    name: str,
    category: Category,
    role: str,
    frame: FrameType | None,
    detail: str | None = None,
    looks: int = sys.maxsize,
) -> None:
    """Note that ``name`` begins at what ``frame`` is running.

    Args:
        name: The range's name.
        category: Its kind.
        role: What the line is: ``ENTERED``, ``CALLED`` or ``LOOP``.
        frame: Who called nvprobe; None where no line did.
        detail: Of a module: the range of the root that it is part of.
        looks: How often it is looked behind a frame that is not the user's.

    """
    if frame is None:
        return
    place = _places.get((name, detail, id(frame.f_code), frame.f_lasti))
    if place is not None:
        place.count += 1
        if place.count < place.due:
            return
    else:
        place = _meet(name, detail, frame, role)
        if place is None:
            return
    if not place.behind:
        place.due = 4 * place.count
        stack = _stack_to_user(frame)
        row = (name, category.value, role, source_line(frame), stack, detail, place.count)
        sidecar.row("place", COLUMNS, row)
    elif place.count <= looks and (user := _behind(frame, role)) is not None:
        note(name, category, role, user, detail)


def called(record: Record, root: str | None) -> None:
    """Note where a module is called, and which one it is; for the wrapper of its forward alone."""
    if record.root is None:  # a root's calls are noted each
        objects.note(record, None)
    note(record, Category.MODULE, CALLED, module_caller(2), root, LOOKS)


def module_caller(wrapper: int) -> FrameType | None:
    """The line of ``model(x)``: behind torch's own two frames, where they are as they are known.

    Args:
        wrapper: How many frames further out than the caller's the wrapper of forward is, plus one.

    """
    global _wrapped_call
    frame = caller(wrapper + 2)  # behind _call_impl: _wrapped_call_impl
    if frame is None:  # forward itself is called, from a script's own lines
        return caller(wrapper + 1)
    if _wrapped_call is None and frame.f_code.co_name == "_wrapped_call_impl":
        _wrapped_call = frame.f_code
    if frame.f_code is _wrapped_call and frame.f_back is not None:
        return frame.f_back
    return caller(wrapper + 1)


def _meet(name: str, detail: str | None, frame: FrameType, role: str) -> _Place | None:
    """Keep a position that is new; None where there are too many."""
    if len(_places) >= MOST:
        return None
    write_definitions()
    key = (name, detail, id(frame.f_code), frame.f_lasti)
    return _places.setdefault(key, _Place(frame.f_code, _hands_on(frame, role)))


def site(name: str, detail: str | None = None) -> None:
    """Note a call of a wrapped function; what torch calls itself is not a place of the program."""
    frame = caller(2)  # behind the wrapper
    if frame is not None and not is_library(frame.f_code.co_filename):
        site_behind(frame, name, detail)


def site_behind(frame: FrameType, name: str, detail: str | None) -> None:
    """Note a call that has no range, by the user's lines that lead to it.

    For what happens a few times per step, from helpers too: another caller of the helper makes it
    another place.

    Args:
        frame: Where to begin to look for the user's frames.
        name: The function.
        detail: What more is known of the call.

    """
    frames = _user_frames(frame)
    if not frames:
        return
    key = (name, *(part for one in frames for part in (id(one.f_code), one.f_lasti)))
    place = _places.get(key)
    if place is None:
        if len(_places) >= MOST:
            return
        place = _places.setdefault(key, _Place(tuple(one.f_code for one in frames), behind=False))
        place.count = 0
    place.count += 1
    if place.count >= place.due:
        place.due = 2 * place.count
        stack = [source_line(one) for one in frames]
        row = (name, None, CALLED, stack[0], stack, detail, place.count)
        sidecar.row("place", COLUMNS, row)


def code_of(function: Any) -> CodeType | None:
    """The code that a callable runs, if the user wrote it in Python and it can be found."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        function = inspect.unwrap(getattr(function, "__func__", function))
    except Exception:  # wrapped around itself; an object may answer anything to an attribute
        return None
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):  # an object that can be called
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    if not isinstance(code, CodeType) or is_library(code.co_filename):
        return None
    return code


def define(name: str, category: Category, role: str, code: CodeType) -> None:
    """Note where what a range is around is defined; written when there is a sidecar."""
    if len(_definitions) < MOST:
        _definitions[name, category.value, role, code_line(code)] = None
        write_definitions()


def write_definitions() -> None:
    """Write the definitions that are not in the sidecar yet."""
    global _written
    if _written == len(_definitions) or not sidecar.is_open():
        return
    known = list(_definitions)  # of two threads at once, both write: better twice than never
    waiting, _written = known[_written:], len(known)
    for definition in waiting:
        sidecar.row("place", COLUMNS, (*definition, None, None, 1))


def _hands_on(frame: FrameType, role: str) -> bool:
    """Whether the frame belongs to a library or to a helper, not to the line that is looked for."""
    code, back = frame.f_code, frame.f_back
    if is_library(code.co_filename):
        return True
    if role == LOOP:
        return code.co_code[frame.f_lasti] in _HANDS_ON
    helper = back is not None and back.f_code.co_filename == contextlib.__file__
    return role == ENTERED and helper and code.co_flags & 0x20 != 0  # a generator


def _behind(frame: FrameType, role: str) -> FrameType | None:
    """The first frame further out that does not hand on."""
    one = frame.f_back
    while one is not None and _hands_on(one, role):
        one = one.f_back
    return one


def _stack_to_user(frame: FrameType) -> list[str] | None:
    """Of a line in an installed package: that, and the program's own line that leads there."""
    if not is_installed(frame.f_code.co_filename):
        return None
    outer = frame.f_back
    while outer is not None and is_installed(outer.f_code.co_filename):
        outer = outer.f_back
    return None if outer is None else [source_line(frame), source_line(outer)]


def _user_frames(frame: FrameType | None) -> list[FrameType]:
    """The user's innermost frames, as many as a stack shows."""
    out: list[FrameType] = []
    while frame is not None and len(out) < STACK_LINES:
        if not is_library(frame.f_code.co_filename):
            out.append(frame)
        frame = frame.f_back
    return out


def _forget() -> None:
    """A forked child writes its places into its own sidecar."""
    global _written
    _places.clear()
    _written = 0


os.register_at_fork(after_in_child=_forget)
sidecar.on_open(write_definitions)
