"""Stand between nsys and the program: hand it the user's own streams and report how it ended.

Run as a plain file (``python -I -S child.py …``), so it starts in some ten milliseconds and imports
nothing of nvprobe. Under nsys the program would write into pipes that nsys keeps a copy of, see
another TMPDIR, and its exit code would be lost with a hung nsys. This process gives it back its
stdout, stderr and TMPDIR, starts it, passes signals on, waits, and writes two JSON lines to the
status pipe: ``{"pid": …, "wrapper": …}`` (the program, this process) at its start and
``{"code": …, "signal": …}`` at its end. Where the launcher is killed, the program is terminated, so
that nothing runs on unseen.

Words: ``STATUS_FD FALLBACK_FILE OUT_FD ERR_FD TMPDIR UMASK IGNORED -- command…`` (TMPDIR empty:
unset; UMASK: nsys 2022.4 sets its own to 0; IGNORED: numbers of signals that the program ignores
from its start, as under ``nohup``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def say(status_fd: int, fallback: str, **fields: Any) -> None:
    """One line to the launcher; to a file where nsys closed the pipe's descriptor."""
    line = (json.dumps(fields) + "\n").encode()
    try:
        os.write(status_fd, line)
    except BrokenPipeError:
        pass  # the launcher was killed: nobody listens, and the program matters more
    except OSError:
        with open(fallback, "ab") as file:  # noqa: PTH123 - pathlib is slow to import
            file.write(line)


def restore(out_fd: int, err_fd: int, tmpdir: str) -> None:
    """Give the program the streams and the temporary folder that nvprobe was started with."""
    for source, target in ((out_fd, 1), (err_fd, 2)):
        try:
            os.dup2(source, target)
            os.close(source)
        except OSError:
            pass  # nsys closed it: its own copy of the stream stays in use
    if tmpdir:
        os.environ["TMPDIR"] = tmpdir
    else:
        os.environ.pop("TMPDIR", None)


def start(command: list[str], ignored: set[int]) -> int:
    """Start the program with the signal handling of a shell; 127 and 126 as one would say."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    defaults = {signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, *PASSED_ON} - ignored
    try:
        return os.posix_spawnp(
            command[0], command, os.environ, setsigmask=(), setsigdef=tuple(defaults)
        )
    except OSError as error:
        os.write(2, f"nvprobe: {command[0]}: {error.strerror}\n".encode())
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def wait(pid: int, status_fd: int) -> tuple[int, int | None]:
    """Wait for the program, passing signals on; its exit code and the signal that ended it."""

    def pass_on(received: int, _frame: object) -> None:
        """Hand a signal on to the program."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended: that is reported next
            os.kill(pid, received)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    terminate_when_abandoned(pid, status_fd)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def terminate_when_abandoned(pid: int, status_fd: int) -> None:
    """Return when the program has ended; terminate it when the launcher is gone."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # before Linux 5.3: an abandoned program runs to its end
    events = select.poll()
    events.register(handle, select.POLLIN)
    events.register(status_fd, 0)
    for descriptor, _event in events.poll():
        if descriptor == status_fd:
            os.kill(pid, signal.SIGTERM)
            end_agent_later()
    os.close(handle)


def end_agent_later() -> None:
    """See to it that nsys's agent ends: it can outlive an nsys that nobody watches any more.

    nsys names it in ``QUADD_AGENT_PID`` (2022.4) and gets a minute to finish with it.
    """
    agent = os.environ.get("QUADD_AGENT_PID", "")
    if not agent.isdigit() or os.fork():
        return
    os.setsid()
    os.closerange(0, 1024)  # nobody may wait for this process to close a pipe
    for _ in range(120):
        time.sleep(0.5)
        try:
            with open(f"/proc/{agent}/cmdline", "rb") as file:  # noqa: PTH123
                if b"--start-agent" not in file.read():
                    os._exit(0)
        except OSError:
            os._exit(0)
    os.kill(int(agent), signal.SIGKILL)
    os._exit(0)


def main(words: list[str]) -> None:
    """Run the command in ``words``; end with its exit code, 128 + N for signal N."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the launcher signals the program itself
    status_fd, fallback, tmpdir = int(words[0]), words[1], words[4]
    restore(int(words[2]), int(words[3]), tmpdir)
    os.umask(int(words[5]))
    with contextlib.suppress(OSError):  # closed by nsys: `say` takes the file
        os.set_inheritable(status_fd, False)
    try:
        pid = start(words[8:], {int(number) for number in words[6].split()})
    except SystemExit as failed:
        say(status_fd, fallback, pid=None, code=failed.code, signal=None)
        raise
    say(status_fd, fallback, pid=pid, wrapper=os.getpid())
    code, number_or_none = wait(pid, status_fd)
    say(status_fd, fallback, code=code, signal=number_or_none)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
