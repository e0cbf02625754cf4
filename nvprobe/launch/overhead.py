"""What the program said of its steps and its capture window, and what the profiler cost."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Overhead", "WindowStatus"]


@dataclass(frozen=True)
class Overhead:
    """Median duration of a step without the profiler, and with it, in nanoseconds."""

    plain_ns: int
    profiled_ns: int
    plain_steps: int
    profiled_steps: int

    @property
    def slowdown(self) -> float:
        """Profiled over plain: 1.0 costs nothing."""
        return self.profiled_ns / self.plain_ns

    def __str__(self) -> str:
        change = 100 * (self.slowdown - 1)
        return (
            f"overhead: a step took {self.plain_ns / 1e6:.3f} ms before the window "
            f"({self.plain_steps} steps) and {self.profiled_ns / 1e6:.3f} ms in it "
            f"({self.profiled_steps} steps): {change:+.1f} %"
        )


@dataclass(frozen=True)
class WindowStatus:
    """Steps seen by the process that saw most, and the steps at which its window opened, closed."""

    steps: int = 0
    opened: int | None = None
    closed: int | None = None
    durations_ns: list[int] = field(default_factory=list, repr=False)

    @classmethod
    def read(cls, folder: Path) -> WindowStatus:
        """From the files ``window.<pid>.json`` that the program's processes left."""
        found = list(_statuses(folder.glob("window.*.json")))
        opened = [status for status in found if status.opened is not None]
        return max(opened or found, key=lambda status: status.steps, default=cls())

    def overhead(self, warmup: int = 0) -> Overhead | None:
        """Steps before the window, ``warmup`` left out, against those in it.

        The first step of the window is left out where there are more: it pays for the profiler's
        start. None where either side has no step.
        """
        if self.opened is None:
            return None
        plain = self.durations_ns[warmup : self.opened]
        profiled = self.durations_ns[self.opened : self.closed]
        profiled = profiled[1:] or profiled
        if not plain or not profiled:
            return None
        medians = round(statistics.median(plain)), round(statistics.median(profiled))
        return Overhead(*medians, len(plain), len(profiled))


def _statuses(files: Iterable[Path]) -> Iterable[WindowStatus]:
    for file in files:
        with suppress(OSError, ValueError, KeyError):
            text = json.loads(file.read_text("utf-8"))
            yield WindowStatus(
                text["steps"], text["opened"], text["closed"], list(text["durations_ns"])
            )
