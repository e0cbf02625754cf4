"""The sampled steps as rules look at them: events and ops by kernel, by path, by what they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.findings.model import Evidence
from nvprobe.analysis.findings.sources import common_path
from nvprobe.analysis.grouping import numbered
from nvprobe.analysis.replay.model import NOTHING
from nvprobe.analysis.replay.sample import Sample
from nvprobe.attribution.model import Kind
from nvprobe.trace import Column, OpKind

HOST_TO_DEVICE, DEVICE_TO_HOST, PAGEABLE = 1, 2, 1
BACKWARD = r"(?i)^(## )?backward( ##)?$"


def kernels_named(evidence: Evidence, op: Column, pattern: str) -> Column:
    """Bool per op row: its kernel's full name has the pattern (RE2)."""
    names, place = numbered(evidence.ops.name[op])
    texts = evidence.trace.strings.take(pa.array(names, mask=names < 0))
    hit = pc.match_substring_regex(pc.fill_null(texts, ""), pattern)
    return np.asarray(hit.to_numpy(zero_copy_only=False), bool)[place]


def path_of_ops(evidence: Evidence, op: Column) -> int:
    """The deepest program path with most of the GPU time of some op rows, -1."""
    spent = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(spent, evidence.attribution.owner[op], evidence.attribution.duration[op])
    return common_path(evidence.attribution.paths, spent)


@dataclass(frozen=True)
class Sampled:
    """Columns are aligned with the events, or with the ops, of ``sample.model``."""

    evidence: Evidence
    sample: Sample

    def kernels(self, pattern: str) -> Column:
        """Bool per op: a kernel whose name has the pattern."""
        return kernels_named(self.evidence, self.sample.op, pattern) & self._is(OpKind.KERNEL)

    def launched(self, ops: Column) -> Column:
        """Bool per event: it launched one of ``ops``."""
        out = np.zeros(len(self.sample.events), bool)
        out[self.sample.model.ops.event[ops]] = True
        return out

    def started_by(self, events: Column) -> Column:
        """Bool per op: launched by one of ``events``."""
        return events[self.sample.model.ops.event]

    @cached_property
    def waiting(self) -> Column:
        """Bool per event: the host waits in it."""
        return self.sample.model.events.awaits != NOTHING

    @cached_property
    def launching(self) -> Column:
        """Bool per event: it starts something on the GPU."""
        return self.sample.model.op_end() > self.sample.model.events.first_op

    @cached_property
    def reads(self) -> Column:
        """Bool per event: a copy to the host."""
        return self.launched(self._copies(DEVICE_TO_HOST))

    @cached_property
    def uploads(self) -> Column:
        """Bool per op: a copy to the GPU."""
        return self._copies(HOST_TO_DEVICE)

    @cached_property
    def on_autograd(self) -> Column:
        """Bool per event: called by an autograd thread."""
        return np.asarray(self.evidence.attribution.autograd[self.sample.events.thread])

    def below(self, pattern: str, *kinds: Kind) -> Column:
        """Bool per event: in a path with a range named so (RE2), or below it; of some kinds."""
        return np.append(self._inside(pattern, *kinds), False)[self.sample.path]

    def gap_below(self, pattern: str, *kinds: Kind) -> Column:
        """The same for the gap before an event: where the host is half-way through it."""
        return np.append(self._inside(pattern, *kinds), False)[self.sample.gap_path]

    @cached_property
    def recomputed(self) -> Column:
        """Bool per event: in a module that is called inside a backward pass."""
        paths = self.evidence.attribution.paths
        module = (paths.kind == Kind.MODULE) & self._inside(BACKWARD)
        return np.append(paths.nearest(module) >= 0, False)[self.sample.path]

    @cached_property
    def backward_pass(self) -> Column:
        """How many backward passes had begun before each event."""
        attribution = self.evidence.attribution
        mine = np.append(self.ranges(BACKWARD), False)[attribution.tree.path]
        mine &= ~attribution.tree.folded
        begun = np.sort(self.evidence.trace.ranges.start[mine])
        return np.searchsorted(begun, self.sample.events.begin, side="right")

    def place(self, events: Column) -> int:
        """The deepest program path with most of ``events``, -1."""
        count = np.zeros(len(self.evidence.attribution.paths.parent) + 1, np.int64)
        np.add.at(count, self.sample.path[events], 1)
        return common_path(self.evidence.attribution.paths, count)

    def gpu_share(self, ops: Column) -> float:
        """Of the GPU time of the steps, what ``ops`` take."""
        dur = self.sample.model.ops.dur
        return float(dur[ops].sum() / max(int(dur.sum()), 1))

    def just_before(self, events: Column, mine: Column, count: int) -> Column:
        """Bool per event: one of ``mine`` among the ``count`` events before one of ``events``."""
        near = np.zeros(len(events), bool)
        for distance in range(1, count + 1):
            near[:-distance] |= events[distance:]
        return near & mine

    def _inside(self, pattern: str, *kinds: Kind) -> Column:
        return np.asarray(
            self.evidence.attribution.paths.nearest(self.ranges(pattern, *kinds)) >= 0
        )

    def ranges(self, pattern: str, *kinds: Kind) -> Column:
        """Bool per path: its last range is named so (RE2); of some kinds."""
        paths = self.evidence.attribution.paths
        hit = pc.match_substring_regex(paths.names, pattern).to_numpy(zero_copy_only=False)
        marked = np.asarray(hit, bool)[paths.name]
        return marked & np.isin(paths.kind, kinds) if kinds else marked

    def _is(self, kind: OpKind) -> Column:
        return np.asarray(self.evidence.ops.kind[self.sample.op] == kind)

    def _copies(self, direction: int) -> Column:
        copies = self.evidence.ops.copy_kind[self.sample.op] == direction
        return np.asarray(copies & self._is(OpKind.MEMCPY))
