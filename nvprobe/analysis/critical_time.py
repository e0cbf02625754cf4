"""Where the time of the critical path goes, for each step of the replayed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nvprobe.analysis.kernels.attributed import classify
from nvprobe.analysis.kernels.classes import Family, OpClasses
from nvprobe.analysis.replay.critical import Part, critical_path, path_back
from nvprobe.analysis.replay.joint import Joint
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.run import completion, replay
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.waiting.syncs import Syncs

_IN_CALL = (Part.CALL, Part.RETURN)
_ON_HOST = (Part.HOST, *_IN_CALL)
_Key = tuple[Part, str | None, int, int]
"""Part, what it is, path, line; -1 for none."""


class OnPath(NamedTuple):
    """Time on the critical path, of a step."""

    part: str
    what: str | None
    """Of calls their name, of ops their family or kind."""
    path: str | None
    line: str | None
    ns: int


def critical_time(
    few: Sample, model: Model, syncs: Syncs, classes: OpClasses
) -> tuple[OnPath, ...]:
    """Time by part, call or kind of op, path and line, the longest first."""
    times = replay(model)
    steady = 1 if few.steps > 1 else 0
    found = critical_path(model, times, int(completion(model, times)[steady]))
    total: Counter[_Key] = Counter()
    rows = _Rows(few, syncs, classes)
    for part, row, ns in zip(
        found.part.tolist(), found.row.tolist(), found.ns.tolist(), strict=True
    ):
        total[rows.key(Part(part), row)] += ns
    return tuple(rows.on_path(key, ns, few.steps - steady) for key, ns in total.most_common())


def joint_critical_time(
    fews: Sequence[Sample], joint: Joint, syncs: Sequence[Syncs]
) -> tuple[tuple[int, OnPath], ...]:
    """The same of a job, with the rank (its row) that each part lies on."""
    steady = 1 if fews[0].steps > 1 else 0
    found = path_back(joint.model, joint.whole, joint.last(), int(joint.borders[steady]))
    total: Counter[tuple[int, _Key]] = Counter()
    rows = [
        _Rows(few, own, classify(few.attribution)) for few, own in zip(fews, syncs, strict=True)
    ]
    for code, row, ns in zip(
        found.part.tolist(), found.row.tolist(), found.ns.tolist(), strict=True
    ):
        part = Part(code)
        ranks, own = joint.of_event if part in _ON_HOST else joint.of_op
        which = int(ranks[row])
        total[which, rows[which].key(part, int(own[row]))] += ns
    return tuple(
        (which, rows[which].on_path(key, ns, fews[which].steps - steady))
        for (which, key), ns in total.most_common()
    )


class _Rows:
    """What an event or an op of the path is."""

    def __init__(self, few: Sample, syncs: Syncs, classes: OpClasses) -> None:
        self.few, self.syncs, self.classes = few, syncs, classes
        self.source = np.append(syncs.sites.source, -1)[
            np.append(syncs.site, -1)[few.events.waits]
        ].tolist()
        self.owner = few.attribution.owner[few.op].tolist()
        self.path, self.gap_path = few.path.tolist(), few.gap_path.tolist()
        names = few.attribution.trace.calls.name
        self.names = np.append(names, -1)[few.events.call].tolist()

    def on_path(self, key: _Key, ns: int, steps: int) -> OnPath:
        """What is reported of time on the path, of so many steps."""
        part, what, path, line = key
        return OnPath(
            part.label,
            what,
            self.few.attribution.paths.text(path) if path >= 0 else None,
            None if line < 0 else str(self.syncs.labels[line].as_py()),
            round(ns / steps),
        )

    def key(self, part: Part, row: int) -> _Key:
        """(part, what it is, path, line; -1 for none)."""
        if part == Part.HOST:
            return part, None, self.gap_path[row], -1
        if part in _IN_CALL:
            line = self.source[row] if part == Part.RETURN else -1
            return part, self.few.attribution.trace.text(self.names[row]), self.path[row], line
        family = Family(int(self.classes.family[self.few.op[row]])).label
        return part, family if part == Part.GPU else None, self.owner[row], -1
