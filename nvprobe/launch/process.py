"""Run the program, alone or under nsys, so that its own result is never lost.

The program keeps the user's stdin, stdout and stderr; signals reach it and not nsys, which ends
by itself when the program has. nsys is watched: where it does not start the program, hangs after
it or dies under it, the program's result still counts and nsys is stopped, gently first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nvprobe.launch import child, proc, rundir, signals
from nvprobe.launch.control import Control
from nvprobe.launch.gpu_processes import GpuProcesses
from nvprobe.launch.options import Timeouts

Trouble = Literal["none", "never-started", "start-timeout", "finish-timeout", "died"]

LOG = "nsys.log"
"""What nsys printed, in the temporary folder."""

_POLL_S = 0.1
_GENTLE_S = 10.0
"""How long nsys gets (at most) after SIGINT, and again after SIGTERM, to write what it has."""
_AGENT_S = 3.0
"""How long nsys's agent gets after SIGTERM. Killed at once it may hold a lock in shared memory,
for which every later nsys then waits without end (see `proc.clear_stale_locks`)."""
_TURN_S = 15.0
"""How long a rank waits for the others of its machine to start their nsys, one after another."""
_SILENT_S = 4.0
"""How long the user is not informed what is waited for."""
_FULL_DISK_S = 5.0
_HURRIED_S = 10.0
"""Patience with an nsys that makes no progress, once the end was asked for: schedulers and torchrun
kill what still runs 30 s after their SIGTERM."""
_LOOK_S = 0.5
"""How often the processes of the program are looked at."""
_IDLE_SHARE = 0.02
"""nsys that uses less of a CPU than this, and writes nothing, makes no progress."""


@dataclass(frozen=True)
class Ending:
    """How the program ended, and nsys with it."""

    code: int | None
    """The program's exit code (128 + N for signal N); None where it never ran."""
    signal: int | None = None
    nsys_code: int | None = None
    trouble: Trouble = "none"
    interrupted: bool = False
    """The user or a scheduler asked for the end."""


def run_alone(argv: Sequence[str], environ: Mapping[str, str]) -> Ending:
    """Run the program without nsys, in a session of its own: signals reach it once, from here."""
    interrupted = False
    with signals.held() as prepare:
        try:
            process = subprocess.Popen(
                argv,
                env=dict(environ),
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - there are no threads yet
            )
        except OSError as error:
            print(f"nvprobe: {argv[0]}: {error.strerror}", file=sys.stderr)
            return Ending(127 if isinstance(error, FileNotFoundError) else 126)
        while process.poll() is None:
            received = signal.sigtimedwait(signals.WATCHED, _POLL_S)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            interrupted |= received.si_signo in signals.ENDING
            signals.hand_on(received, process.pid)
    code = process.returncode
    if code < 0:
        return Ending(128 - code, signal=-code, interrupted=interrupted)
    return Ending(code, interrupted=interrupted)


def run_under_nsys(
    nsys_argv: Callable[[list[str]], list[str]],
    program: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    timeouts: Timeouts,
    report: Callable[[str], object],
    control: Control | None = None,
    gpu: GpuProcesses | None = None,
) -> Ending:
    """Run ``program`` under nsys; ``nsys_argv`` puts nsys's words before a command.

    ``folder`` is an empty temporary folder: nsys's TMPDIR, and where its log is written. ``report``
    is given a line where there is a while to wait after the program's end.
    """
    read_end, write_end = os.pipe()
    out, err = os.dup(1), os.dup(2)
    fallback = folder / "status.jsonl"
    wrapper = [sys.executable, "-I", "-S", os.fspath(child.__file__), str(write_end)]
    wrapper += [os.fspath(fallback), str(out), str(err), environ.get("TMPDIR", "")]
    wrapper += [str(_umask()), " ".join(str(int(number)) for number in signals.ignored()), "--"]
    argv = nsys_argv([*wrapper, *program])
    inherited = (write_end, out, err)
    with signals.held() as prepare, _closing(read_end), proc.Turn("nsys", _TURN_S) as turn:
        with _closing(*inherited), (folder / LOG).open("wb") as log:
            try:
                nsys = subprocess.Popen(
                    argv,
                    env={**environ, "TMPDIR": os.fspath(folder)},
                    stdout=log,
                    stderr=log,
                    pass_fds=inherited,
                    start_new_session=True,  # Ctrl-C is the program's; nsys ends after it
                    preexec_fn=prepare,  # noqa: PLW1509 - there are no threads yet
                )
            except OSError:
                return Ending(None, trouble="never-started")
        watch = _Watch(nsys, read_end, fallback, timeouts, report, control, gpu)
        try:
            return watch.to_the_end(turn.over)
        finally:
            watch.leave_nothing_running()


def _umask() -> int:
    """Which modes files made here do not get; it can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@contextlib.contextmanager
def _closing(*descriptors: int) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class _Watch:
    """One nsys and the program under it, from start to end."""

    def __init__(
        self,
        nsys: subprocess.Popen[bytes],
        status_pipe: int,
        fallback: Path,
        timeouts: Timeouts,
        report: Callable[[str], object],
        control: Control | None = None,
        gpu: GpuProcesses | None = None,
    ) -> None:
        self.control = control
        self.gpu = gpu
        self.looked = 0.0
        self.nsys = nsys
        self.status_pipe = status_pipe
        self.fallback = fallback
        self.timeouts = timeouts
        self.report = report
        self.pid: int | None = None
        self.wrapper: int | None = None
        """The process that will report how the program ended (`nvprobe.launch.child`)."""
        self.code: int | None = None
        self.signal: int | None = None
        self.ended = False
        self.interrupts = 0
        self.held: list[signal.struct_siginfo] = []
        """Signals that came before the program ran."""
        os.set_blocking(status_pipe, False)

    def to_the_end(self, started: Callable[[], object]) -> Ending:
        """Wait for the program, then for nsys; ``started`` is called when it is known to run."""
        trouble = self.wait_for_start()
        started()
        trouble = trouble or self.wait_for_program()
        if self.control is not None:
            self.control.finish()
        trouble = trouble or self.wait_for_nsys()
        return Ending(
            self.code, self.signal, self.nsys.poll(), trouble or "none", self.interrupts > 0
        )

    def wait_for_start(self) -> Trouble | None:
        """Until the program runs; stop an nsys that does not get that far."""
        deadline = time.monotonic() + self.timeouts.start_s
        while not self.started():
            if self.nsys.poll() is not None:
                return None if self.starts_after_all() else "never-started"
            if time.monotonic() > deadline or self.interrupts > 1:
                self.stop_nsys()
                return "start-timeout"
            self.pass_signal()
        return None

    def starts_after_all(self) -> bool:
        """Whether the program runs though nsys has ended: its start may be on the way."""
        deadline = time.monotonic() + _AGENT_S
        while not self.started() and self.own_processes() and time.monotonic() < deadline:
            self.pass_signal()
        return self.started()

    def wait_for_program(self) -> Trouble | None:
        """Until the program has ended, even where nsys dies before it."""
        while not self.ended:
            self.pass_signal()
            self.read_status()
            self.look_around()
            if self.nsys.poll() is not None and not self.ended and not self.program_lives():
                self.read_status()
                if not self.ended:  # its parent was killed with it: nobody saw the exit code
                    self.code, self.signal, self.ended = 137, signal.SIGKILL, True
                    return "died"
        return None

    def look_around(self) -> None:
        """What is due while the program runs: its window, the processes that use the GPU."""
        if self.ended or self.pid is None:
            return
        if self.control is not None:
            self.control.tick(self.pid)
        if self.gpu is not None and time.monotonic() > self.looked + _LOOK_S:
            self.looked = time.monotonic()
            self.gpu.look()

    def wait_for_nsys(self) -> Trouble | None:
        """Until nsys has written its report; stop it where it makes no progress."""
        seen, since = self.progress(), time.monotonic()
        before = self.interrupts
        reported, patience_ends = False, since + _SILENT_S
        while self.nsys.poll() is None:
            self.pass_signal()
            if not reported and time.monotonic() > patience_ends:
                reported = True
                self.report("the program has ended, nsys is writing its report")
            window = time.monotonic() - since
            patience = min(self.timeouts.finish_s, _HURRIED_S if self.interrupts else math.inf)
            if rundir.disk_full(self.fallback.parent):  # nsys then waits for ever
                patience = min(patience, _FULL_DISK_S)
            stuck = window > patience
            if window > min(5.0, patience) and self.moved(seen, window):
                seen, since = self.progress(), time.monotonic()
            elif stuck or self.interrupts > before:
                self.stop_nsys()
                return "finish-timeout"
        return None

    def started(self) -> bool:
        """Whether the program runs, or ran."""
        self.read_status()
        return self.started_program()

    def read_status(self) -> None:
        """Take the lines that the wrapper wrote, from the pipe or else from its file."""
        text = b""
        with contextlib.suppress(BlockingIOError):
            text = os.read(self.status_pipe, 4096)
        with contextlib.suppress(OSError):
            text += self.fallback.read_bytes()
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                self.take(json.loads(line))

    def take(self, status: dict[str, int | None]) -> None:
        """Keep what a line of the wrapper reports; hand on the signals that waited for it."""
        self.pid = status.get("pid", self.pid)
        self.wrapper = status.get("wrapper", self.wrapper)
        if "code" in status:
            self.code, self.signal, self.ended = status["code"], status["signal"], True
        while self.held and self.started_program():
            self.hand_on(self.held.pop(0))

    def pass_signal(self) -> None:
        """Wait a moment; hand a signal that comes to the program, once there is one."""
        received = signal.sigtimedwait(signals.WATCHED, _POLL_S)
        if received is None or received.si_signo == signal.SIGCHLD:
            return
        self.interrupts += received.si_signo in signals.ENDING
        if self.control is not None and received.si_signo in signals.ENDING:
            self.control.close()  # before the program ends: engines kill their workers
        if self.started_program():
            self.hand_on(received)
        else:
            self.held.append(received)

    def started_program(self) -> bool:
        """The same of what is known already."""
        return self.pid is not None or self.ended

    def hand_on(self, received: signal.struct_siginfo) -> None:
        """Give the program a signal; the fourth interrupt kills it."""
        if self.pid is None or self.ended:
            return
        if self.interrupts > 3:
            proc.kill([self.pid], signal.SIGKILL)
        else:
            signals.hand_on(received, self.pid)

    def program_lives(self) -> bool:
        """Whether the program runs, or has ended and its exit code is about to be reported."""
        living = {process.pid for process in proc.descendants(os.getpid())}
        return not living.isdisjoint({self.pid, self.wrapper})

    def progress(self) -> tuple[int, int]:
        """CPU time of nsys's own processes, in clock ticks, and bytes of what they have written.

        The agent's time is left out: in a virtual machine that of 2022.4 spins for ever after it
        has sampled CPUs. What it does is written into the temporary folder.
        """
        working = (one for one in self.own_processes() if not proc.is_agent(one.pid))
        return sum(one.cpu_ticks for one in working), _bytes_below(self.fallback.parent)

    def moved(self, before: tuple[int, int], window_s: float) -> bool:
        """Whether nsys has worked since ``before``."""
        enough = _IDLE_SHARE * window_s * os.sysconf("SC_CLK_TCK")
        ticks, written = self.progress()
        return ticks - before[0] > enough or written != before[1]

    def own_processes(self) -> list[proc.Process]:
        """nsys, its helpers and its agent: its session, and programs of its installation."""
        return [
            process
            for process in proc.descendants(os.getpid())
            if process.session == self.nsys.pid or proc.is_of_nsys(process.pid)
        ]

    def stop_nsys(self) -> None:
        """Ask nsys to end, in rising tones; it writes what it has on the first two."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            proc.kill([self.nsys.pid], number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.nsys.wait(min(_GENTLE_S, self.timeouts.finish_s))
                return

    def leave_nothing_running(self) -> None:
        """End what nsys left behind. Children of the program that outlive it are its own affair."""
        if self.nsys.poll() is None:
            self.stop_nsys()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            left = [process.pid for process in self.own_processes() if process.pid != self.pid]
            proc.kill(left, number)
            deadline = time.monotonic() + (_AGENT_S if number else _POLL_S)
            while self.own_processes() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _bytes_below(folder: Path) -> int:
    """Bytes of all files in a folder; what nsys removes meanwhile is passed over."""
    total = 0
    for parent, _, names in os.walk(folder):  # Path.rglob fails at a folder that is gone
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
