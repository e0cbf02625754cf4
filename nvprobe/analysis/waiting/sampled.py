"""Which line the host was running while the GPU waited for it: an estimate from Python samples.

``nsys --python-sampling`` stops a thread every millisecond or so and notes its Python stack, down
to the line being run. The samples that fall into idle time of a path share out the idle time of
that path: a line that was seen in a third of them has a third of it. What is shared out is exact
and adds up; how it is shared is as good as the number of samples, which stands beside each line.
Time of a path that no sample fell into has no line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nvprobe.analysis.grouping import counts, distinct
from nvprobe.analysis.waiting.lanes import Lanes
from nvprobe.analysis.waiting.lines import NO_LINE, frame_labels, users_lines
from nvprobe.attribution.intervals import sorted_by
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, Trace, column

__all__ = ["LineSamples", "SampledTime", "added_up", "line_samples", "shared_out"]


@dataclass(frozen=True, slots=True)
class LineSamples:
    """The samples whose stack has a line of the user's, in order of time."""

    thread: Column
    time: Column
    line: Column
    """int32 row of ``labels``: the innermost of the user's lines."""
    labels: pa.StringArray

    def tellers(self, attribution: Attribution) -> Column:
        """Whose samples tell what each thread does (one more, -1, for no thread).

        Its own; a thread without any (autograd's run no Python) follows the initiating one.
        """
        threads = np.arange(len(attribution.autograd))
        sampled = np.zeros(len(threads), bool)
        sampled[self.thread] = True
        leader = np.where(attribution.autograd, attribution.open.initiator(threads), NO_ROW)
        return np.append(np.where(sampled, threads, leader), NO_ROW)

    def inside(
        self, attribution: Attribution, thread: Column, start: Column, end: Column
    ) -> Column:
        """int32 line of the last sample in each stretch of a thread, ``NO_LINE`` for none."""
        order = sorted_by(self.thread, self.time)
        lanes = Lanes.of(self.thread, self.time, len(attribution.autograd))
        teller = self.tellers(attribution)[thread]
        out = np.full(len(thread), NO_LINE, np.int32)
        asked = np.flatnonzero(teller != NO_ROW)
        last = lanes.count_before(teller[asked], end[asked]) - 1
        hit = (last >= lanes.first[teller[asked]]) & (lanes.time[last] >= start[asked])
        out[asked[hit]] = self.line[order[last[hit]]]
        return out


@dataclass(frozen=True, slots=True)
class SampledTime(Table):
    """Time of groups (a path, a path and a cause) shared out among lines."""

    group: Column = column("i8")
    line: Column = column("i4")
    """Row of ``LineSamples.labels``, -1 for time that no sample fell into."""
    ns: Column = column("i8")
    samples: Column = column("i8")


def line_samples(trace: Trace) -> LineSamples | None:
    """The Python samples of a trace; ``None`` where none of them saw a line of the user's."""
    samples, stacks = trace.python_samples, trace.python_stacks
    if not len(samples) or not len(stacks):
        return None
    line_of_text, _, labels = frame_labels(trace, stacks.symbol)
    line = users_lines(stacks, line_of_text, int(samples.stack.max()) + 1)[samples.stack]
    known = np.flatnonzero(line != NO_LINE)
    if not len(known):
        return None
    known = known[np.argsort(samples.time[known], kind="stable")]
    return LineSamples(samples.thread[known], samples.time[known], line[known], labels)


def shared_out(ns: Column, group: Column, line: Column) -> SampledTime:
    """Share ``ns`` (one per group) out among the lines seen in each group, to the nanosecond.

    ``group`` and ``line`` have one entry a sample. Whole nanoseconds are shared by the running
    sum of samples, so the shares of a group add up to its time.
    """
    pairs, code = distinct(group.astype(np.int64) << 32 | line.astype(np.int64))
    seen = counts(code, len(pairs))
    order = np.argsort(pairs, kind="stable")
    pairs, seen = pairs[order], seen[order]
    of, which = pairs >> 32, pairs & 0xFFFFFFFF
    first = np.searchsorted(of, of)
    after = np.cumsum(seen) - (np.cumsum(seen) - seen)[first]
    total = counts(group, len(ns))[of]
    share = _part(ns[of], after, total) - _part(ns[of], after - seen, total)
    silent = np.setdiff1d(np.flatnonzero(ns), of)  # nobody looked
    return SampledTime(
        group=np.concatenate((of, silent)),
        line=np.concatenate((which, np.full(len(silent), NO_LINE))),
        ns=np.concatenate((share, ns[silent])),
        samples=np.concatenate((seen, np.zeros(len(silent), np.int64))),
    )


def _part(ns: Column, seen: Column, total: Column) -> Column:
    """``ns * seen // total`` without leaving int64 (``seen`` <= ``total``)."""
    whole, rest = np.divmod(ns, np.maximum(total, 1))
    return whole * seen + rest * seen // np.maximum(total, 1)


def added_up(*shared: SampledTime) -> tuple[tuple[Column, Column], Column, Column]:
    """((group, line), time of each table, samples) of every group and line of several tables.

    Samples are the most that any of the tables saw there: they are mostly the same ones.
    """
    key = np.concatenate([one.group << 32 | one.line.astype(np.int64) + 1 for one in shared])
    keys, code = distinct(key)
    total = np.zeros((len(shared), len(keys)), np.int64)
    seen = np.zeros(len(keys), np.int64)
    first = 0
    for which, one in enumerate(shared):
        place = code[first : first + len(one)]
        total[which, place] = one.ns
        seen[place] = np.maximum(seen[place], one.samples)
        first += len(one)
    return (keys >> 32, (keys & 0xFFFFFFFF) - 1), total, seen
