"""A progress bar on stderr for whatever takes more than a second at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING

from nvprobe.cli.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_S = 1.0


class Stages:
    """The bar of a job of known stages; calling it begins the next one."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._done = -1
        self._name = ""
        self._lock = Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, name: str) -> None:
        """Begin a stage, such as ``reading report.sqlite``."""
        with self._lock:
            self._done += 1
            self._name = name
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self._done, description=name)

    def show(self) -> None:
        """Draw the bar from now on."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(
                self._name, total=self._number, completed=max(self._done, 0)
            )
            self._bar.start()

    def stop(self) -> None:
        """Wipe the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()


@contextmanager
def stages(settings: Settings, number: int) -> Iterator[Stages]:
    """A :class:`Stages` that shows itself after a second, at a terminal, unless quiet."""
    job = Stages(number)
    timer = Timer(_PATIENCE_S, job.show)
    timer.daemon = True
    if not settings.quiet and sys.stderr.isatty():
        timer.start()
    try:
        yield job
    finally:
        timer.cancel()
        job.stop()
