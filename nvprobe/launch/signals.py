"""Signals of the launcher while a program runs: held back, and handed on once, as they came."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from nvprobe.launch import proc

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WATCHED = frozenset({*PASSED_ON, signal.SIGCHLD, signal.SIGTSTP})
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def hand_on(received: signal.struct_siginfo, pid: int) -> None:
    """Give the program a signal, once, as its sender or its terminal would.

    A terminal's Ctrl-C (it has no sender) is for the whole process group; on Ctrl-Z nvprobe stops
    with the program and goes on with it.
    """
    number = received.si_signo
    if number == signal.SIGTSTP:
        proc.kill([pid], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        proc.kill([pid], signal.SIGCONT)
    elif number == signal.SIGINT and not received.si_pid:
        with contextlib.suppress(OSError):
            os.killpg(os.getpgid(pid), number)
    else:
        proc.kill([pid], number)


@contextlib.contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Hold signals back, so that a loop can take them with their sender.

    Gives the function that a child calls between fork and exec: signals as they were before, and
    SIGTERM when nvprobe is killed. What is ignored (``nohup``) stays so, here and in the program: a
    signal that is held is kept even where it is ignored.
    """
    libc = proc.load_prctl()
    proc.adopt_orphans(libc)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED - ignored())

    def prepare() -> None:
        """In the child: the mask of before, and an end with its parent."""
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        proc.die_with_parent(libc, signal.SIGTERM)

    try:
        yield prepare
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignored() -> set[signal.Signals]:
    """The signals that whoever started nvprobe had it ignore."""
    numbers = {*PASSED_ON, signal.SIGQUIT}
    return {number for number in numbers if signal.getsignal(number) == signal.SIG_IGN}
