"""Whether the instrumentation is awake: outside a capture window only steps are counted.

Hooks of two sorts follow `now`. What torch's compiler may have guarded on (the ``forward`` of a
class, functions of ``torch.cuda``) stays in place for good and asks ``awake.now`` at each call,
behind the question whether it is being compiled: nothing compiled changes with it. What is called
by the thousand and guarded by nobody (methods of tensors, torch's debug mode) is put in place when
the instrumentation wakes and taken away when it goes to sleep (`follow`).

A range that was opened awake is closed all the same; so it may change at any time, and does
between steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("nvprobe")

now = True
"""Read as ``awake.now``, never imported by name. True where nobody has asked to sleep: a program
that only annotates its model has no window."""

woken = False
"""Whether it was asleep before: what is awake from the start on records the whole run."""

_window = True
_never = False
_held = 0
_followers: list[tuple[Callable[[], object], Callable[[], object]]] = []
_holders: list[Callable[[], object]] = []


def follow(on_wake: Callable[[], object], on_sleep: Callable[[], object]) -> None:
    """Call these when the instrumentation wakes and goes to sleep; the first at once if awake."""
    if (on_wake, on_sleep) not in _followers:
        _followers.append((on_wake, on_sleep))
    if _window:
        _call(on_wake)


def wake() -> None:
    """Write ranges, lines and rows from now on."""
    if not _never:
        _change(awake=True)


def sleep() -> None:
    """Write nothing from now on but what the program itself marks, and count steps."""
    _change(awake=False)


def for_good() -> None:
    """Sleep and never wake: nobody will ever listen, or the user wants no instrumentation."""
    global _never
    _never = True
    sleep()


def forget() -> None:
    """Be awake without followers, as at the start; what they put in place they take away first."""
    global now, woken, _window, _never
    _change(awake=False)
    _followers.clear()
    now = _window = True
    woken = _never = False


def hold() -> None:
    """Note ranges for a while though asleep: what is in a CUDA graph is seen in its capture."""
    global _held, now
    _held += 1
    now = not _never
    for listener in _holders:
        _call(listener)


def on_hold(listener: Callable[[], object]) -> None:
    """Call ``listener`` at each `hold`."""
    if listener not in _holders:
        _holders.append(listener)


def release() -> None:
    """End one `hold`."""
    global _held, now
    _held -= 1
    now = _window or (_held > 0 and not _never)


def _change(*, awake: bool) -> None:
    global _window, now, woken
    if awake == _window:
        return
    _window = awake
    woken = awake
    now = awake or (_held > 0 and not _never)
    for on_wake, on_sleep in _followers:
        _call(on_wake if awake else on_sleep)


def _call(listener: Callable[[], object]) -> None:
    try:
        listener()
    except Exception as error:  # no reason for the program to fail
        log.debug("waking or going to sleep: %r", error)
