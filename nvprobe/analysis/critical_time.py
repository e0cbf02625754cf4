"""Where the time of the critical path goes, for each step of the replayed ones."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from nvprobe.analysis.kernels.classes import Family, OpClasses
from nvprobe.analysis.replay.critical import Part, critical_path
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.run import completion, replay
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.waiting.syncs import Syncs

_IN_CALL = (Part.CALL, Part.RETURN)


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
    total: Counter[tuple[Part, str | None, int, int]] = Counter()
    rows = _Rows(few, syncs, classes)
    for part, row, ns in zip(
        found.part.tolist(), found.row.tolist(), found.ns.tolist(), strict=True
    ):
        total[rows.key(Part(part), row)] += ns
    text, count = few.attribution.paths.text, few.steps - steady
    return tuple(
        OnPath(
            part.label,
            what,
            text(path) if path >= 0 else None,
            None if line < 0 else str(syncs.labels[line].as_py()),
            round(ns / count),
        )
        for (part, what, path, line), ns in total.most_common()
    )


class _Rows:
    """What an event or an op of the path is."""

    def __init__(self, few: Sample, syncs: Syncs, classes: OpClasses) -> None:
        self.few, self.classes = few, classes
        self.source = np.append(syncs.sites.source, -1)[
            np.append(syncs.site, -1)[few.events.waits]
        ].tolist()
        self.owner = few.attribution.owner[few.op].tolist()
        self.path, self.gap_path = few.path.tolist(), few.gap_path.tolist()
        names = few.attribution.trace.calls.name
        self.names = np.append(names, -1)[few.events.call].tolist()

    def key(self, part: Part, row: int) -> tuple[Part, str | None, int, int]:
        """(part, what it is, path, line; -1 for none)."""
        if part == Part.HOST:
            return part, None, self.gap_path[row], -1
        if part in _IN_CALL:
            line = self.source[row] if part == Part.RETURN else -1
            return part, self.few.attribution.trace.text(self.names[row]), self.path[row], line
        family = Family(int(self.classes.family[self.few.op[row]])).label
        return part, family if part == Part.GPU else None, self.owner[row], -1
