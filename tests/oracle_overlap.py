"""Overlap as docs/attribution.md defines it: one sweep in plain Python, looking at who is running.

Between any two borders of ops the set of running ops of a device does not change; whatever is asked
is asked of that set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

from nvprobe.attribution import Attribution


class OverlapOracle:
    """Every overlap of an attribution. ``work``: class per op; ``step``: step row per op or -1."""

    def __init__(self, attribution: Attribution, work: list[str], step: list[int]) -> None:
        self.by_device, self.by_step, self.by_path = Counter(), Counter(), Counter()
        self.busy, self.alone = Counter(), Counter()
        self.stream_pairs, self.path_pairs = Counter(), Counter()
        self.exposed_by_path, self.exposed_by_collective = Counter(), Counter()
        self.exposed = 0
        self.work, self.step = work, step
        self.owner = attribution.owner.tolist()
        self.parent = attribution.paths.parent.tolist()
        ops = attribution.trace.ops
        self.name = ops.name.tolist()
        self.stream = list(zip(ops.process.tolist(), ops.stream.tolist(), strict=True))
        borders = defaultdict(list)
        for row in range(len(ops)):
            if attribution.valid[row]:
                device = int(ops.device[row])
                borders[device].append((int(ops.start[row]), 1, row))
                borders[device].append((int(ops.end[row]), 0, row))
        for device, mine in borders.items():
            self._sweep(device, sorted(mine))

    def _sweep(self, device: int, borders: list[tuple[int, int, int]]) -> None:
        running: set[int] = set()
        ended: set[int] = set()
        before = 0
        for time, begins, row in borders:
            if running and time > before:
                self._count(device, running, time - before)
            before = time
            if begins:
                running |= {row} - ended
            else:
                running.discard(row)
                ended.add(row)  # an op without length ends before it begins

    def _count(self, device: int, running: set[int], ns: int) -> None:
        self.by_device[device, self.classes(running)] += ns
        for step in {self.step[row] for row in running} - {-1}:
            own = {row for row in running if self.step[row] == step}
            self.by_step[step, self.classes(own)] += ns
        under = defaultdict(set)
        for row in running:
            for path in self.above(self.owner[row]):
                under[path].add(row)
        for path, own in under.items():
            self.by_path[path, self.classes(own)] += ns
        streams = {(device, *self.stream[row]) for row in running}
        for stream in streams:
            self.busy[stream] += ns
            self.alone[stream] += ns * (len(streams) == 1)
        for pair in combinations(sorted(streams), 2):
            self.stream_pairs[pair] += ns
        owners = sorted({self.owner[row] for row in running})
        for pair in combinations(owners, 2):
            self.path_pairs[(device, *pair)] += ns
        classes = {self.work[row] for row in running}
        if "communication" in classes and "compute" not in classes:
            self.exposed += ns
            talking = {row for row in running if self.work[row] == "communication"}
            for path in {path for row in talking for path in self.above(self.owner[row])}:
                self.exposed_by_path[path] += ns
            for row in talking:
                self.exposed_by_collective[self.name[row], self.owner[row]] += ns

    def classes(self, rows: set[int]) -> tuple[str, ...]:
        return tuple(sorted({self.work[row] for row in rows}))

    def above(self, path: int) -> list[int]:
        """The path and all that it lies under."""
        out = []
        while path >= 0:
            out.append(path)
            path = self.parent[path]
        return out
