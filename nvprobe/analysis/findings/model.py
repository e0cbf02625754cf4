"""A finding, and the evidence that rules look at.

Kernels in the order of their stream, as text: patterns of kernels are regular expressions.

One letter a kernel:

``G`` GEMM or GEMV, ``S`` softmax, ``E`` elementwise, ``N`` norm, ``R`` reduction, ``L`` layout,
``.`` anything else. A line break stands between streams and between steps; no pattern crosses one.

A finding, and the evidence that rules look at.

``saves_ns`` is how much shorter the captured window would be, ``(low, high)``: the high end is what
the evidence allows at most, the low end what remains under pessimistic assumptions, which each
rule states. A window holds several steps; divide by them for a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from nvprobe.analysis.allocator import AllocatorUse
from nvprobe.analysis.kernels.by_name import short_kernel_name
from nvprobe.analysis.kernels.classes import Activity, Family, OpClasses
from nvprobe.analysis.kernels.counters import CounterUse
from nvprobe.analysis.kernels.occupancy import LaunchFit
from nvprobe.analysis.kernels.work import WorkItems
from nvprobe.analysis.memory import Memory
from nvprobe.analysis.model import DeviceUse, FoundBy, Steps
from nvprobe.analysis.steps import step_at, steps
from nvprobe.analysis.timelines import left_out
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.intervals import runs, sorted_by, union_length
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, OpKind, Ops, Trace
from nvprobe.trace.rows import Row, is_, measured, ns

_LETTERS = {
    Family.GEMM: "G", Family.GEMV: "G", Family.SOFTMAX: "S", Family.ELEMENTWISE: "E",
    Family.NORM: "N", Family.REDUCTION: "R", Family.LAYOUT: "L",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelText:
    """Kernels of every stream, one letter each."""

    text: bytes
    op: Column
    """int64 op row per letter, -1 at a break."""

    def spans(self, pattern: str) -> tuple[Column, Column]:
        """(first letter, last letter + 1) of every match, left to right, none in two."""
        found = [match.span() for match in re.finditer(pattern.encode(), self.text)]
        low, high = np.array(found, np.int64).reshape(len(found), 2).T
        return low, high

    def ops_in(self, low: Column, high: Column) -> Column:
        """The op rows of disjoint spans, one after the other."""
        edges = np.zeros(len(self.op) + 1, np.int8)
        edges[low] += 1
        edges[high] -= 1
        return self.op[np.cumsum(edges[:-1]) > 0]


def kernel_text(
    ops: Ops, kernels: Column, stream: Column, step: Column, family: Column
) -> KernelText:
    """Order ``kernels`` (op rows) by stream, then time; the other columns have a row per op.

    Copies and sets between kernels are left out: they do not break a chain.
    """
    rows = kernels[sorted_by(stream[kernels], ops.start[kernels])]
    place = stream[rows] * (int(step.max(initial=-1)) + 2) + step[rows] + 1
    letters = np.full(len(Family), ord("."), np.uint8)
    for one, letter in _LETTERS.items():
        letters[one] = ord(letter)
    breaks = runs(place)[1:]
    text = np.insert(letters[family[rows]], breaks, ord("\n"))
    return KernelText(text.tobytes(), np.insert(rows, breaks, -1))


HARDLY = 0.1
"""A GPU that is less busy than this gains nothing from faster kernels."""
Severity = Literal["high", "medium", "low", "info"]
Value = int | float | str | None


class StepSaving(Row, frozen=True):
    """What a change saves of the unprofiled step, from replays."""

    low: Annotated[float, measured("%", "at least")]
    mid: Annotated[float, measured("%", "expected")]
    high: Annotated[float, measured("%", "at most")]
    after_previous: Annotated[float, measured("%", "expected, with all findings before it done")]
    instead_of: Annotated[int | None, is_("number of the finding it is another way for")]
    step_ns: Annotated[int, ns("the unprofiled step")]
    calibration: Annotated[str, is_("how the profiler's cost is known: `measured` or `default`")]
    replay_error: Annotated[float, is_("of the unchanged replay, as a share of the step")]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change, or to know."""

    id: str
    """Stable name of the pattern: ``implicit_sync``."""
    title: str
    path: int
    """Row of ``attribution.paths``, -1 where it belongs to no single path."""
    sources: tuple[str, ...]
    """Lines of the program, where known: ``train.py:31``. A rule gives those that it knows to be
    the cause; `sources.with_sources` adds what the capture has of the others."""
    evidence: Mapping[str, Value]
    saves_ns: tuple[int, int]
    advice: tuple[str, ...]
    """What to try, the likeliest first."""
    delays_ns: int = 0
    """How much later results come by it, all together: a loss where no time is saved."""
    severity: Severity = "info"
    """Set when findings are ranked, from ``saves_ns``."""
    ops: Column | None = field(default=None, repr=False, compare=False)
    """Op rows that it is about: their lines are looked up where Python frames are recorded."""
    calls: Column | None = field(default=None, repr=False, compare=False)
    """The same for call rows, where it is about calls that start nothing."""
    idle: Column | None = field(default=None, repr=False, compare=False)
    """Idle ns per path, as :meth:`Evidence.idle` gives it, that general rules leave out."""
    functions: tuple[str, ...] = ()
    """Functions without a range whose calls, where the sidecar has them, are the cause."""
    touches: Column | None = field(default=None, repr=False, compare=False)
    """What its change is about, where that is not ``ops``: call rows of waits and allocations, op
    rows of uploads."""
    step_saving: StepSaving | None = None
    """Replayed; ``None`` where the capture has no model, or no replay can weigh the change."""
    roles: tuple[str, ...] = ()
    """What each of ``sources`` is: ``line`` or a role of `nvprobe.analysis.code_places`."""


@dataclass(frozen=True)
class Evidence:
    """What an analysis knows, as rules need it. Sums worked out once are kept."""

    attribution: Attribution
    steps: Steps
    devices: DeviceUse
    waits: Waits
    classes: OpClasses
    fit: LaunchFit | None
    work: WorkItems | None
    memory: Memory | None
    allocator: AllocatorUse | None
    counters: CounterUse | None
    lost_launches: int
    """Launch calls without any GPU record: with more than one in a hundred, idle means nothing."""
    suspect: Column
    """bool per op: its recorded end cannot be right."""

    @property
    def trace(self) -> Trace:
        """The trace behind it all."""
        return self.attribution.trace

    @cached_property
    def ops(self) -> Ops:
        """GPU ops; an empty table where there are none."""
        return self.trace.ops

    def kernel_name(self, op: int) -> str:
        """A kernel's short name, which says what a generic kernel computes."""
        name, short = self.trace.texts(np.array([self.ops.name[op], self.ops.short_name[op]]))
        return short_kernel_name(name or "", short or "") or "a kernel"

    @cached_property
    def window_ns(self) -> int:
        """Time from first to last op, summed over devices."""
        return int(self.devices.window_ns.sum())

    @cached_property
    def span_ns(self) -> int:
        """The longer of the window and the host time of the steps: nothing saves more."""
        return max(self.window_ns, int(self.steps.wall_ns[self.steady].sum()))

    @cached_property
    def busy_ns(self) -> int:
        """Time with any op running, summed over devices."""
        return int(self.devices.busy_ns.sum())

    @property
    def busy_share(self) -> float:
        """Busy over window, 0 where nothing ran."""
        return self.busy_ns / self.window_ns if self.window_ns else 0.0

    @cached_property
    def on_nvidia(self) -> bool:
        """Whether nsys, and so ``nvprobe launch``, could record it: no calls of HIP or SYCL."""
        names = self.trace.texts(np.unique(self.trace.calls.name))
        return not any((name or "").startswith(("hip", "ur", "ze")) for name in names)

    @cached_property
    def trusted(self) -> Column:
        """bool per op: it has possible times and no suspect end."""
        return self.attribution.valid & ~self.suspect

    @cached_property
    def idle_trusted(self) -> bool:
        """Whether idle figures mean anything: hardly a launch lost, ends right."""
        suspect_ns = int(self.attribution.duration[self.suspect].sum())
        total = int(self.attribution.duration.sum())
        return self.lost_launches * 100 <= len(self.ops) and suspect_ns <= total // 10

    @cached_property
    def steady(self) -> Column:
        """Rows of the steps that stand for the loop: without a first one that warms up.

        A step without ops is none, what is left when the loop has ended, but on the CPU.
        """
        working = self.steps.ops > 0
        if self.steps.steady is not None:
            return np.flatnonzero(self.steps.steady & (working if working.any() else True))
        if not working.any():
            return np.arange(len(self.steps))
        rows = np.flatnonzero(working)
        wall = self.steps.wall_ns[rows]
        if len(wall) >= 3 and wall[0] > 2 * np.median(wall[1:]):
            rows = rows[1:]
        return rows

    @property
    def repeats(self) -> bool:
        """Whether the capture shows a loop: what it does once may be start-up."""
        return len(self.steady) >= 2

    @property
    def of_a_loop(self) -> bool:
        """Whether it repeats, or a filter leaves a part of what repeats."""
        if self.repeats or self.attribution.unfiltered is None:
            return self.repeats
        return len(steps(self.attribution.whole, np.empty(0, np.int64))) >= 2

    def idle(self, *causes: Cause) -> Column:
        """Idle ns per path (the last entry: of no path) of some causes, in the steady steps.

        Without steps: all that has a path. Idle outside both may be start-up.
        """
        charges = self.waits.idle
        rows = np.isin(charges.cause, causes)
        rows &= self._idle_of_loop
        out = np.zeros(len(self.attribution.paths.parent) + 1, np.int64)
        np.add.at(out, charges.path[rows], charges.ns[rows])
        return out

    @cached_property
    def _idle_of_loop(self) -> Column:
        """Bool per entry of idle time: in a steady step; without steps: it has a path."""
        if self.repeats:
            return np.isin(self._step_of_idle, self.steady)
        return np.asarray(self.waits.idle.path >= 0)

    @property
    def idle_between_steps_ns(self) -> int:
        """Idle time before a steady step that no step holds."""
        charges = self.waits.idle
        before = np.isin(charges.next_step, self.steady) & (charges.step == NO_ROW)
        return int(charges.ns[before].sum())

    @cached_property
    def _step_of_idle(self) -> Column:
        """Step of each entry of idle time; what engines do between iterations is of the next."""
        charges = self.waits.idle
        between = (charges.step == NO_ROW) & (charges.next_step != NO_ROW)
        engine = np.append(self.steps.found_by == FoundBy.ENGINE, False)
        return np.where(between & engine[charges.next_step], charges.next_step, charges.step)

    @cached_property
    def step_of_op(self) -> Column:
        """int64 row of the step (of its process) that was open when an op was called, -1."""
        out = np.full(len(self.ops), NO_ROW, np.int64)
        calls, call = self.trace.calls, self.attribution.call
        rows = np.flatnonzero(call >= 0)
        out[rows] = self.step_at(self.ops.process[rows], calls.start[call[rows]])
        return out

    @cached_property
    def kernel_text(self) -> KernelText:
        """The kernels with trusted times, one letter each, in the order of their streams."""
        kernels = np.flatnonzero((self.ops.kind == OpKind.KERNEL) & self.trusted)
        stream, family = self.waits.streams.of_op, self.classes.family
        return kernel_text(self.ops, kernels, stream, self.step_of_op, family)

    def step_at(self, process: Column, time: Column) -> Column:
        """int64 row of the step that a process was in at each instant, -1 for none."""
        return step_at(self.steps, process, time)

    def in_steady(self, time: Column) -> Column:
        """bool per instant: inside a steady step (of any process); all, where nothing repeats."""
        if not self.repeats:
            return np.ones(len(time), bool)
        order = np.argsort(self.steps.start[self.steady])
        start, end = (c[self.steady][order] for c in (self.steps.start, self.steps.end))
        end = np.maximum.accumulate(end)
        at = np.searchsorted(start, time, side="right") - 1
        return (at >= 0) & (time < end[np.maximum(at, 0)])

    def on_compute_streams(self, rows: Column) -> bool:
        """Whether ops (copies) spend most of their time on streams that compute, too."""
        stream = self.waits.streams.of_op
        compute = (self.classes.activity == Activity.COMPUTE) & self.trusted
        shared = np.isin(stream[rows], np.unique(stream[compute]))
        duration = self.attribution.duration[rows]
        return int(duration[shared].sum()) * 2 > int(duration.sum())

    def alone_ns(self, some: Column, beside: Column) -> int:
        """Time in which ops of ``some`` ran and none of ``beside``, summed over devices.

        What a selection leaves out counts as beside.
        """
        if not some.any():
            return 0
        together = some | beside
        union = self._of_all if together.all() else self._union(together)
        return int((union - self._union(beside)).sum())

    @cached_property
    def _of_all(self) -> Column:
        return self._union(np.ones(len(self.ops), bool))

    def _union(self, chosen: Column) -> Column:
        rows = np.flatnonzero(chosen & self.trusted)
        own = self.ops.device[rows] + 1, self.ops.start[rows], self.ops.end[rows]
        device, start, end = (
            np.concatenate(pair) for pair in zip(own, left_out(self.attribution), strict=True)
        )
        return union_length(device, start, end, len(self.trace.devices) + 1)
