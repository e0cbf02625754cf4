"""Inside the program: the elapsed time of groups of steps, from one idle GPU to the next.

The time between two steps on the host says nothing of a program whose GPU is the bottleneck: its
host runs ahead. So the GPU is synchronized before and after a group, and only there. Groups of
``bare`` steps lie outside the window, where the instrumentation sleeps; the ``window`` is one
group. Synchronizing is nvprobe's doing and lies in a range of that name.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nvprobe.instrumentation import emitter
from nvprobe.instrumentation.windows import OURS

log = logging.getLogger("nvprobe")

STEPS = 5
"""Steps of a group: enough that the GPU idling at its start is a small part of it."""
COLD_STEPS = 3
"""Steps that the first group leaves out: they compile, choose algorithms and allocate."""
AWAKE_STEPS = 2
"""Steps before the window in which the instrumentation is awake already."""
MOST_BEFORE, MOST_AFTER = 4, 2
LONGEST_WINDOW = 20
"""Steps timed of a window that is open to the end of the program."""

Kind = Literal["bare", "window"]


@dataclass(frozen=True)
class Group:
    """Steps ``first`` to ``end`` (exclusive), from synchronization to synchronization."""

    kind: Kind
    first: int
    end: int
    elapsed_ns: int = 0

    @property
    def steps(self) -> int:
        """How many."""
        return self.end - self.first


def groups_before(window: int, warmup: int = 0) -> list[Group]:
    """Bare groups before a window that opens at step ``window``, as late as possible.

    Where the cold steps leave none, all but the first step will do.
    """
    last = window - AWAKE_STEPS
    for cold in (max(warmup, COLD_STEPS), max(warmup, 1)):
        count = min((last - cold) // STEPS, MOST_BEFORE)
        if count > 0:
            starts = [last - STEPS * number for number in range(count, 0, -1)]
            return [Group("bare", start, start + STEPS) for start in starts]
    return []


def synchronize() -> None:
    """Wait for the GPU, in a range that says whose wait it is; nothing without CUDA in use."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    emitter.push(OURS)
    try:
        cuda.synchronize()
    except Exception as error:  # the program's own error, which the program will meet
        log.debug("not synchronized: %s", error)
    finally:
        emitter.pop()


class GroupTimer:
    """Times planned groups as steps go by: `end_due`, then whatever changes, then `begin_due`."""

    def __init__(self, planned: list[Group], wait: Callable[[], None] = synchronize) -> None:
        self.planned = planned
        self.wait = wait
        self.done: list[Group] = []
        self.current: Group | None = None
        self.began = 0

    @property
    def finished(self) -> bool:
        """Whether no group is left."""
        return self.current is None and not self.planned

    def plan_window(self, first: int, last: int | None) -> None:
        """Time the window that opens at step ``first``, without cold steps if it has others."""
        end = first + LONGEST_WINDOW if last is None else last
        start = max(first, min(COLD_STEPS, end - 2))
        self.planned = [Group("window", start, end)]

    def plan_after(self, closed: int) -> None:
        """Bare groups after the window, where fewer than two were timed before it.

        nsys still works on what it recorded then, which slows the host: beside a group before the
        window they say only how much the GPU's steps vary.
        """
        bare = sum(group.kind == "bare" for group in self.done)
        count = MOST_AFTER if bare < 2 else 0
        starts = [closed + 1 + STEPS * number for number in range(count)]
        self.planned = [Group("bare", start, start + STEPS) for start in starts]

    def begin_due(self, step: int) -> None:
        """Begin the group that starts with ``step``, if one does."""
        if self.current is not None:
            return
        self.planned = [group for group in self.planned if group.first >= step]
        if self.planned and step == self.planned[0].first:
            self.wait()
            self.current = self.planned.pop(0)
            self.began = time.perf_counter_ns()

    def end_due(self, done: int, *, cut: bool = False) -> None:
        """End the group whose last step is among the first ``done``; ``cut``: whatever it is."""
        group = self.current
        if group is None or not (cut or done >= group.end):
            return
        self.wait()
        elapsed = time.perf_counter_ns() - self.began
        self.current = None
        if done > group.first:
            self.done.append(Group(group.kind, group.first, done, elapsed))
