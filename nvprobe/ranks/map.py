"""From one capture to the :class:`~nvprobe.ranks.summary.Summary` of each rank in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.grouping import distinct, sums
from nvprobe.analysis.kernels.attributed import classify
from nvprobe.analysis.model import Steps as StepRows
from nvprobe.analysis.overlap.combinations import Work
from nvprobe.analysis.path_quantities import innermost_time
from nvprobe.analysis.steps import step_at, steps
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.host_time import launching_calls
from nvprobe.analysis.waiting.waits import Waits, waits
from nvprobe.attribution import attribute
from nvprobe.attribution.kinds import RangeRole, range_roles
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.errors import InputError
from nvprobe.merging.load import load
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.identity import identities
from nvprobe.ranks.summary import Identity, Kernels, Spent, Steps, Summary
from nvprobe.ranks.talk import gpu_collectives, host_collectives
from nvprobe.trace import Column, Trace

GPU, HOST, INPUT, IDLE = "gpu", "host", "input", "idle: "
_QUEUE_FULL_NS = 1_000_000
"""A launch takes microseconds; one that lasts so long waits."""


def summarize(source: Source) -> list[Summary]:
    """The ranks of one source, usually one; raises NvprobeError where it cannot be read."""
    return [one.summary() for one in captured_ranks(source)]


def captured_ranks(source: Source) -> list[CapturedRank]:
    """The same, with all that was read."""
    trace = load(*source.files, python_stacks=False)
    attribution = attribute(trace)
    step_rows = steps(attribution, lost_launches(attribution))
    found = waits(attribution, step_rows, classify(attribution).activity)
    rows = _ranks(trace, step_rows)
    if not len(rows):
        raise InputError(
            f"{source.name}: no GPU work and no range was recorded; nvprobe analyze says why"
        )
    ranks = identities(source, trace, rows)
    return [CapturedRank(attribution, step_rows, found, row, one) for row, one in ranks]


def _ranks(trace: Trace, step_rows: StepRows) -> Column:
    """Rows of the processes that are ranks: those that use a GPU, else those that have steps."""
    working = np.unique(trace.ops.process)
    if not len(working):
        working = np.unique(step_rows.process)
    return working if len(working) else np.unique(trace.ranges.process)[:1]


class _Texts(dict[str, int]):
    """A growing list of texts; ``texts[text]`` is its row."""

    def __missing__(self, text: str) -> int:
        row = self[text] = len(self)
        return row

    def rows(self, texts: Sequence[str]) -> Column:
        """int32 rows of many texts."""
        return np.array([self[text] for text in texts], np.int32)


@dataclass(frozen=True)
class CapturedRank:
    """One process of an attribution."""

    attribution: Attribution
    all_steps: StepRows
    waits: Waits
    process: int
    identity: Identity

    def summary(self) -> Summary:
        """All tables."""
        trace, texts = self.attribution.trace, _Texts()
        zero = trace.origin_ns or 0
        ops = trace.ops.process == self.process
        on_gpu = bool(ops.any())
        talks = ops & self.attribution.valid & (self.waits.work == Work.COMMUNICATION)
        paths = _Paths(self.attribution, texts)
        collect = gpu_collectives if talks.any() else host_collectives
        collectives, groups = collect(
            self.attribution, self.waits, self.process, self._step, paths.rows, texts
        )
        return Summary(
            identity=self.identity,
            steps=self._steps(zero),
            spent=self._spent(ops & (self.waits.work != Work.COMMUNICATION), paths, texts),
            collectives=collectives,
            groups=groups,
            kernels=self._kernels(ops & ~talks, paths, texts),
            utc=trace.origin_ns is not None and trace.origin_ns > 0,
            gpu=on_gpu,
            compiled=_compiled(trace, self.process),
            notes=tuple(trace.warnings),
            texts=tuple(texts),
        )

    @property
    def _own_steps(self) -> Column:
        return np.flatnonzero(self.all_steps.process == self.process)

    def _step(self, time: Column) -> Column:
        """Row among the rank's own steps at each instant, -1."""
        row = step_at(self.all_steps, np.full(len(time), self.process), time)
        return self._own(row)

    def _own(self, row: Column) -> Column:
        """Row among the rank's own steps of a row of all steps."""
        place = np.full(len(self.all_steps) + 1, -1)
        place[self._own_steps] = np.arange(len(self._own_steps))
        return place[row]

    def _steps(self, zero: int) -> Steps:
        mine = self.all_steps.take(self._own_steps)
        idle = self.waits.idle
        row = self._own(idle.step)
        return Steps(
            index=mine.index,
            start=mine.start + zero,
            end=mine.end + zero,
            busy_ns=mine.gpu_busy_ns,
            idle_ns=sums(row, idle.ns, len(mine)),
            waits_ns=np.minimum(self._host_waits(len(mine)), mine.end - mine.start),
        )

    def _host_waits(self, steps: int) -> Column:
        """By step: calls that wait for the GPU, and launches that wait for a place in its queue."""
        calls = self.attribution.trace.calls
        launches = launching_calls(self.attribution)
        launches = launches[calls.end[launches] - calls.start[launches] > _QUEUE_FULL_NS]
        rows = np.union1d(self.waits.calls.call, launches)
        rows = rows[self.attribution.trace.threads.process[calls.thread[rows]] == self.process]
        return sums(self._step(calls.start[rows]), calls.end[rows] - calls.start[rows], steps)

    def _spent(self, work: Column, paths: _Paths, texts: _Texts) -> Spent:
        """GPU work, and idle time or (without a GPU) host time."""
        rows = np.flatnonzero(work)
        parts = [self._work(rows, texts)]
        parts.append(self._idle(texts) if len(rows) else self._host(texts))
        step, path, kind, ns = (np.concatenate(column) for column in zip(*parts, strict=True))
        _, code = distinct((step + 1) << 40 | (path.astype(np.int64) + 1) << 8 | kind)
        first = np.unique(code, return_index=True)[1]
        return Spent(
            step=step[first],
            path=paths.rows(path[first]),
            kind=kind[first],
            ns=sums(code, ns, len(first)),
        )

    def _work(self, rows: Column, texts: _Texts) -> tuple[Column, ...]:
        """(step, path, kind, ns) of GPU work, by the call that asked for it."""
        call = self.attribution.call[rows]
        trace = self.attribution.trace
        time = np.where(call >= 0, trace.calls.start[call] if len(trace.calls) else 0, -1)
        step = np.where(call >= 0, self._step(time), -1)
        kind = np.full(len(rows), texts[GPU])
        return step, self.attribution.owner[rows], kind, self.attribution.duration[rows]

    def _idle(self, texts: _Texts) -> tuple[Column, ...]:
        """(step, path, kind, ns) of the idle time of the rank's devices."""
        device, step, path, cause, ns = by(self.waits.idle, "device", "step", "path", "cause")
        ops = self.attribution.trace.ops
        own = np.isin(device, np.unique(ops.device[ops.process == self.process]))
        kinds = texts.rows([IDLE + one.label for one in Cause])
        return self._own(step[own]), path[own], kinds[cause[own]], ns[own]

    def _host(self, texts: _Texts) -> tuple[Column, ...]:
        """(step, path, kind, ns) of host time outside of collectives, on the initiating thread.

        All below a range that waits for data is input.
        """
        ranges, tree = self.attribution.trace.ranges, self.attribution.tree
        leading = int(self.attribution.initiating[self.process])
        own = innermost_time(self.attribution)
        paths = self.attribution.paths
        talks = paths.nearest(paths.kind == Kind.COLLECTIVE) >= 0
        input_ = range_roles(paths.names)[paths.name] == RangeRole.INPUT
        loads = paths.nearest(input_ & (paths.kind != Kind.STEP)) >= 0
        here = (ranges.thread == leading) & (tree.path >= 0)
        rows = np.flatnonzero(here & ~talks[tree.path])
        kind = np.where(loads[tree.path[rows]], texts[INPUT], texts[HOST])
        return self._step(ranges.start[rows]), tree.path[rows], kind, own[rows]

    def _kernels(self, work: Column, paths: _Paths, texts: _Texts) -> Kernels:
        ops, rows = self.attribution.trace.ops, np.flatnonzero(work)
        name, code = distinct(ops.short_name[rows].astype(np.int64))
        duration = self.attribution.duration[rows]
        order = np.lexsort((-duration, code))
        longest = rows[order][np.unique(code[order], return_index=True)[1]]
        known = [text or "" for text in self.attribution.trace.texts(name)]
        return Kernels(
            name=texts.rows(known),
            path=paths.rows(self.attribution.owner[longest]),
            ops=np.bincount(code, minlength=len(name)),
            gpu_ns=sums(code, duration, len(name)),
        )


class _Paths:
    """Paths of an attribution as texts of a summary."""

    def __init__(self, attribution: Attribution, texts: _Texts) -> None:
        self._all = attribution.paths
        self._texts = texts
        self._known: dict[int, int] = {-1: -1}

    def rows(self, paths: Column) -> Column:
        """Row of the text of each path, -1 for none."""
        for path in set(paths.tolist()) - self._known.keys():
            self._known[path] = self._texts[self._all.text(path)]
        return np.array([self._known[path] for path in paths.tolist()], np.int32)


def _compiled(trace: Trace, process: int) -> tuple[str, ...]:
    """Compiled graphs by id and phase, and functions that were compiled again."""
    sidecar = trace.sidecar
    graphs = [
        f"graph {one.compile_id} {one.phase}" for one in sidecar.manifests if one.process == process
    ]
    again = [
        f"recompilation of {one.function or one.source}: {'; '.join(one.guards)}"
        for one in sidecar.recompiles
        if one.process == process
    ]
    return tuple(sorted({*graphs, *again}))
