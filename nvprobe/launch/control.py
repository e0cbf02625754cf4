"""Open and close the capture window from outside the program: ``nsys start`` and ``nsys stop``.

A server has several processes: a window that one of them opens, the first of them to stop closes
for all. So the launcher opens it, when the condition asked for holds, and closes it before the
server ends, because engines kill their workers. What processes of the program have counted they
write into files of the status folder (``progress.<pid>``); ``nvprobe trigger`` leaves a file in the
run folder.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from nvprobe.launch import proc, rundir
from nvprobe.launch.options import Window

State = Literal["waiting", "recording", "closed"]

TRIGGER, STATE = "trigger", "control.json"
"""In the run folder: what ``nvprobe trigger`` leaves, and what it reads."""
_START_S, _STOP_S = 60.0, 1800.0
_HEALTH_S = 1.0
_STEPS_BETWEEN = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_GRACE_S = 20.0
"""How long a server gets after each signal to end."""


class Control:
    """The window of one run; `tick` is called again and again while it runs."""

    def __init__(
        self,
        start: Sequence[str],
        stop: Sequence[str],
        window: Window,
        folder: Path,
        status: Path,
        environ: Mapping[str, str],
        report: Callable[[str], object],
        *,
        client: Sequence[str] = (),
        health: str | None = None,
        ends_program: bool = False,
    ) -> None:
        self.start_argv, self.stop_argv = list(start), list(stop)
        self.window = window
        self.folder, self.status = folder, status
        self.environ = {**environ, "TMPDIR": os.fspath(status)}
        self.report = report
        self.client_words = list(client)
        self.client: subprocess.Popen[bytes] | None = None
        self.health = health
        self.ends_program = ends_program or bool(client)
        self.state: State = "waiting"
        self.began = time.monotonic()
        self.opened = 0.0
        self.asked = 0.0
        self.signals = list(_STEPS_BETWEEN)
        self.next_signal = 0.0
        self.stopped_program = False
        self._say()

    def tick(self, pid: int) -> None:
        """Look whether the window is due, or over; then end a program that does not by itself."""
        if self.state == "waiting" and self._due():
            self._open()
        elif self.state == "recording" and self._over():
            self.close()
        elif self.state == "closed" and self.ends_program:
            self._end(pid)

    def close(self) -> None:
        """Close the window where it is open; nsys writes its report."""
        if self.state != "recording":
            return
        self.report("the window closes, nsys is writing its report")
        self._nsys(self.stop_argv, _STOP_S)
        self.state = "closed"
        self._say()

    def finish(self) -> None:
        """When the program has ended: close what is open, end the client."""
        self.close()
        if self.client is not None and self.client.poll() is None:
            self.client.terminate()
        with contextlib.suppress(OSError):
            (self.folder / STATE).unlink()

    def _due(self) -> bool:
        window, elapsed = self.window, time.monotonic() - self.began
        if window.on_trigger:
            return self._triggered()
        if self.client_words and not self._healthy():
            return False
        steps, batch, request = self._progress()
        if window.at_least is not None and batch < window.at_least:
            return False
        begun = steps if window.unit == "steps" else request
        return begun >= (window.first or 0) and elapsed >= window.delay_s

    def _over(self) -> bool:
        window = self.window
        if self.client is not None and (code := self.client.poll()) is not None:
            if code:
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                self.report(f"--client {self.client_words[0]} ended with {how}")
            return True
        if window.on_trigger and self._triggered():
            return True
        if window.duration_s is not None and time.monotonic() - self.opened >= window.duration_s:
            return True
        steps, _, request = self._progress()
        begun = steps if window.unit == "steps" else request
        return window.last is not None and begun >= window.last

    def _open(self) -> None:
        self._nsys(self.start_argv, _START_S)
        self.opened, self.state = time.monotonic(), "recording"
        self.report(f"recording ({self.window})")
        if self.client_words:
            try:
                self.client = subprocess.Popen(self.client_words, env=self._of_client())
            except OSError as error:
                self.report(f"--client {self.client_words[0]}: {error.strerror}")
                self.close()
        self._say()

    def _of_client(self) -> dict[str, str]:
        """The client is left out of the capture: it gets nothing of what the program is given."""
        out = {k: v for k, v in self.environ.items() if not k.startswith("NVPROBE_")}
        out.pop("PYTHONPATH", None)
        if "TMPDIR" in os.environ:
            return {**out, "TMPDIR": os.environ["TMPDIR"]}
        out.pop("TMPDIR")
        return out

    def _end(self, pid: int) -> None:
        """Ask the program to end by SIGINT; then by SIGTERM and SIGKILL, its workers with it.

        A program that SIGTERM ends runs no code of its own that would end its workers.
        """
        now = time.monotonic()
        if now < self.next_signal or not self.signals:
            return
        number = self.signals.pop(0)
        self.stopped_program, self.next_signal = True, now + _GRACE_S
        workers = [] if number == signal.SIGINT else [one.pid for one in proc.descendants(pid)]
        proc.kill([pid, *workers], number)

    def _healthy(self) -> bool:
        """Whether the server answers, asked once a second; one without an address is."""
        if self.health is None:
            return True
        now = time.monotonic()
        if now < self.asked + _HEALTH_S:
            return False
        self.asked = now
        try:
            with urllib.request.urlopen(self.health, timeout=1) as answer:  # noqa: S310 - our own
                return int(answer.status) == 200
        except (OSError, ValueError, http.client.HTTPException):
            return False  # not there yet, or another protocol than HTTP

    def _progress(self) -> tuple[int, int, int]:
        """(steps, requests in the last one, its newest request) of the process with most steps."""
        best = (0, 0, -1)
        for file in self.status.glob("progress.*"):
            with contextlib.suppress(OSError, ValueError):
                steps, batch, request = file.read_text("ascii").split()
                best = max(best, (int(steps), int(batch), int(request)))
        return best

    def _triggered(self) -> bool:
        """Whether ``nvprobe trigger`` has been called since."""
        try:
            (self.folder / TRIGGER).unlink()
        except OSError:
            return False
        return True

    def _nsys(self, argv: Sequence[str], patience_s: float) -> None:
        try:
            done = subprocess.run(
                argv, env=self.environ, capture_output=True, timeout=patience_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self.report(f"nsys {argv[1]} did not end well: {type(error).__name__}")
            return
        if done.returncode:
            words = (done.stderr or done.stdout).decode("utf-8", "replace").split()
            self.report(f"nsys {argv[1]} did not end well: {' '.join(words[-20:])}")

    def _say(self) -> None:
        with contextlib.suppress(OSError):
            rundir.write_json(self.folder / STATE, {"state": self.state, "pid": os.getpid()})
