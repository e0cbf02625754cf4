"""What the program said of its steps and its capture window, and what the profiler cost."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nvprobe.launch.groups import Group, Kind

_HOST_PACED = 0.8
"""From this share of a group's step on, the host's own periods are as long: they then say how much
single steps vary. Below it the host runs ahead of the GPU: as `nvprobe.trace.provenance.AHEAD`."""

_NODES_READY = (
    "overhead: nsys slows the nodes of CUDA graphs outside the window, too; the report takes it out"
)


@dataclass(frozen=True)
class StepTime:
    """Elapsed time of a step in nanoseconds, over groups of whole steps."""

    step_ns: int
    spread_ns: int | None
    """How far another measurement may be off; None where one group of a GPU-bound loop cannot
    say."""
    steps: int
    groups: int

    @property
    def doubt(self) -> float | None:
        """The spread as a share of the step."""
        return None if self.spread_ns is None else self.spread_ns / self.step_ns


@dataclass(frozen=True)
class Overhead:
    """A step with the instrumentation asleep and outside the window, and one in the window."""

    bare: StepTime | None
    window: StepTime | None

    @property
    def slowdown(self) -> float | None:
        """Profiled over unprofiled: 1.0 costs nothing; None where either was not timed."""
        if self.bare is None or self.window is None:
            return None
        return self.window.step_ns / self.bare.step_ns

    @property
    def doubt(self) -> float | None:
        """How far the slowdown may be off, as a difference; None where no spread is known."""
        known = [time.doubt for time in (self.bare, self.window) if time and time.doubt is not None]
        if self.slowdown is None or not known:
            return None
        return self.slowdown * math.hypot(*known)

    @property
    def is_unknown(self) -> bool:
        """Whether steps vary by more than the profiler costs."""
        if self.slowdown is None:
            return True
        return self.doubt is not None and self.doubt >= abs(self.slowdown - 1)

    def document(self) -> dict[str, Any]:
        """The section ``overhead`` of ``run.json``."""
        return {
            "bare": None if self.bare is None else asdict(self.bare),
            "window": None if self.window is None else asdict(self.window),
            "slowdown": self.slowdown,
            "slowdown_spread": self.doubt,
        }

    def __str__(self) -> str:
        if self.bare is None or self.window is None:
            return "overhead: not measured, too few whole steps outside the window or in it"
        times = (
            f"overhead: a step takes {self.bare.step_ns / 1e6:.3f} ms unprofiled "
            f"({self.bare.steps} steps) and {self.window.step_ns / 1e6:.3f} ms in the window "
            f"({self.window.steps} steps)"
        )
        change = 100 * (self.window.step_ns / self.bare.step_ns - 1)
        if self.doubt is None:
            return f"{times}: {change:+.1f}%"
        if self.is_unknown:
            return f"{times}: cannot tell, steps vary by ±{100 * self.doubt:.1f}%"
        return f"{times}: {change:+.1f}% (±{100 * self.doubt:.1f})"


@dataclass(frozen=True)
class WindowStatus:
    """Steps seen by the process that saw most, and the steps at which its window opened, closed."""

    steps: int = 0
    opened: int | None = None
    closed: int | None = None
    first_timed: int = 0
    """The step that the first duration is of."""
    durations_ns: list[int] = field(default_factory=list, repr=False)
    """On the host, from the begin of a step to the begin of the next."""
    groups: list[Group] = field(default_factory=list, repr=False)
    graphs: bool = False
    """Whether CUDA graphs were replayed."""
    found: int = 0
    """Steps before the program's first own one, in which the window had opened."""

    @classmethod
    def read(cls, folder: Path) -> WindowStatus:
        """From the files ``window.<pid>.json`` that the program's processes left."""
        found = list(_statuses(folder.glob("window.*.json")))
        opened = [status for status in found if status.opened is not None]
        return max(opened or found, key=lambda status: status.steps, default=cls())

    @property
    def overhead(self) -> Overhead:
        """Bare steps against those of the window."""
        bare, window = self._step_time("bare"), self._step_time("window")
        if bare is None or window is None or bare.doubt is None:
            return Overhead(bare, window)
        if window.spread_ns is None or (bare.groups > 1 and window.groups == 1):
            # Single steps vary by more than groups do, and say nothing where the host runs ahead.
            window = replace(window, spread_ns=round(bare.doubt * window.step_ns))
        return Overhead(bare, window)

    def notes(self, *, by_node: bool) -> list[str]:
        """What the launch says; ``by_node``: nsys traces CUDA graphs so."""
        notes = [str(self.overhead), *([_NODES_READY] if self.graphs and by_node else [])]
        if self.found:
            notes.append(
                f"the window opened at step {self.opened}, before the program's first own step: "
                f"the {self.found} steps that were found before it are counted, too"
            )
        return notes

    def _step_time(self, kind: Kind) -> StepTime | None:
        """The median group of a kind, before the window where any is.

        Groups after it say only how much the steps of a host that runs ahead vary.
        """
        known = [group for group in self.groups if group.kind == kind and group.elapsed_ns > 0]
        if not known:
            return None
        before = [group for group in known if self.opened is None or group.first < self.opened]
        groups = before or known
        spread = self._variation(groups[0]) if len(groups) == 1 else _half_range(groups)
        if spread is None and len(known) > 1:
            spread = _half_range(known)
        return StepTime(
            max(1, round(statistics.median(map(_each, groups)))),
            None if spread is None else round(spread),
            sum(group.steps for group in groups),
            len(groups),
        )

    def _variation(self, group: Group) -> float | None:
        """How far the mean of one group may be off, by its single steps on the host.

        All but the last one, which has the wait for the GPU.
        """
        begin, count = group.first - self.first_timed, group.steps - 1
        periods = self.durations_ns[max(begin, 0) : max(begin + count, 0)]
        if count < 2 or len(periods) < count:
            return None
        if statistics.mean(periods) < _HOST_PACED * _each(group):
            return None
        return 2 * statistics.stdev(periods) / math.sqrt(count)


def _half_range(groups: Sequence[Group]) -> float:
    """Half the range of what a step takes in several groups."""
    each = [_each(group) for group in groups]
    return (max(each) - min(each)) / 2


def _each(group: Group) -> float:
    return group.elapsed_ns / group.steps


def _statuses(files: Iterable[Path]) -> Iterable[WindowStatus]:
    for file in files:
        with suppress(OSError, ValueError, KeyError, TypeError):
            text = json.loads(file.read_text("utf-8"))
            yield WindowStatus(
                text["steps"],
                text["opened"],
                text["closed"],
                text["first_timed"],
                list(text["durations_ns"]),
                [Group(**group) for group in text["groups"]],
                bool(text["graphs"]),
                text["found"],
            )
